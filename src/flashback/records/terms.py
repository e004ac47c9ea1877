"""The two words that every record and every comparison is ordered by."""

from __future__ import annotations

ARMS = HOST, FLASHBACK = "host", "flashback"
SETTINGS = CLASS_INCREMENTAL, TASK_INCREMENTAL = "class_incremental", "task_incremental"
