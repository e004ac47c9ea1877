"""This project's own evidence: what the records of its sweeps say, as one page."""

from evidence.page import evidence_page, write_evidence

__all__ = ["evidence_page", "write_evidence"]
