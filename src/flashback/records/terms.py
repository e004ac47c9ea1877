"""Names of arms and settings in records."""

ARMS = HOST, FLASHBACK = "host", "flashback"
SETTINGS = CLASS_INCREMENTAL, TASK_INCREMENTAL = "class_incremental", "task_incremental"
