"""A folder has one answer: a comparison counts every finished seed in it, whichever seeds were asked for last."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flashback.studies.comparison import runs_in
from flashback.training.trainer import Trainer

Command = Callable[..., tuple[int, str, str]]


def compared() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(Path("out/comparison.json").read_text())
    return document


@pytest.mark.slow
def test_a_comparison_grows_and_never_shrinks(
    flashback: Command, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(*seeds: object) -> str:
        code, out, err = flashback("compare", "lwf-mc", *seeds, "--out", "out", *tiny)
        assert (code, err) == (0, "")
        return out

    assert "Also counted" not in compare("--seeds", 2)
    whole = compare("--seed-list", 5)
    assert "Also counted: seeds 0, 1, already finished in this folder." in whole
    assert "with flashback on tiny.npz, 3 seeds" in whole
    document = compared()
    assert (sorted(document["seeds"]), document["further_seeds"]) == ([0, 1, 5], [0, 1])
    assert set(document["rows"][0]["values"]["flashback"]) == {"0", "1", "5"}
    assert document["rows"][0]["test"]["pairs"] == 3
    monkeypatch.setattr(Trainer, "run", lambda self: pytest.fail("trained"))
    again = compare("--seeds", 1)
    assert "Reused: 2 finished runs." in again
    assert "Also counted: seeds 1, 5, already finished in this folder." in again
    assert compared()["sentence"] == document["sentence"]


@pytest.mark.slow
def test_an_unfinished_seed_does_not_count(flashback: Command, tiny: list[str]) -> None:
    flashback("compare", "lwf-mc", "--seeds", 2, "--out", "out", *tiny)
    for arm in ("host", "flashback"):
        Path(f"out/{arm}/seed-1/results.json").unlink()
    code, out, _ = flashback("compare", "lwf-mc", "--seeds", 1, "--out", "out", *tiny)
    assert (code, compared()["seeds"]) == (0, [0])
    assert "Also counted" not in out


def test_a_further_seed_of_other_settings_is_refused(
    flashback: Command, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert flashback("compare", "lwf-mc", "--seed-list", 4, "--out", "out", *tiny)[0] == 0
    monkeypatch.setattr(Trainer, "run", lambda self: pytest.fail("trained"))
    code, _, err = flashback("compare", "lwf-mc", "--seeds", 1, "--out", "out", *tiny, "--set", "training.lr=0.5")
    assert code == 2
    assert "out/host/seed-4 holds a finished run of another configuration (differs in training.lr)" in err
    assert compared()["seeds"] == [4]


def test_only_folders_that_are_named_by_a_seed_are_runs(tmp_path: Path) -> None:
    names = ("host/seed-10", "host/seed-2", "flashback/seed-0", "host/seed-x", "host/seed-01", "other/seed-3")
    for name in (*names, "host/seed-" + "9" * 30):
        (tmp_path / name).mkdir(parents=True)
    assert runs_in(tmp_path) == [("flashback", 0), ("host", 2), ("host", 10)]
    assert runs_in(tmp_path / "nothing") == []
