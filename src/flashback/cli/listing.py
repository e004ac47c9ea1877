"""List what there is to choose from, without importing torch, which takes seconds."""

import ast
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from flashback.benchmarks import describe_benchmarks
from flashback.cli.console import show_table

PACKAGE = Path(__file__).parents[1]
SHORT_LISTS = ("hosts", "benchmarks", "nets")
LISTS = (*SHORT_LISTS, "recipes", "sweeps", "forms")


def show_list(what: str, host_file: Sequence[Path] | None = None) -> None:
    columns: Sequence[str] = ("name", "what it is")
    rows: list[tuple[str, ...]]
    if what == "hosts":
        columns = ("name", "family", "flashback", "what it does")
        hosts = entries("hosts", "HOSTS", host_file)
        rows = [(name, h.family, "yes" if h.has_knowledge else "no", first_line(h)) for name, h in hosts.items()]
    elif what == "nets":
        rows = [(name, first_line(net)) for name, net in entries("nets", "NETS", host_file).items()]
        rows += [
            ("timm:MODEL[:cls]", "Any image model of timm, if it is installed; cls: its class token."),
            ("timm:MODEL:pretrained", "With weights from timm's cache; add :download to fetch them if necessary."),
            ("timm:MODEL:weights=FILE", "With the weights of a file; may follow :cls."),
        ]
    elif what == "benchmarks":
        benchmarks = describe_benchmarks()
        columns, rows = list(benchmarks[0]), [tuple(map(str, row.values())) for row in benchmarks]
    elif what == "recipes":
        from flashback.recipes import list_recipes

        columns = ("host", "benchmark", "kind", "note")
        rows = [(recipe.host, recipe.benchmark, recipe.kind, recipe.note) for recipe in list_recipes()]
    elif what == "forms":
        from flashback.studies.variants import catalogue

        rows = [(name, entry["about"]) for name, entry in catalogue().items()]
    else:
        from flashback.studies.sweeps import read_sweep

        rows = [(name, read_sweep(name).title) for name in sweep_names()]
    show_table(what, columns, rows, texts=len(columns))


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


@cache
def registered(package: str, registry: str) -> dict[str, type]:
    """What the files of a package register by a decorator, by name: classes with the docstrings and constants alone."""
    trees = [ast.parse(file.read_bytes()) for file in sorted((PACKAGE / package).rglob("*.py"))]
    nodes = {n.name: n for tree in trees for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}

    @cache
    def outline(name: str) -> type:
        bases = [base.id for base in getattr(nodes[name], "bases", []) if isinstance(base, ast.Name)]
        values: dict[str, Any] = {"__doc__": ast.get_docstring(nodes[name])}
        for statement in nodes[name].body:
            if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Constant):
                target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
                values[ast.unparse(target)] = statement.value.value
        return type(name, tuple(outline(base) for base in bases if base in nodes), values)

    entries = {
        ast.literal_eval(call.args[0]): outline(node.name)
        for node in nodes.values()
        for call in node.decorator_list
        if isinstance(call, ast.Call) and ast.unparse(call.func) == f"{registry}.register"
    }
    return dict(sorted(entries.items()))
