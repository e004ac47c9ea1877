"""What there is to choose from, told without importing torch, which takes seconds."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from rich.table import Table

from flashback.benchmarks import describe_benchmarks
from flashback.cli.console import make_table

PACKAGE = Path(__file__).parents[1]
SHORT_LISTS = ("hosts", "benchmarks", "nets")
LISTS = (*SHORT_LISTS, "recipes", "sweeps")


def list_table(what: str, host_file: Sequence[Path] | None = None) -> Table:
    if what == "hosts":
        table = make_table("hosts", "name", "family", "flashback", "what it does", texts=4)
        for name, host in entries("hosts", "HOSTS", host_file).items():
            table.add_row(name, host.family, "yes" if host.has_knowledge else "no", first_line(host))
    elif what == "nets":
        table = make_table("nets", "name", "what it is", texts=2)
        for name, net in entries("nets", "NETS", host_file).items():
            table.add_row(name, first_line(net))
        timm = "Any image model of timm, if it is installed; cls: its class token."
        table.add_row("timm:MODEL[:pretrained][:cls]", timm)
    elif what == "benchmarks":
        rows = describe_benchmarks()
        table = make_table("benchmarks", *rows[0], texts=len(rows[0]))
        for row in rows:
            table.add_row(*map(str, row.values()))
    elif what == "recipes":
        from flashback.recipes import list_recipes

        table = make_table("recipes", "host", "benchmark", "kind", "note", texts=4)
        for recipe in list_recipes():
            table.add_row(recipe.host, recipe.benchmark, recipe.kind, recipe.note)
    else:
        from flashback.studies.sweeps import read_sweep

        table = make_table("sweeps", "name", "what it is", texts=2)
        for name in sweep_names():
            table.add_row(name, read_sweep(name).title)
    return table


def sweep_names() -> list[str]:
    return sorted(file.stem for file in (PACKAGE / "recipes" / "sweeps").glob("*.yaml"))


def first_line(entry: Any) -> str:
    return (entry.__doc__ or "").strip().partition("\n")[0]


def entries(package: str, registry: str, host_file: Sequence[Path] | None) -> Mapping[str, Any]:
    """The real registry if something from outside the package is in it, else what the source files say."""
    if not host_file and not entry_points(group="flashback.hosts"):
        return registered(package, registry)
    import flashback as fb
    from flashback.hosts.external import find_hosts

    find_hosts(host_file)
    filled = getattr(fb, registry)
    return {name: filled[name] for name in filled}


# ---------------------------------------------------------------- reading source files


@cache
def registered(package: str, registry: str) -> dict[str, Any]:
    """What the files of a package register by a decorator, by name.

    A class becomes an empty class with the same docstring, bases, annotations and constants, so that what it inherits
    is found by Python itself. A function becomes an empty class with its docstring.
    """
    trees = [ast.parse(file.read_bytes()) for file in sorted((PACKAGE / package).rglob("*.py"))]
    nodes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    outlines = Outlines({node.name: node for node in nodes})
    found = {name: outlines[node.name] for node in nodes for name in registered_names(node, registry)}
    return dict(sorted(found.items()))


def settings_of(host: Any) -> set[str]:
    """The names of the settings that a host from `registered` declares."""
    return {name for cls in host.Settings.__mro__ for name in inspect.get_annotations(cls)}


def registered_names(node: ast.ClassDef | ast.FunctionDef, registry: str) -> Iterator[str]:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == f"{registry}.register":
            yield ast.literal_eval(decorator.args[0])


class Outlines(dict[str, Any]):
    """Empty classes by name, made on request; one that is defined in another package has no bases and no attributes."""

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
