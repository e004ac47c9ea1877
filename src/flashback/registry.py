"""Names for things a user can choose: hosts, nets, benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from flashback.errors import FlashbackError, unknown

T = TypeVar("T")


class Registry(Generic[T]):
    """A table from names to things, filled by a decorator and read with helpful errors."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        def add(entry: T) -> T:
            if name in self._entries and self._entries[name] is not entry:
                raise FlashbackError(f"the {self.kind} name '{name}' is taken already; choose another")
            self._entries[name] = entry
            return entry

        return add

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            raise unknown(self.kind, name, self._entries)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))
