"""Storms: commands are killed, or their file operations fail; `make storm` does it at length for every command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import storm

import flashback

ROOT = Path(__file__).parents[2]
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="storm.c has to be compiled")


def run_storm(tmp_path: Path, *options: str) -> dict[str, list[int]]:
    """The table of a storm: the numbers of every command."""
    source = f"{Path(flashback.__file__).parents[1]}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    command = [sys.executable, str(ROOT / "tools" / "storm.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.strip("|").split("|") for line in done.stdout.splitlines() if line.startswith("|")]
    return {cells[0].strip(): list(map(int, cells[1:])) for cells in rows[2:]}


@needs_compiler
@pytest.mark.slow
def test_killed_commands_end_as_if_nothing_had_happened(tmp_path: Path) -> None:
    """One host of each family, and the commands that run several or keep a model."""
    names = ("run icarl", "run oewc", "run foster", "compare", "sweep", "tune", "frontier", "learn, again", "prune")
    hosts = [name.removeprefix("run ") for name in names if name.startswith("run ")]
    rows = run_storm(tmp_path, "--kills", "40", "--hosts", *hosts, "--commands", *names)
    assert set(rows) == {*names, "in all"}
    for *kills, finished, problems in rows.values():
        assert sum(kills) >= 4
        assert finished >= 1
        assert problems == 0


@needs_compiler
@pytest.mark.slow
def test_commands_whose_files_cannot_be_written_can_be_finished(tmp_path: Path) -> None:
    """With counts of an earlier storm: what is in them is not done again."""
    names = ("run, tracked", "run, image folder", "compare", "tune", "forms", "report", "cka", "rollback", "bench")
    record, earlier = tmp_path / "counts.json", {"operations": 6, "ENOSPC": 60, "EIO": 6, "partial": 1}
    record.write_text(json.dumps({"kills": {}, "faults": {"bench": earlier}}))
    rows = run_storm(tmp_path, "--faults", "--every", "40", "--record", str(record), "--hosts", "--commands", *names)
    assert rows["bench"] == [6, 60, 6, 1, 0, 0]
    for _, *faults, _, problems in rows.values():
        assert all(faults)
        assert problems == 0
    assert {*json.loads(record.read_text())["faults"]} == {*rows} - {"in all"}


def changed(whole: dict[str, Any], name: str) -> dict[str, Any]:
    """The smallest change of one part."""
    value = whole[name]
    if name == "checkpoint":
        key = next(iter(value))
        return {**whole, name: {**value, key: bytes([value[key][0] ^ 1, *value[key][1:]])}}
    others = {
        "results.json": lambda: value + b" ",
        "log.jsonl": lambda: value[:-1],
        "run.json": lambda: {**value, "steps": 1},
    }
    return {**whole, name: others[name]()}


@pytest.mark.parametrize("name", ["results.json", "log.jsonl", "run.json", "checkpoint"])
def test_a_storm_would_notice_a_change(whole: dict[str, Any], name: str) -> None:
    assert storm.differences(whole, whole) == []
    assert storm.differences(whole, changed(whole, name)) == [name]


def test_a_storm_would_notice_a_file_that_is_missing_or_left_over(whole: dict[str, Any]) -> None:
    fewer = {name: value for name, value in whole.items() if name != "results.json"}
    assert storm.differences(whole, fewer) == storm.differences(fewer, whole) == ["results.json"]


def test_a_storm_would_notice_a_lost_checkpoint_or_run(tmp_path: Path) -> None:
    """Progress grows with every checkpoint, and is at its end with the results."""
    (tmp_path / "run" / "checkpoint").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").touch()
    assert storm.progress(tmp_path) == {}
    reached = []
    for number, position in enumerate([(0, 1, True, 1, 2), (1, 0, False, 0, 0)]):
        keys = ("task", "stage", "begun", "epoch", "step")
        document = {"values": {"position": dict(zip(keys, position, strict=True))}}
        (tmp_path / "run" / "checkpoint" / f"00000{number}.json").write_text(json.dumps(document))
        reached.append(storm.progress(tmp_path)[tmp_path / "run"])
    (tmp_path / "run" / "results.json").touch()
    reached.append(storm.progress(tmp_path)[tmp_path / "run"])
    assert reached == sorted(reached)
    assert len(set(reached)) == 3
