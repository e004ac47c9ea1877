"""What a run leaves on disk, and reading it back."""

from flashback.records.folder import RunFolder, RunRecord, read_record, write_atomically

__all__ = ["RunFolder", "RunRecord", "read_record", "write_atomically"]
