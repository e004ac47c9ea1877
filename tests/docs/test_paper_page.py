"""The page about the paper names every table, figure and theorem, and only what exists here."""

from __future__ import annotations

import re
from dataclasses import fields

import typer
from doc_pages import DOCS, ROOT, rows, section

from flashback.cli.commands import app
from flashback.config import BenchmarkConfig, FlashbackConfig, TrainingConfig
from flashback.hosts import HOSTS
from flashback.recipes import find_recipe
from flashback.studies.sweeps import shipped_sweeps

TEXT = (DOCS / "paper.md").read_text(encoding="utf-8")
PARTS = {"benchmark": BenchmarkConfig, "training": TrainingConfig, "flashback": FlashbackConfig}


def named(kind: str, text: str) -> set[int]:
    """The numbers under which a kind of thing is named; ranges are spelled out."""
    numbers: set[int] = set()
    for first, joint, last in re.findall(rf"{kind}s? (\d+)(?: (and|to) (\d+))?", text):
        numbers |= set(range(int(first), int(last or first) + 1)) if joint != "and" else {int(first), int(last)}
    return numbers


def test_nothing_of_the_paper_is_missing() -> None:
    cells = " ".join(row[0] for row in rows(section(TEXT, "Tables and figures")))
    assert named("Table", cells) == set(range(1, 12))
    assert named("Figure", cells) == set(range(1, 14))
    assert named("Theorem", " ".join(row[0] for row in rows(section(TEXT, "Theory")))) == {1, 2, 3, 4}


def test_named_commands_and_sweeps_exist() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    used = re.findall(r"`flashback ([^`]+)`", " ".join(TEXT.split()))
    assert used
    for line in used:
        words = line.split()
        assert words[0] in commands, line
        if words[0] == "sweep" and words[1].islower():
            assert words[1] in shipped_sweeps() or (ROOT / words[1]).is_file(), line
    assert {"baselines", "sota", "plugins", "epochs", "alpha", "memory", "architecture", "regularisation"} <= {
        line.split()[1] for line in used if line.startswith("sweep ")
    }


def test_named_files_exist() -> None:
    for path in re.findall(r"`((?:src|tests)/[\w./]+)`", TEXT):
        assert (ROOT / path).exists(), path


def test_settings_that_change_a_difference_exist() -> None:
    """The last column of the table of what paper and code differ in."""
    table = rows(section(TEXT, "Where paper and authors' code differ"))
    assert len(table) >= 20
    assert {len(row) for row in table} == {5}
    parts = {part: {field.name for field in fields(kind)} for part, kind in PARTS.items()}
    parts["host"] = {field.name for host in HOSTS for field in fields(HOSTS[host].Settings)}
    named = re.findall(r"\b(host|flashback|training|benchmark)\.(\w+)", " ".join(row[4] for row in table))
    assert len(named) >= 10
    for part, name in named:
        assert name in parts[part], f"{part}.{name}"


def test_what_is_said_of_recipes_is_so() -> None:
    both = ("imagenet100-b0-10", "imagenet100-b50-10")
    assert find_recipe("icarl", "cifar100-b0-10", "controlled")
    assert not any(find_recipe("icarl", benchmark, "controlled") for benchmark in both)
    assert all(find_recipe("joint", benchmark, "controlled") for benchmark in both)
    assert HOSTS["der"].family == "replay"
    assert HOSTS["der-expansion"].family == "dynamic"
