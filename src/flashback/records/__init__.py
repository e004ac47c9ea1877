"""Write and read the record of a run."""

from flashback.records.folder import (
    RunFolder,
    RunRecord,
    check_settings,
    differing_keys,
    dotted,
    is_begun,
    is_finished,
    read_config,
    read_record,
)

__all__ = [
    "RunFolder",
    "RunRecord",
    "check_settings",
    "differing_keys",
    "dotted",
    "is_begun",
    "is_finished",
    "read_config",
    "read_record",
]
