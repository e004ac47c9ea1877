"""Imports point one way, and no name of a method decides anything outside the method's own file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import flashback
from flashback.hosts import HOSTS

SOURCE = Path(flashback.__file__).parent
ROOT = Path(__file__).parents[1]
FILES = sorted(SOURCE.rglob("*.py"))

# From top to bottom. A package may import from the rows below it and from its own row.
ROWS = [
    {"cli"},
    {"bench"},
    {"studies", "conformance"},
    {"reports"},
    {"results"},
    {"models"},
    {"training"},
    {"recipes", "plugin"},
    {"plasticity"},
    {"hosts"},
    {"knowledge"},
    {"memory", "nets", "batches"},
    {"benchmarks"},
    {"engines"},
    {"metrics", "records"},
    {"config", "plain_yaml", "files", "errors", "progress_bar", "ranks", "registry", "seeds"},
]
RANK = {package: -row for row, packages in enumerate(ROWS) for package in packages}
APART = {"metrics", "records"}  # they know nothing of what is measured and recorded
BASE = ROWS[-1]
ENTRY_POINTS = {"__init__", "__main__"}


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Every flashback module that a file imports, wherever in it, with the line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "flashback")


def imported_packages(path: Path) -> Iterator[tuple[int, str]]:
    for line, name in imported_modules(path):
        package = name.split(".")[1] if "." in name else "flashback"
        yield line, package


def may_import(here: str, package: str) -> bool:
    if here in ENTRY_POINTS:
        return True  # it shows what is inside
    if package not in RANK:
        return here == "cli"  # only the command line asks the package itself, for its version
    return package == here or package in BASE if here in APART | BASE else RANK[package] <= RANK[here]


def test_every_package_has_its_place() -> None:
    assert {package_of(path) for path in FILES} - ENTRY_POINTS <= set(RANK)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_downwards(path: Path) -> None:
    here = package_of(path)
    for line, package in imported_packages(path):
        assert may_import(here, package), f"{path.name}:{line}: {here} must not import {package}"


@pytest.mark.parametrize(
    ("here", "package", "allowed"),
    [
        ("cli", "hosts", True),
        ("studies", "training", True),
        ("training", "studies", False),
        ("reports", "studies", False),
        ("hosts", "plugin", False),
        ("nets", "hosts", False),
        ("metrics", "benchmarks", False),
        ("metrics", "errors", True),
        ("config", "records", False),
        ("reports", "flashback", False),
    ],
)
def test_the_test_can_fail(here: str, package: str, allowed: bool) -> None:
    assert may_import(here, package) == allowed


# ---------------------------------------------------------------- names of methods


def deciding_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Names and classes of methods that a decision is made by: ==, in, match, startswith, isinstance, a table."""
    names, classes = set(HOSTS), {HOSTS[name].__name__ for name in HOSTS}
    for node in ast.walk(tree):
        parts: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue | ast.MatchClass):
            parts = [node]
        elif isinstance(node, ast.Call) and name_of(node.func) in DECIDING:
            parts = list(node.args)
        elif isinstance(node, ast.Dict):
            parts = [key for key in node.keys if key is not None]
        for child in (child for part in parts for child in ast.walk(part)):
            word = name_of(child)
            if word in (classes if isinstance(child, ast.Name | ast.Attribute) else names):
                yield node.lineno, word


DECIDING = {"isinstance", "issubclass", "startswith", "endswith", "get"}


def name_of(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return getattr(node, "id", "") or getattr(node, "attr", "")


def homes() -> dict[str, Path]:
    """The file of each method, by its registered name and by the name of its class."""
    paths = {}
    for name in HOSTS:
        host = HOSTS[name]
        path = SOURCE.parent / (host.__module__.replace(".", "/") + ".py")
        paths |= {name: path, host.__name__: path}
    return paths


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_method_is_named_where_a_decision_is_made(path: Path) -> None:
    home = homes()
    for line, word in deciding_names(ast.parse(path.read_text(encoding="utf-8"))):
        assert home[word] == path, f"{path.name}:{line}: decides by the name of a method, '{word}'"


@pytest.mark.parametrize(
    "code",
    [
        'if host.name == "icarl": pass',
        'if host.name in ("lwf-mc", "icarl"): pass',
        'if host.name != "joint": pass',
        'match name:\n    case "icarl": pass',
        "match host:\n    case ICaRL(): pass",
        "isinstance(host, ICaRL)",
        "isinstance(host, icarl.ICaRL)",
        'name.startswith("icarl")',
        'rates = {"icarl": 0.1}',
        'rates.get("icarl")',
    ],
)
def test_a_decision_by_name_would_be_found(code: str) -> None:
    assert list(deciding_names(ast.parse(code)))


def test_other_words_are_no_decision() -> None:
    assert not list(deciding_names(ast.parse('if settings.finetune == 1: host = HOSTS["icarl"]')))


def test_every_mutant_fits_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    from mutants import MUTANTS

    texts = {name: (SOURCE / file).read_text(encoding="utf-8") for name, (file, *_) in MUTANTS.items()}
    assert [name for name, (_, line, *_) in MUTANTS.items() if texts[name].count(line) != 1] == []
    tests = {test for *_, paths in MUTANTS.values() for test in paths.split()}
    assert [test for test in sorted(tests) if not (ROOT / "tests" / test).exists()] == []
