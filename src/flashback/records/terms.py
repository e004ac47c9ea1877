"""Names of arms and settings in records."""

from __future__ import annotations

ARMS = HOST, FLASHBACK = "host", "flashback"
SETTINGS = CLASS_INCREMENTAL, TASK_INCREMENTAL = "class_incremental", "task_incremental"
