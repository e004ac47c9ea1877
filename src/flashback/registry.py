"""Names for things a user can choose: hosts, nets, benchmarks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from flashback.errors import FlashbackError, unknown

T = TypeVar("T")
PACKAGE = f"{__package__}."


class Registry(Generic[T]):
    """A table from names to things, filled by a decorator and read with helpful errors."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """A name for one thing; what is defined anew, as by a cell of a notebook that is run again, takes its place."""

        def add(entry: T) -> T:
            if name in self._entries and not is_same_definition(self._entries[name], entry):
                raise FlashbackError(f"the {self.kind} name '{name}' is taken already; choose another")
            self._entries[name] = entry
            return entry

        return add

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._entries.pop(name, None)

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            raise unknown(self.kind, name, self._entries)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))


def is_same_definition(one: object, other: object) -> bool:
    """Whether they are one thing, or a class or function and its newer form: of the same file, or by way of a notebook.

    What the package has itself is not defined anew by a notebook.
    """
    if one is other:
        return True
    if getattr(one, "__qualname__", one) != getattr(other, "__qualname__", other):
        return False
    files = [file_of(thing) for thing in (one, other)]
    return files[0] == files[1] or (None in files and not one.__module__.startswith(PACKAGE))


def file_of(thing: object) -> Path | None:
    """The file something is defined in, whatever the name it was imported by; a notebook has none."""
    file = getattr(sys.modules.get(thing.__module__), "__file__", None)
    return Path(file).resolve() if file else None
