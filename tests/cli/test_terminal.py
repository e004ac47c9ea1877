"""What reaches a terminal: nothing that it would obey, in whatever encoding it has, and no value without end."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flashback import progress_bar
from flashback.cli import progress, studies
from flashback.cli.console import show_table
from flashback.records import RunFolder
from flashback.training.trainer import Trainer

Command = Callable[..., tuple[int, str, str]]
HOSTILE = "a\x1b]0;TITLE\x07b\x1b[2J\u202e\x9b\u2066c"
CLEANED = r"a\x1b]0;TITLE\x07b\x1b[2J\u202e\x9b\u2066c"
OBEYED = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
LONG = "x" * 100_000


def assert_clean(*texts: str) -> None:
    for text in texts:
        assert OBEYED.findall(text) == []


@pytest.fixture
def finished(flashback: Command, bare: list[str]) -> Path:
    assert flashback("run", "lwf-mc", "--out", "out", *bare)[0] == 0
    return Path("out")


# ---------------------------------------------------------------- control characters


def test_a_record_cannot_command_the_terminal(finished: Path, flashback: Command) -> None:
    config, run, results = (finished / name for name in ("config.yaml", "run.json", "results.json"))
    spelled = json.dumps(HOSTILE)
    config.write_text(config.read_text().replace("name: lwf-mc", f"name: {spelled}"))
    record = json.loads(run.read_text())
    record["knowledge_bytes"] = {HOSTILE: 3}
    del record["results_checksum"]
    run.write_text(json.dumps(record))
    document = json.loads(results.read_text())
    document["classifiers"] = {HOSTILE: next(iter(document["classifiers"].values()))}
    results.write_text(json.dumps(document))
    folder = finished.rename(HOSTILE)
    for command in (("show", folder), ("report", folder, "--out", "report.html")):
        code, out, err = flashback(*command)
        assert code == 0
        assert CLEANED in out
        assert_clean(out, err)
    assert f"3 bytes of {CLEANED} knowledge" in flashback("show", folder)[1]


@pytest.mark.parametrize(
    "command",
    [
        ["run", HOSTILE],
        ["run", "icarl", "--benchmark", f"{HOSTILE}.npz"],
        ["run", "icarl", "--set", f"{HOSTILE}=1"],
        ["run", "icarl", f"--{HOSTILE}"],
        ["compare", "icarl", "--seeds", HOSTILE],
        ["resume", HOSTILE],
        ["report", HOSTILE],
        ["list", HOSTILE],
    ],
)
def test_bad_input_is_quoted_without_its_control_characters(flashback: Command, command: list[str]) -> None:
    code, out, err = flashback(*command)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "TITLE" in err
    assert_clean(err)


def test_paths_of_images_are_quoted_without_their_control_characters(flashback: Command) -> None:
    folder = Path("images/train") / HOSTILE
    folder.mkdir(parents=True)
    (folder / f"{HOSTILE}.png").write_bytes(b"not an image")
    code, out, err = flashback("run", "finetune", "--benchmark", "images", "--set", "benchmark.sizes=1")
    assert (code, out) == (2, "")
    assert_clean(err)


def test_names_of_hosts_and_sweeps_are_cleaned(flashback: Command, workplace: Path) -> None:
    (workplace / "mine.yaml").write_text(json.dumps({"title": HOSTILE, "hosts": ["finetune"], "arms": ["host"]}))
    assert CLEANED in flashback("sweep", "mine.yaml", "--dry-run")[1]
    show_table(HOSTILE, [HOSTILE], [[HOSTILE], [":smile: [bold]"]], caption=HOSTILE)
    out = flashback("sweep", "mine.yaml", "--dry-run")[1]
    assert ":smile: [bold]" in out
    assert_clean(out)


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_cleaned(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=200, color_system=None)
    monkeypatch.setattr(progress_bar, "Console", lambda **_: console)
    monkeypatch.setattr(progress, "QUIET", 0.0)
    with progress.ProgressView() as view:
        observe = view.watch(HOSTILE)
        observe({"event": "task", "task": 0, "tasks": 1})
        epoch = {"task": 0, "stage": HOSTILE, "epoch": 0, "epochs": 2, "losses": {HOSTILE: 1.0}}
        observe({"event": "epoch", **epoch})
        view.refresh()
        observe({"event": "evaluation", "task": 0, "accuracy": {"linear": {"class_incremental": [80.0]}}})
    text = screen.getvalue()
    assert CLEANED in text
    assert not re.search(r"\x1b\]|\x1b\[2J\x9b|\x07|\x9b|[\u202e\u2066]", text)


def test_a_watched_folder_is_shown_whatever_its_logs_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen, looks = io.StringIO(), list[float]()
    console = Console(file=screen, force_terminal=True, width=200, color_system=None)
    monkeypatch.setattr(progress_bar, "Console", lambda **_: console)
    run = RunFolder.open(tmp_path / HOSTILE, {"host": {"name": "lwf"}})
    epoch = {"event": "epoch", "task": 0, "stage": HOSTILE, "epoch": 0, "epochs": 2, "losses": {HOSTILE: 1.0}}
    others: list[Any] = [None, [], 3, {}, {"event": []}, {"event": "epoch"}, {"event": "task", "task": 0, "tasks": "x"}]
    others += [epoch | {"epochs": "x"}, epoch | {"losses": {"a": "x"}}, epoch | {"task": [0]}]
    others += [{"event": "evaluation", "task": 0, "accuracy": accuracy} for accuracy in ({}, [], {"a": {}})]
    lines = [json.dumps(event) for event in (*others, {"event": "task", "task": 0, "tasks": 1}, epoch)]
    (run.path / "log.jsonl").write_bytes("\n".join(("[" * 100_000, *lines, "nonsense", "")).encode() + b"\xff\n{")
    (tmp_path / "sweep.json").write_text("[" * 100_000)

    def look(seconds: float) -> None:
        looks.append(seconds)
        console.print("")  # draws the lines anew
        if len(looks) == 3:
            (run.path / "results.json").write_text("{}")

    monkeypatch.setattr(studies.time, "sleep", look)
    with run.lock():
        (run.path / ".lock").write_bytes(f"{HOSTILE}\xff".encode())
        studies.watch_folder(tmp_path)
    text = screen.getvalue()
    assert "1 running" in text
    assert "1 done" in text
    assert "epoch 1/2" in text
    assert not re.search(r"\x1b\]|\x1b\[2J\x9b|\x07|\x9b|[\u202e\u2066]", text)


# ---------------------------------------------------------------- streams

MAIN = [sys.executable, "-m", "flashback"]


def call(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*MAIN, *arguments], capture_output=True, text=True, check=False, **options)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_stdout_cannot_encode_are_replaced(finished: Path, encoding: str) -> None:
    done = call("show", str(finished), env={**os.environ, "PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stderr) == (0, "")
    assert "forgetting" in done.stdout
    assert done.stdout.endswith("Record: out\n")


@pytest.mark.parametrize(
    ("redirection", "code", "message"),
    [
        (">&-", 0, ""),
        (">&- 2>&-", 0, ""),
        ("| true", 0, ""),
        ("> /dev/full", 1, "error: the output: No space left on device\n"),
    ],
)
def test_a_stdout_that_takes_nothing_is_no_traceback(finished: Path, redirection: str, code: int, message: str) -> None:
    line = f"set -o pipefail; {' '.join(MAIN)} show {finished} {redirection}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", message)


# ---------------------------------------------------------------- long values and failing files


@pytest.mark.parametrize(
    "command",
    [
        ["run", LONG],
        ["run", f"{'x ' * 50_000}"],
        ["run", "icarl", "--set", f"benchmark.order={LONG}"],
        ["run", "icarl", "--set", f"training.lr={LONG}"],
        ["run", "icarl", "--set", LONG],
        ["run", "icarl", "--set", f"{LONG}=1"],
        ["run", "icarl", "--recipe", LONG],
        ["run", "icarl", "--device", LONG],
        ["run", "icarl", f"--{LONG}"],
        ["compare", "icarl", "--seeds", LONG],
        ["list", LONG],
    ],
)
def test_long_values_are_shortened(flashback: Command, command: list[str]) -> None:
    code, out, err = flashback(*command)
    assert (code in (1, 2), out) == (True, "")  # 1: too long for the name of a file
    assert "xxx" in err or "x x" in err
    assert len(err) < 5_000


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSPC, errno.EFBIG, errno.EIO])
def test_a_file_that_fails_is_named_in_one_line(
    flashback: Command, bare: list[str], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(self: Trainer) -> None:
        raise OSError(number, os.strerror(number), "out/log.jsonl")

    monkeypatch.setattr(Trainer, "run", fail)
    code, out, err = flashback("run", "finetune", "--out", "out", *bare)
    assert code in (1, 2)
    assert (out, err.count("\n")) == ("", 1)
    assert "out" in err
