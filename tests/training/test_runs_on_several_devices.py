"""A run on several ranks: who writes, how it resumes, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

import flashback as fb
from flashback import ranks
from flashback.cli.main import exit_code
from flashback.config import to_dict
from flashback.errors import FlashbackError, Interrupted
from flashback.training import select_device
from flashback.training.fast import compilation_pays
from flashback.training.running import check_batches
from helpers import QUICK, quick_config, write_tiny
from rank_runs import as_rank, free_port, other_ranks

LOST = (
    "error: another rank of this run ended without an error message, or did not answer for 30 minutes; the same "
    "command continues from the last checkpoint"
)
SECOND_RANK = str(Path(__file__).parents[1] / "second_rank.py")


def take_part(config: fb.RunConfig, port: str, folder: Path, **options: Any) -> fb.TrainingResult:
    with as_rank(0, 2, MASTER_PORT=port, TORCHELASTIC_RUN_ID="test"):
        return fb.run(config, out=folder, device="cpu", **options)


def stop_in_task_two(event: Any) -> None:
    if event["event"] == "epoch" and event["task"] == 1:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
def test_two_ranks_keep_one_record_and_resume(tmp_path: Path) -> None:
    """Exactly on two ranks; on one device with a note in the record."""
    data = write_tiny(tmp_path / "tiny.npz")
    settings = {**QUICK, "benchmark.sizes": [2, 3, 2], "benchmark.tasks": 2, "host.memory_size": 21}
    config = fb.configure("icarl", str(data), flashback=True, settings=settings)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(to_dict(config)))
    whole, stopped, alone = (tmp_path / name for name in ("whole", "stopped", "alone"))
    ports = [free_port() for _ in range(3)]
    folders = [whole, stopped, stopped]
    arguments = [str(part) for pair in zip(ports, folders, strict=True) for part in pair]
    with other_ranks(2, str(tmp_path / "config.yaml"), *arguments, program=SECOND_RANK):
        expected = take_part(config, ports[0], whole)
        with pytest.raises(Interrupted):
            take_part(config, ports[1], stopped, observers=[stop_in_task_two])
        shutil.copytree(stopped, alone)
        assert take_part(config, ports[2], stopped).as_dict() == expected.as_dict()
    events = [json.loads(line)["event"] for line in (whole / "log.jsonl").read_text().splitlines()]
    assert events.count("evaluation") == 2
    record = json.loads((stopped / "run.json").read_text())
    assert record["must_match"]["ranks"] == 2
    assert record["changed_on_resume"] == []

    with pytest.warns(UserWarning, match=r"another environment \(ranks\)"):
        fb.run(config, out=alone, device="cpu")
    assert json.loads((alone / "run.json").read_text())["changed_on_resume"] == ["ranks"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")
def test_a_rank_that_is_killed_ends_the_run(tmp_path: Path) -> None:
    """Also the way to start ranks from the command line."""
    data = write_tiny(tmp_path / "tiny.npz")
    options = ["--device", "cpu", "--devices", "2", "--out", str(tmp_path / "run"), "--set", "training.epochs=100000"]
    command = [sys.executable, "-m", "flashback", "run", "finetune", "--benchmark", str(data), *options]
    settings = ["--set", "benchmark.sizes=[2, 3, 2]", "--set", "training.lr=1e-9"]
    started = subprocess.Popen([*command, *settings], stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: '"epoch"' in read_text(tmp_path / "run" / "log.jsonl"))
        children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)
        _, errors = started.communicate(timeout=60)
    finally:
        started.kill()
    assert started.returncode == 1
    # The launcher may end the other rank before that has said anything.
    assert [line for line in errors.splitlines() if line.startswith("error: ")] in ([], [LOST])
    assert "was ended by SIGKILL; the same command continues from the last checkpoint" in errors
    assert "Traceback" not in errors


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


def read_text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    one_gpu = "every rank needs its own GPU, and this machine has 1; start fewer ranks, or use --device cpu"
    with as_rank(0, 2, TORCHELASTIC_RUN_ID="test"), pytest.raises(FlashbackError, match=one_gpu):
        select_device("cuda")
    assert exit_code(["run", "finetune", "--devices", "2"]) == 2


def test_each_rank_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with as_rank(1, 2, TORCHELASTIC_RUN_ID="test"):
        device = select_device("auto")
        assert (device, select_device(device)) == (torch.device("cuda:1"), torch.device("cuda:1"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "finetune", "--devices", "0"], "--devices must be at least 1, not 0"),
        (["run", "finetune", "--devices", "3"], "--devices is 3, but torchrun started 2 processes; leave it out"),
        (["compare", "icarl"], "torchrun starts one run on several devices: use it with flashback run or resume"),
    ],
)
def test_what_does_not_go_together_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with as_rank(0, 2, TORCHELASTIC_RUN_ID="test"):
        assert exit_code(arguments) == 2
    assert message in capsys.readouterr().err


def test_only_the_first_rank_prints(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_failed_first", False)
    with as_rank(1, 2, TORCHELASTIC_RUN_ID="test"):
        assert exit_code(["compare", "icarl"]) == 2
    assert capsys.readouterr() == ("", "")


def test_a_batch_with_fewer_images_than_ranks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FlashbackError, match=r"batch_size is 8, less than one image for each of 16 ranks"):
        check_batches(quick_config("finetune"), 16)
    (tmp_path / "config.yaml").write_text("{host: {name: finetune}, training: {batch_size: 8}}")
    for words in (["run", "finetune", "--set", "training.batch_size=8"], ["resume", str(tmp_path)]):
        assert exit_code([*words, "--devices", "1000000"]) == 2  # and no process is started
        assert "less than one image for each of 1000000 ranks" in capsys.readouterr().err


def test_compilation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_group", ranks.Group(0, 2))
    host = SimpleNamespace(config=replace(quick_config("finetune"), compile=True))
    with pytest.raises(FlashbackError, match="compile=true does not go with several devices"):
        compilation_pays(host)
