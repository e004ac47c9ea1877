"""What happens around every command: whatever goes wrong becomes one line on stderr and an exit code."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn, cast

import typer

from flashback.cli.commands import app
from flashback.errors import FlashbackError
from flashback.training import Interrupted

# click's error; typer keeps it in different places in different versions
UsageError = cast("type[Exception]", typer.BadParameter.__bases__[0])
BAD_INPUT, FAILED, INTERRUPTED = 2, 1, 130


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """0: done; 1: some runs failed; 2: an error of the user's to mend, told in one line; 130: interrupted."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: say(f"warning: {message}")
        sys.exit(carry_out(sys.argv[1:] if arguments is None else list(arguments)))


def carry_out(arguments: list[str]) -> int:
    try:
        code: int | None = app(args=arguments or ["--help"], prog_name="flashback", standalone_mode=False)
    except FlashbackError as error:
        return end(BAD_INPUT, f"error: {error}")
    except UsageError as error:
        return end(BAD_INPUT, f"error: {error.format_message()}")  # type: ignore[attr-defined]
    except Interrupted:
        return end(INTERRUPTED, "interrupted; the same command goes on where it stopped")
    except (KeyboardInterrupt, typer.Abort):
        return end(INTERRUPTED, "interrupted")
    except BrokenPipeError:  # whoever read the output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as problem:
        return end(FAILED, f"error: {problem.filename or 'a file'}: {problem.strerror or problem}")
    # typer makes an exit code of Ctrl-C by itself
    return end(INTERRUPTED, "interrupted") if code == INTERRUPTED else code or 0


def end(code: int, line: str) -> int:
    say(line)
    return code


def say(line: str) -> None:
    """One line. What a terminal would obey is spelled out: names and values may come from anybody's files."""
    words = " ".join(line.split())
    print("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words), file=sys.stderr)
