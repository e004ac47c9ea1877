"""The page about the paper names every table, figure and theorem, and only what exists here."""

from __future__ import annotations

import re

import pytest
import typer
from doc_pages import DOCS, ROOT, rows, section

from flashback.cli.commands import app
from flashback.hosts import HOSTS
from flashback.recipes import find_recipe
from flashback.studies.sweeps import shipped_sweeps

TEXT = (DOCS / "paper.md").read_text(encoding="utf-8")
QUOTED = ["AANets", "ANCL", "P&C", "AFEC", "CAF", "BiC", "WA", "PODNet", "DyTox"]


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
            assert words[1] in shipped_sweeps(), line
    assert {"baselines", "sota", "plugins", "epochs", "alpha", "memory", "architecture", "regularisation"} <= {
        line.split()[1] for line in used if line.startswith("sweep ")
    }


def test_named_files_exist() -> None:
    for path in re.findall(r"`((?:src|tests)/[\w./]+)`", TEXT):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("name", QUOTED)
def test_quoted_methods_are_no_hosts(name: str) -> None:
    assert name in section(TEXT, "What is not here")
    assert name.lower() not in HOSTS


def test_what_is_said_of_recipes_is_so() -> None:
    assert find_recipe("icarl", "cifar100-b0-10", "controlled")
    for host in ("icarl", "joint"):
        assert not any(find_recipe(host, f"imagenet100-{part}", "controlled") for part in ("b0-10", "b50-10"))
    assert HOSTS["der"].family == "replay"
