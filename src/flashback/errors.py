"""Errors that are meant for the user: one sentence that says what is wrong and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FlashbackError(Exception):
    """Bad input. The command line prints the message alone and exits with code 2."""


def unknown(kind: str, name: str, known: Iterable[str]) -> FlashbackError:
    """The error for a name that does not exist, with the nearest one that does."""
    options = sorted(known)
    near = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(options) or 'none'}."
    return FlashbackError(f"unknown {kind} '{name}'; {hint}")
