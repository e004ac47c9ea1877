"""What the API page shows has a docstring that names every parameter."""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Iterator
from typing import Any

import pytest
from doc_pages import DOCS

import flashback

ENTRY = re.compile(r"^::: (\S+)\n(?: +options:\n +members: (.*)\n)?", re.MULTILINE)


def entries() -> Iterator[Any]:
    """Functions and methods on docs/api.md; of a class without a list of members, all with a docstring."""
    for path, members in ENTRY.findall((DOCS / "api.md").read_text(encoding="utf-8")):
        entry = pydoc.locate(path)
        assert entry is not None, f"docs/api.md names {path}, which does not exist"
        if not inspect.isclass(entry):
            yield entry
            continue
        for name, member in vars(entry).items():
            function = inspect.unwrap(getattr(member, "__func__", member))
            listed = name in re.findall(r"\w+", members) if members else function.__doc__
            if inspect.isfunction(function) and listed and not name.startswith("_"):
                yield function


def undescribed(entry: Any) -> list[str]:
    docstring = inspect.getdoc(entry) or ""
    names = [name for name in inspect.signature(entry).parameters if name not in ("self", "cls")]
    return [name for name in names if not re.search(rf"Args:\n(.*\n)*    {name}: ", docstring)]


@pytest.mark.parametrize("entry", list(entries()), ids=lambda entry: entry.__qualname__)
def test_every_parameter_is_described(entry: Any) -> None:
    assert undescribed(entry) == []


def test_every_exported_function_is_on_the_page() -> None:
    exported = {getattr(flashback, name) for name in flashback.__all__}
    assert {one for one in exported if inspect.isfunction(one)} <= set(entries())


def test_a_missing_description_would_be_found() -> None:
    def function(first: int, second: int) -> None:
        """Do it.

        Args:
            first: A number.
        """

    assert undescribed(function) == ["second"]
