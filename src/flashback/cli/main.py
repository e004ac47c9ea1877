"""The entry point: whatever goes wrong becomes one line on stderr and an exit code."""

import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn, cast

import typer

from flashback.cli.commands import app
from flashback.cli.console import discard_output, prepare_streams, say
from flashback.errors import SAVED, FlashbackError, Interrupted
from flashback.ranks import AnotherRankFailedError, RankError

# click's error; typer keeps it in different places in different versions
UsageError = cast("type[Exception]", typer.BadParameter.__bases__[0])
WITH_SETTINGS = ("run", "compare", "show", "frontier", "tune", "check", "learn")  # the commands that have --set
SET_HINT = " A setting is given by its key, such as --set training.lr=0.1; `flashback show HOST` lists them."
BAD_INPUT, FAILED, INTERRUPTED = 2, 1, 130


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done; 1 some runs failed; 2 bad input; 3 update refused; 130 interrupted."""
    prepare_streams()
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: say(f"warning: {message}")
        sys.exit(exit_code(sys.argv[1:] if arguments is None else list(arguments)))


def exit_code(arguments: list[str]) -> int:
    command = typer.main.get_command(app)
    try:
        with command.make_context("flashback", arguments or ["--help"]) as context:
            code: int | None = command.invoke(context)
        return code or 0
    except typer.Exit as end:  # of --help and --version
        return end.exit_code
    except AnotherRankFailedError:
        return FAILED
    except RankError as error:
        return stop(FAILED, f"error: {error}")
    except FlashbackError as error:
        return stop(BAD_INPUT, f"error: {error}")
    except UsageError as error:
        hint = SET_HINT if getattr(error, "option_name", "") and arguments[0] in WITH_SETTINGS else ""
        return stop(BAD_INPUT, f"error: {error.format_message()}{hint}")  # type: ignore[attr-defined]
    except Interrupted as stopped:
        what_now = "the same command continues where it stopped" if str(stopped) == SAVED else str(stopped)
        return stop(INTERRUPTED, f"interrupted; {what_now}")
    except (KeyboardInterrupt, typer.Abort):
        return stop(INTERRUPTED, "interrupted")
    except OSError as problem:
        if problem.filename is None:  # of stdout
            discard_output()
        return stop(FAILED, f"error: {problem.filename or 'the output'}: {problem.strerror or problem}")


def stop(code: int, line: str) -> int:
    say(line)
    return code
