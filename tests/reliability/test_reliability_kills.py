"""SIGKILL: processes of one host of each family are killed at random moments; `make storm` does it for all hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import storm
import torch

import flashback

pytestmark = pytest.mark.slow
FAMILIES = ("icarl", "lwf-mc", "oewc", "foster")
ROOT = Path(__file__).parents[2]


def test_killed_runs_end_as_if_nothing_had_happened(tmp_path: Path) -> None:
    source = f"{Path(flashback.__file__).parents[1]}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, str(ROOT / "tools" / "storm.py"), "--kills", "12", "--least", "3", "--hosts", *FAMILIES]
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {cells[0]: list(map(int, cells[1:])) for cells in map(cells_of, done.stdout.splitlines()[2:]) if cells}
    assert set(rows) == {*FAMILIES, "in all"}
    for kills, _, runs, problems in rows.values():
        assert kills >= 3
        assert runs >= 1
        assert problems == 0
    assert rows["in all"][0] == 12


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []


def changed(whole: dict[str, Any], name: str) -> dict[str, Any]:
    """The smallest change of one part."""
    value = whole[name]
    if name == "weights":
        key = next(key for key, tensor in value.items() if tensor.is_floating_point() and tensor.numel() > 1)
        other = value[key].clone()
        other.view(-1)[0] = torch.nextafter(other.view(-1)[0], torch.tensor(9.0))
        return {**whole, name: {**value, key: other}}
    others = {
        "results.json": lambda: value + b" ",
        "log.jsonl": lambda: value[:-1],
        "run.json": lambda: {**value, "steps": 1},
    }
    return {**whole, name: others[name]()}


@pytest.mark.parametrize("name", ["results.json", "log.jsonl", "run.json", "weights"])
def test_a_storm_would_notice_a_change(whole: dict[str, Any], name: str) -> None:
    assert storm.differences(whole, whole) == []
    assert storm.differences(whole, changed(whole, name)) == [name]


def test_a_storm_would_notice_a_lost_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storm, "start", lambda config, folder: 0)
    monkeypatch.setattr(storm, "fingerprint", lambda folder: {"weights": {}})
    monkeypatch.setattr(storm, "short_run", lambda host, dataset: flashback.RunConfig())
    lives = iter([False])

    def outlives(*_: Any) -> bool:
        if next(lives, True):
            raise RuntimeError("a life failed by itself")
        return False

    monkeypatch.setattr(storm, "outlives", outlives)
    tally = storm.storm_over("any", 5, tmp_path, storm.random.Random(0))
    assert tally.problems == ["any-0: lost (a life failed by itself )"]


def test_a_kill_after_the_record_was_written_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process still tidies up and closes down once the results are there: a kill then must not ask for more."""
    lives = []

    def start(config: flashback.RunConfig, folder: Path) -> int:
        lives.append(folder)
        folder.mkdir()
        (folder / "results.json").touch()
        return 0

    monkeypatch.setattr(storm, "start", start)
    monkeypatch.setattr(storm, "outlives", lambda *_: True)
    tally = storm.Tally("any")
    storm.disturb(flashback.RunConfig(), tmp_path / "any-0", 1.0, 5, tally, storm.random.Random(0))
    assert (len(lives), tally.kills) == (1, 1)


def test_half_a_checkpoint_is_recognised(tmp_path: Path) -> None:
    assert not storm.was_torn(tmp_path / "none")
    for name in ("000001.safetensors", "000001.json"):
        assert storm.was_torn(tmp_path) == (name == "000001.json")
        (tmp_path / name).touch()
    assert not storm.was_torn(tmp_path)
    (tmp_path / ".000002.safetensors.part").touch()
    assert storm.was_torn(tmp_path)
