"""What happens around every command: whatever goes wrong becomes one line on stderr and an exit code."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn, cast

import typer

from flashback.cli.commands import Saved, app
from flashback.config import HostSettings, homes_of
from flashback.errors import FlashbackError
from flashback.hosts import HOSTS

# click's error; typer keeps it in different places in different versions
UsageError = cast("type[Exception]", typer.BadParameter.__bases__[0])
WITH_SETTINGS = ("run", "compare", "show", "tune", "check")  # the commands that have --set
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
        return end(BAD_INPUT, f"error: {as_setting(error, arguments) or error.format_message()}")  # type: ignore[attr-defined]
    except Saved:
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


def as_setting(error: Exception, arguments: Sequence[str]) -> str | None:
    """How to write an option that is none but the name of a setting, such as --lr; None where it is not."""
    option = str(getattr(error, "option_name", ""))
    host = next((HOSTS[word].Settings for word in arguments if word in HOSTS), HostSettings)
    keys = homes_of(option.lstrip("-").replace("-", "_"), host)
    if not keys or arguments[0] not in WITH_SETTINGS:
        return None
    words = " ".join(arguments).replace("=", " ").split()
    value = (*words[words.index(option) + 1 :], "...")[0]
    return f"no such option: {option}; a setting is given by its key: {' or '.join(f'--set {k}={value}' for k in keys)}"


def end(code: int, line: str) -> int:
    say(line)
    return code


def say(line: str) -> None:
    """One line. What a terminal would obey is spelled out: names and values may come from anybody's files."""
    words = " ".join(line.split())
    print("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words), file=sys.stderr)
