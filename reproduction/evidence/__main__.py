from pathlib import Path

from evidence import write_evidence
from flashback.reports import read_report

if __name__ == "__main__":
    write_evidence(read_report([Path("results")]), Path("docs/evidence.md"))
