"""Errors that are meant for the user: one sentence that says what is wrong and what to do about it."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any

LONGEST_VALUE = 100  # characters of a value in a message
NEAR = 0.7  # how alike two names are, from 0 to 1, if one may be meant by the other
ELSEWHERE = {  # where else names of a kind come from
    "host": "a file with hosts of your own is imported first, on the command line by --host-file",
    "net": "a file with nets of your own is imported first, on the command line by --host-file; a model of timm is "
    "named timm:{name}",
    "benchmark": "there is no file or folder of that name either",
    "sweep": "there is no file of that name either",
}


OTHER_NAMES = {  # what other libraries call a host, where likeness leads astray or nowhere
    "host": {"derpp": "der++", "ewc_on": "oewc", "sgd": "finetune", "naive": "finetune"},
}


class FlashbackError(Exception):
    """Bad input. The command line prints the message alone and exits with code 2."""


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop and has saved its state."""

    def __init__(self, message: str = "stopped, and saved: the same call goes on from here") -> None:
        super().__init__(message)


def require(condition: bool, message: str) -> None:
    """Raise a FlashbackError with this message unless the condition holds."""
    if not condition:
        raise FlashbackError(message)


def unknown(kind: str, name: str, known: Iterable[str]) -> FlashbackError:
    """The error for a name that does not exist, with the nearest one that does."""
    options = sorted(known)
    section = name.rpartition(".")[0]  # one that all options share makes none of them alike
    shared = len(section) if all(option.startswith(f"{section}.") for option in options) else 0
    lowered = {option[shared:].lower(): option for option in options}
    near = difflib.get_close_matches(name[shared:].lower(), lowered, n=1, cutoff=NEAR)
    meant = OTHER_NAMES.get(kind, {}).get(name.lower()) or (lowered[near[0]] if near else None)
    hint = f"did you mean '{meant}'?" if meant else f"known: {', '.join(options) or 'none'}"
    elsewhere = f" ({ELSEWHERE[kind].format(name=name)})" if kind in ELSEWHERE else ""
    return FlashbackError(f"unknown {kind} '{name}'; {hint}{elsewhere}")


def abbreviate(value: Any) -> str:
    """The repr of a value for a message, cut after 100 characters."""
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


@cache
def warn_once(sentence: str) -> None:
    """However often the same is found, as in data that are opened again."""
    warnings.warn(sentence, stacklevel=3)


def import_extra(module: str, extra: str, what: str) -> Any:
    """An optional package; whatever keeps it from being imported is one sentence that begins with `what`."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise FlashbackError(
            f"{what}; install it with pip install 'flashback-cl[{extra}]' or, in a clone, pip install -e '.[{extra}]'"
        ) from None
    except Exception as problem:  # of others: torchvision, built for another torch, raises a RuntimeError
        said = f"{type(problem).__name__}: {' '.join(str(problem).split())}"
        raise FlashbackError(
            f"{what}, which is installed but cannot be imported ({said}); install versions that go together, torch and "
            "torchvision from the same place"
        ) from None
