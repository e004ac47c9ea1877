"""The entry point: whatever goes wrong becomes one line on stderr and an exit code."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn, cast

import typer

from flashback.cli.commands import Saved, app
from flashback.cli.console import say
from flashback.errors import FlashbackError

# click's error; typer keeps it in different places in different versions
UsageError = cast("type[Exception]", typer.BadParameter.__bases__[0])
WITH_SETTINGS = ("run", "compare", "show", "tune", "check")  # the commands that have --set
SET_HINT = " A setting is given by its key, such as --set training.lr=0.1; `flashback show HOST` lists them."
BAD_INPUT, FAILED, INTERRUPTED = 2, 1, 130


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done; 1 some runs failed; 2 bad input; 130 interrupted."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: say(f"warning: {message}")
        sys.exit(exit_code(sys.argv[1:] if arguments is None else list(arguments)))


def exit_code(arguments: list[str]) -> int:
    try:
        code: int | None = app(args=arguments or ["--help"], prog_name="flashback", standalone_mode=False)
    except FlashbackError as error:
        return end(BAD_INPUT, f"error: {error}")
    except UsageError as error:
        hint = SET_HINT if getattr(error, "option_name", "") and arguments[0] in WITH_SETTINGS else ""
        return end(BAD_INPUT, f"error: {error.format_message()}{hint}")  # type: ignore[attr-defined]
    except Saved:
        return end(INTERRUPTED, "interrupted; the same command goes on where it stopped")
    except (KeyboardInterrupt, typer.Abort):
        return end(INTERRUPTED, "interrupted")
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as problem:
        return end(FAILED, f"error: {problem.filename or 'a file'}: {problem.strerror or problem}")
    # typer itself turns Ctrl-C into an exit code
    return end(INTERRUPTED, "interrupted") if code == INTERRUPTED else code or 0


def end(code: int, line: str) -> int:
    say(line)
    return code
