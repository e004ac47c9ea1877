"""Registries of things a user chooses by name: hosts, nets, benchmarks."""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from flashback.errors import FlashbackError, unknown

T = TypeVar("T")
PACKAGE = f"{__package__}."


class Registry(Generic[T]):
    """A table of named entries, filled by a decorator, with helpful errors for unknown names."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that registers an entry; the same definition, run again in a notebook, replaces the old one."""

        def add(entry: T) -> T:
            if name in self._entries and not is_same_definition(self._entries[name], entry):
                raise FlashbackError(f"the {self.kind} name '{name}' is taken; choose another")
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


def is_same_definition(first: object, second: object) -> bool:
    """Whether both are the same object, or two versions of a definition in one file or in a notebook.

    A notebook cannot replace what the package itself defines.
    """
    if first is second:
        return True
    if getattr(first, "__qualname__", first) != getattr(second, "__qualname__", second):
        return False
    files = [file_of(sys.modules.get(definition.__module__)) for definition in (first, second)]
    return files[0] == files[1] or (None in files and not first.__module__.startswith(PACKAGE))


def file_of(module: ModuleType | None) -> Path | None:
    """The file of a module; None for a notebook."""
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file else None
