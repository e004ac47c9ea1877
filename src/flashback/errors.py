"""Errors for the user: one sentence that says what is wrong and what to do."""

import difflib
import re
import warnings
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any

LONGEST_VALUE = 100  # characters of a value in a message
MOST_NAMES = 100  # known names in a message
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
NEAR = 0.7  # similarity from which a name is suggested
ELSEWHERE = {  # how to add names of a kind
    "host": "import a file with your own hosts first, on the command line with --host-file",
    "net": "import a file with your own nets first, on the command line with --host-file; timm models are named "
    "timm:{name}",
    "benchmark": "there is no file or folder of that name either",
    "sweep": "there is no file of that name either",
}


OTHER_NAMES = {  # names of hosts in other libraries that are not similar enough to ours
    "host": {"derpp": "der++", "ewc_on": "oewc", "sgd": "finetune", "naive": "finetune"},
}


class FlashbackError(Exception):
    """Bad input. The command line prints only the message and exits with code 2."""


SAVED = "stopped and saved; the same call continues from here"
NOT_SAVED = "there was no space to save the state; the same call continues from the last checkpoint, if there is one"


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop, and has saved its state unless the message says otherwise."""

    def __init__(self, message: str = SAVED) -> None:
        super().__init__(message)


def require(condition: bool, message: str) -> None:
    """Raise a FlashbackError with this message unless the condition holds."""
    if not condition:
        raise FlashbackError(message)


def unknown(kind: str, name: str, known: Iterable[str]) -> FlashbackError:
    """The error for a name that does not exist, with the most similar one that does."""
    options, name = sorted(known), shorten(name)
    section = name.rpartition(".")[0]  # compare without a section that all options share
    shared = len(section) if all(option.startswith(f"{section}.") for option in options) else 0
    lowered = {option[shared:].lower(): option for option in options}
    near = difflib.get_close_matches(name[shared:].lower(), lowered, n=1, cutoff=NEAR)
    suggestion = OTHER_NAMES.get(kind, {}).get(name.lower()) or (lowered[near[0]] if near else None)
    more = f" and {len(options) - MOST_NAMES} more" if len(options) > MOST_NAMES else ""
    names = (", ".join(options[:MOST_NAMES]) or "none") + more
    hint = f"did you mean '{suggestion}'?" if suggestion else f"known: {names}"
    elsewhere = f" ({ELSEWHERE[kind].format(name=name)})" if kind in ELSEWHERE else ""
    return FlashbackError(f"unknown {kind} '{name}'; {hint}{elsewhere}")


def printable(text: object, keep: str = "") -> str:
    r"""Escape what could command a terminal or disguise a name, such as `\x1b`, `\u202e` or a byte that is not UTF-8.

    Ordinary text comes back unchanged, and so do the characters in `keep`, such as a newline.
    """
    return CONTROLS.sub(lambda match: match[0] if match[0] in keep else ascii(match[0])[1:-1], str(text))


def shorten(text: str, longest: int = LONGEST_VALUE) -> str:
    """Cut a text that a message quotes after 100 characters."""
    return text if len(text) <= longest else f"{text[:longest]}..."


def abbreviate(value: Any) -> str:
    """The repr of a value for a message, cut after 100 characters."""
    return shorten(repr(value))


@cache
def warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=3)


def import_extra(module: str, extra: str, what: str) -> Any:
    """Import an optional package; errors begin with `what`, which says who needs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise FlashbackError(
            f"{what}; install it with pip install 'flashback-cl[{extra}]' or, in a clone, pip install -e '.[{extra}]'"
        ) from None
    except Exception as problem:  # torchvision, built for another torch, raises a RuntimeError
        reason = f"{type(problem).__name__}: {' '.join(str(problem).split())}"
        raise FlashbackError(
            f"{what}, which is installed but cannot be imported ({reason}); install compatible versions, and torch and "
            "torchvision from the same source"
        ) from None
