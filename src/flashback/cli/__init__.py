"""The command line: parse, call, print."""

from flashback.cli.main import main

__all__ = ["main"]
