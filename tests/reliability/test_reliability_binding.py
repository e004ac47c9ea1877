"""A checkpoint, a kept model and a cached first task belong to one run: its seed, host, settings and data."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from reliability_runs import Crash, sign

import flashback as fb
from flashback.conformance import short_settings
from flashback.hosts import HOSTS
from flashback.training import open_benchmark
from flashback.training.environment import describe
from helpers import write_tiny

REFUSED = r"belongs to a run with another seed, host, setting or dataset than config\.yaml"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny.npz")


def config_of(
    data: Path, host: str = "finetune", seed: int = 0, flashback: bool = False, **changes: Any
) -> fb.RunConfig:
    settings = {"benchmark.sizes": [4, 3], "training.epochs": 1, "training.batch_size": 16, "checkpoint.minutes": 0.0}
    settings |= {**short_settings(HOSTS[host]), "checkpoint.tasks": True, "flashback.second_epochs": 1, **changes}
    return fb.configure(host, data, seed=seed, flashback=flashback, settings=settings)


def stopped(config: fb.RunConfig, folder: Path) -> Path:
    """A run that breaks off when its second task begins."""

    def crash(event: Mapping[str, Any]) -> None:
        if (event["event"], event["task"]) == ("task", 1):
            raise Crash

    with pytest.raises(Crash):
        fb.run(config, out=folder, device="cpu", observers=[crash])
    return folder


def swap(source: Path, target: Path) -> None:
    shutil.rmtree(target / "checkpoint")
    shutil.copytree(source / "checkpoint", target / "checkpoint")


SWAPS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"seed": 1}, {"seed": 0}),
    ({"host": "lwf"}, {"host": "lwf-mc"}),
    ({"host": "der"}, {"host": "der++"}),
    ({"host": "icarl"}, {"host": "wa"}),
    ({"host": "replay"}, {"host": "er"}),
    ({"host": "agem"}, {"host": "er"}),
    ({"training.lr": 0.01}, {"training.lr": 0.02}),
    ({"benchmark.order": [6, 5, 4, 3, 2, 1, 0]}, {"benchmark.order": [0, 1, 2, 3, 4, 5, 6]}),
    ({"host": "icarl"}, {"host": "icarl", "flashback": True}),
    ({"data": "altered"}, {"data": "original"}),
]


@pytest.mark.parametrize(("one", "other"), SWAPS, ids=str)
def test_the_checkpoint_of_another_run_is_refused(
    data: Path, tmp_path: Path, one: dict[str, Any], other: dict[str, Any]
) -> None:
    files = {"original": data, "altered": write_tiny(tmp_path / "altered" / "tiny.npz", shift=1)}
    source, target = (
        stopped(config_of(**{**kind, "data": files[kind.get("data", "original")]}), tmp_path / name)
        for name, kind in (("a", one), ("b", other))
    )
    before = (target / "log.jsonl").read_bytes()
    swap(source, target)
    with pytest.raises(fb.FlashbackError, match=REFUSED):
        fb.resume(target, device="cpu")
    assert not (target / "results.json").exists()
    assert (target / "log.jsonl").read_bytes() == before


def test_the_data_of_an_unfinished_run_do_not_change(data: Path, tmp_path: Path) -> None:
    target = stopped(config_of(data), tmp_path / "run")
    write_tiny(data, shift=1)
    with pytest.raises(fb.FlashbackError, match=r"the data have changed since the run in .* began; start a new run"):
        fb.resume(target, device="cpu")


@pytest.mark.parametrize("version", [None, 1, 3])
def test_the_checkpoint_of_another_version_is_refused(data: Path, tmp_path: Path, version: int | None) -> None:
    folder = stopped(config_of(data), tmp_path / "run")
    for manifest in (folder / "checkpoint").glob("*.json"):
        values = json.loads(manifest.read_text())["values"]
        if version is None:  # as before checkpoints had versions
            del values["format"], values["run"]
        else:
            values["format"] = version
        sign(manifest, values)
    with pytest.raises(fb.FlashbackError, match=r"was written by another version of flashback; start the run in ano"):
        fb.resume(folder, device="cpu")


def test_a_finished_run_is_not_made_from_the_checkpoint_of_another(data: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        fb.run(config_of(data, seed=seed), out=tmp_path / str(seed), device="cpu")
    swap(tmp_path / "1", tmp_path / "0")
    for after_tasks in (None, 1):
        with pytest.raises(fb.FlashbackError, match=REFUSED):
            fb.load_trained(tmp_path / "0", device="cpu", after_tasks=after_tasks)
    (tmp_path / "0" / "results.json").unlink()
    with pytest.raises(fb.FlashbackError, match=REFUSED):
        fb.resume(tmp_path / "0", device="cpu")


@pytest.mark.parametrize("change", [{"seed": 5}, {"training": {"lr": 0.5}}, {"host": {"name": "joint"}}], ids=str)
def test_an_edited_configuration_does_not_go_on(data: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    folder = stopped(config_of(data), tmp_path / "run")
    path = folder / "config.yaml"
    values = yaml.safe_load(path.read_text())
    for key, value in change.items():
        values[key] = {**values[key], **value} if isinstance(value, dict) else value
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(fb.FlashbackError, match=REFUSED):
        fb.resume(folder, device="cpu")


def test_when_it_is_saved_may_change(data: Path, tmp_path: Path) -> None:
    whole = fb.run(config_of(data), device="cpu")
    folder = stopped(config_of(data), tmp_path / "run")
    values = yaml.safe_load((folder / "config.yaml").read_text())
    values["checkpoint"] |= {"minutes": 7.0, "tasks": False}
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    assert fb.resume(folder, device="cpu").as_dict() == whole.as_dict()


def test_the_data_may_lie_elsewhere(data: Path, tmp_path: Path) -> None:
    folder = stopped(config_of(data), tmp_path / "run")
    (tmp_path / "moved").mkdir()
    data.rename(tmp_path / "moved" / "tiny.npz")
    assert fb.run(config_of(tmp_path / "moved" / "tiny.npz"), out=folder, device="cpu").steps


def test_the_cached_first_task_of_other_settings_is_trained_again(data: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    for name, seed in (("a", 0), ("b", 1)):
        fb.run(config_of(data, "icarl", seed=seed), out=tmp_path / name, device="cpu", first_tasks=shared)
    one, other = sorted(shared.iterdir())
    one.rename(shared / "aside")
    other.rename(one)
    (shared / "aside").rename(other)
    expected = fb.run(config_of(data, "icarl", flashback=True), device="cpu")
    with pytest.warns(UserWarning, match="holds the first task of another run; it is trained again"):
        result = fb.run(config_of(data, "icarl", flashback=True), out=tmp_path / "c", device="cpu", first_tasks=shared)
    assert result.as_dict() == expected.as_dict()


# ---------------------------------------------------------------- what decides rounding

OTHER_INSTRUCTIONS = """
import sys
import flashback as fb
fb.resume(sys.argv[1], device="cpu")
"""


def test_a_record_names_instructions_threads_and_libraries(data: Path, tmp_path: Path) -> None:
    folder = stopped(config_of(data), tmp_path / "run")
    must_match = json.loads((folder / "run.json").read_text())["must_match"]
    assert must_match["instructions"] == torch.backends.cpu.get_cpu_capability()
    assert must_match["threads"] == 1
    assert must_match["blas"]


def test_a_record_of_a_gpu_names_it_and_its_libraries(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU of a test")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91000)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    config = config_of(data)
    must_match = describe(config, open_benchmark(config), torch.device("cuda"), "fp32")["must_match"]
    assert {"device": "GPU of a test", "cuda": "12.8", "cudnn": 91000, "portion": "100"}.items() <= must_match.items()
    assert {"torch", "numpy", "python", "precision"} <= must_match.keys()


@pytest.mark.slow
def test_other_cpu_instructions_are_noticed(data: Path, tmp_path: Path) -> None:
    folder = stopped(config_of(data), tmp_path / "run")
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", OTHER_INSTRUCTIONS, str(folder)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "continues in another environment (instructions)" in ended.stderr
    assert json.loads((folder / "run.json").read_text())["changed_on_resume"] == ["instructions"]
