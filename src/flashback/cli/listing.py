"""What there is to choose from, told without importing torch, which takes seconds."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
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
    """What the files of a package register by a decorator, by name: the docstring, family and has_knowledge of each."""
    trees = [ast.parse(file.read_bytes()) for file in sorted((PACKAGE / package).rglob("*.py"))]
    nodes = {n.name: n for tree in trees for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    entries = {
        ast.literal_eval(call.args[0]): SimpleNamespace(__doc__=ast.get_docstring(node), **constants(node, nodes))
        for node in nodes.values()
        for call in node.decorator_list
        if isinstance(call, ast.Call) and ast.unparse(call.func) == f"{registry}.register"
    }
    return dict(sorted(entries.items()))


def constants(node: ast.AST, nodes: Mapping[str, ast.AST]) -> dict[str, Any]:
    """The class attributes that are constants, inherited ones included."""
    if not isinstance(node, ast.ClassDef):
        return {}
    values: dict[str, Any] = {}
    for base in reversed(node.bases):
        if isinstance(base, ast.Name) and base.id in nodes:
            values |= constants(nodes[base.id], nodes)
    for statement in node.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Constant):
            target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
            values[ast.unparse(target)] = statement.value.value
    return values
