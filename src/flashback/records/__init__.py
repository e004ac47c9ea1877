"""What a run leaves on disk, and reading it back."""

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
