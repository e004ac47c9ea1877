"""Hosts and nets as their source files describe them, read without importing torch, which takes seconds."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]


@cache
def registered(package: str, registry: str) -> dict[str, Any]:
    """What the files of a package register by a decorator, by name.

    A class becomes an empty class with the same docstring, bases, annotations and constants, so that what it inherits
    is found by Python itself. A function becomes an empty class with its docstring.
    """
    trees = [ast.parse(file.read_bytes()) for file in sorted((PACKAGE / package).rglob("*.py"))]
    nodes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    outlines = Outlines({node.name: node for node in nodes})
    entries = {name: outlines[node.name] for node in nodes for name in registered_names(node, registry)}
    return dict(sorted(entries.items()))


def settings_of(host: Any) -> set[str]:
    """The names of the settings of a host from `registered`."""
    return {name for cls in host.Settings.__mro__ for name in inspect.get_annotations(cls)}


def registered_names(node: ast.ClassDef | ast.FunctionDef, registry: str) -> Iterator[str]:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == f"{registry}.register":
            yield ast.literal_eval(decorator.args[0])


class Outlines(dict[str, Any]):
    """Empty classes by name, made when they are asked for; one from another package is a plain object."""

    def __init__(self, nodes: dict[str, ast.ClassDef | ast.FunctionDef]) -> None:
        self.nodes = nodes

    def __missing__(self, name: str) -> Any:
        node = self.nodes.get(name)
        attributes: dict[str, Any] = {"__doc__": ast.get_docstring(node) if node else None, "__annotations__": {}}
        bases: list[Any] = []
        if isinstance(node, ast.ClassDef):
            bases = [self[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in self.nodes]
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    attributes["__annotations__"][statement.target.id] = ""
                    attributes[statement.target.id] = self.value(statement.value)
                elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                    attributes[statement.targets[0].id] = self.value(statement.value)
        self[name] = type(name, tuple(bases), attributes)
        return self[name]

    def value(self, node: ast.expr | None) -> Any:
        """A constant, or the outline of a class; of anything else nothing is known."""
        return self[node.id] if isinstance(node, ast.Name) else getattr(node, "value", None)
