"""How fast training is: figures of steps, parts and whole runs, their tables and their plot."""

from flashback.speed.figures import Bench, read_bench
from flashback.speed.measuring import Choice, bench
from flashback.speed.sheets import markdown, sheets, write_tables

__all__ = ["Bench", "Choice", "bench", "markdown", "read_bench", "sheets", "write_tables"]
