"""What a run leaves on disk: written whole, read back the same, refused where it does not fit."""

from __future__ import annotations

import errno
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import flashback
from flashback import FlashbackError, RunConfig, configure
from flashback.config import to_dict
from flashback.files import write_atomically
from flashback.hosts import HOSTS
from flashback.recipes import config_from_dict
from flashback.records import RunFolder, differing_keys, read_config, read_record
from flashback.training import resume
from flashback.training.trainer import Position
from helpers import QUICK, tiny_benchmark

CONFIG: dict[str, Any] = {"host": {"name": "icarl", "memory_size": 14}, "training": {"lr": 0.1, "milestones": [0.5]}}


# ---------------------------------------------------------------- files


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "text")
    write_atomically(path, b"bytes")
    assert path.read_bytes() == b"bytes"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_what_cannot_be_written_leaves_the_old_file_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")

    def fails(*_: Any) -> None:
        raise OSError

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OSError):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


# ---------------------------------------------------------------- folders


def finished(path: Path) -> RunFolder:
    folder = RunFolder.open(path, CONFIG)
    folder.finish({"steps": 3}, {"class_incremental": {"matrix": [[50.0]]}})
    return folder


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    finished(tmp_path / "some" / "run")
    record = read_record(tmp_path / "some" / "run")
    assert record.config == CONFIG
    assert record.run["steps"] == 3
    assert record.results == {"class_incremental": {"matrix": [[50.0]]}}


def test_results_of_another_run_are_refused(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    other = (folder.path / "results.json").read_text().replace("50.0", "60.0")
    (folder.path / "results.json").write_text(other)
    with pytest.raises(FlashbackError, match=r"results\.json was changed, or belongs to another run$"):
        read_record(tmp_path)


def test_a_finished_run_is_not_overwritten(tmp_path: Path) -> None:
    finished(tmp_path)
    with pytest.raises(FlashbackError, match="already holds a finished run"):
        RunFolder.open(tmp_path, CONFIG)


def test_an_unfinished_run_of_the_same_configuration_is_opened_again(tmp_path: Path) -> None:
    RunFolder.open(tmp_path, CONFIG)
    before = (tmp_path / "config.yaml").read_bytes()
    RunFolder.open(tmp_path, CONFIG)
    assert (tmp_path / "config.yaml").read_bytes() == before


def test_an_unfinished_run_of_another_configuration_is_refused_by_its_keys(tmp_path: Path) -> None:
    RunFolder.open(tmp_path, CONFIG)
    other = {"host": {"name": "icarl", "memory_size": 15}, "training": {"lr": 0.1, "milestones": [0.6]}, "seed": 1}
    with pytest.raises(FlashbackError, match=r"\(differs in host.memory_size, seed, training.milestones\)"):
        RunFolder.open(tmp_path, other)
    other = {**CONFIG, "checkpoint": {"minutes": 1}}
    RunFolder.open(tmp_path, other, lambda config: {key: config[key] for key in CONFIG})


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(FlashbackError, match="cannot be used as a folder"):
            RunFolder.open(path, CONFIG)


@pytest.mark.parametrize("missing", ["config.yaml", "run.json", "results.json"])
def test_a_record_with_a_missing_file_is_refused(tmp_path: Path, missing: str) -> None:
    finished(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(FlashbackError, match=f"is not a run record: {missing} is missing"):
        read_record(tmp_path)


@pytest.mark.parametrize("broken", ["config.yaml", "run.json", "results.json"])
@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe", b"[" * 1200, b"3"])
def test_a_broken_record_is_refused_in_one_sentence(tmp_path: Path, broken: str, content: bytes) -> None:
    finished(tmp_path)
    (tmp_path / broken).write_bytes(content)
    with pytest.raises(FlashbackError, match=broken) as caught:
        read_record(tmp_path)
    assert "\n" not in str(caught.value)


def test_one_process_per_folder(tmp_path: Path) -> None:
    one, other = RunFolder.open(tmp_path, CONFIG), RunFolder.open(tmp_path, CONFIG)
    with one.lock(), pytest.raises(FlashbackError, match="another process is training"), other.lock():
        pass
    with other.lock():
        pass


def test_the_log_can_go_back(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path, CONFIG)
    assert folder.log_size() == 0
    folder.log({"event": "task", "task": 0})
    size = folder.log_size()
    folder.log({"event": "stage", "task": 0})
    folder.cut_log(size)
    folder.log({"event": "epoch", "task": 0})
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["task", "epoch"]
    assert all(event["time"] > 0 for event in events)


# ---------------------------------------------------------------- configurations side by side


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({}, {}, []),
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": 1}, {"a": 2}, ["a"]),
        ({"a": {"b": 1, "c": [1, 2]}}, {"a": {"b": 1, "c": [1, 3]}}, ["a.c"]),
        ({"a": {"b": 1}}, {"a": 1}, ["a", "a.b"]),
        ({"z": {"y": 1}, "a": 1}, {}, ["a", "z.y"]),
        ({"a": None}, {}, []),  # what is not set has no value
    ],
)
def test_differing_keys(first: dict[str, Any], second: dict[str, Any], expected: list[str]) -> None:
    assert differing_keys(first, second) == expected
    assert differing_keys(second, first) == expected


def test_ignored_sections_do_not_differ() -> None:
    first, second = {"a": {"b": 1}, "ab": 1}, {"a": {"b": 2}, "ab": 2}
    assert differing_keys(first, second, ignored=["a"]) == ["ab"]


def test_the_configurations_of_all_hosts_go_through_the_folder(tmp_path: Path) -> None:
    for name in HOSTS:
        config = RunConfig(host=HOSTS[name].Settings(name=name))
        RunFolder.open(tmp_path / name, to_dict(config))
        assert config_from_dict(read_config(tmp_path / name)) == config


# ---------------------------------------------------------------- whole runs


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """The tiny benchmark's images as a file of arrays."""
    benchmark = tiny_benchmark((2, 2), per_class=6)
    arrays: dict[str, Any] = {}
    for part in ("train", "test"):
        images = [getattr(task, part) for task in benchmark.tasks]
        arrays[f"x_{part}"] = np.concatenate([i.x.permute(0, 2, 3, 1).numpy() for i in images])
        arrays[f"y_{part}"] = np.concatenate([i.y.numpy() for i in images])
    path = tmp_path / "tiny.npz"
    np.savez(path, **arrays)
    return path


def config_for(dataset: Path, **settings: Any) -> RunConfig:
    overrides = {"benchmark.sizes": [2, 2], "host.memory_size": 8, **QUICK, **settings}
    return configure("icarl", str(dataset), flashback=True, settings=overrides)


def test_a_run_leaves_a_record_that_starts_the_same_run_again(dataset: Path, tmp_path: Path) -> None:
    config = config_for(dataset)
    result = flashback.run(config, out=tmp_path / "first", device="cpu")
    record = read_record(tmp_path / "first")
    assert record.results == json.loads(json.dumps(result.as_dict()))
    assert config_from_dict(record.config) == config
    assert record.run["steps"] == result.steps == sum(entry["steps"] for entry in record.run["budget"])
    assert 0 < record.run["knowledge_bytes"]["plastic"] <= record.run["knowledge_bytes"]["stable"]
    assert record.run["equal_budget"] is True
    assert record.run["task_sizes"] == [2, 2]
    assert record.run["class_order"] == [0, 1, 2, 3]
    again = flashback.run(config_from_dict(record.config), out=tmp_path / "again", device="cpu")
    assert again.as_dict() == result.as_dict()
    assert (tmp_path / "again" / "results.json").read_bytes() == (tmp_path / "first" / "results.json").read_bytes()


def test_an_unequal_budget_is_recorded(dataset: Path, tmp_path: Path) -> None:
    flashback.run(config_for(dataset, **{"flashback.second_epochs": 2}), out=tmp_path / "run", device="cpu")
    assert read_record(tmp_path / "run").run["equal_budget"] is False


def test_a_run_that_stopped_is_gone_on_with(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = flashback.run(config_for(dataset), device="cpu")
    stops = iter([False] * 7 + [True])

    def due(checkpoints: Any, position: Position) -> bool:
        if next(stops, False):
            checkpoints.stopping.set()
            return True
        return False

    monkeypatch.setattr(flashback.training.Checkpoints, "due", due)
    with pytest.raises(flashback.training.Interrupted):
        flashback.run(config_for(dataset), out=tmp_path / "run", device="cpu")
    with pytest.raises(FlashbackError, match="missing"):
        read_record(tmp_path / "run")
    result = resume(tmp_path / "run", device="cpu")
    assert result.as_dict() == whole.as_dict() == read_record(tmp_path / "run").results
    events = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events].count("task") == 2


def test_a_run_of_an_older_version_is_gone_on_with(dataset: Path, tmp_path: Path) -> None:
    """A setting that it did not know has its default."""
    config = config_for(dataset)
    older = to_dict(config)
    del older["training"]["evaluation_batch"]
    RunFolder.open(tmp_path / "run", older)
    flashback.run(config, out=tmp_path / "run", device="cpu")
    RunFolder.open(tmp_path / "other", older)
    changed = config_for(dataset, **{"training.evaluation_batch": 3})
    with pytest.raises(FlashbackError, match=r"differs in training.evaluation_batch"):
        flashback.run(changed, out=tmp_path / "other", device="cpu")


def test_a_finished_run_keeps_one_checkpoint(dataset: Path, tmp_path: Path) -> None:
    config = config_for(dataset, **{"checkpoint.minutes": 0.0})
    flashback.run(config, out=tmp_path / "run", device="cpu")
    assert len(list((tmp_path / "run" / "checkpoint").glob("*.safetensors"))) == 1


def test_a_run_without_room_for_checkpoints_ends_well(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(flashback.training.Checkpoints, "write", no_room)
    with pytest.warns(UserWarning, match="no space for a checkpoint"):
        flashback.run(config_for(dataset), out=tmp_path / "run", device="cpu")
    assert read_record(tmp_path / "run").results


def test_a_run_that_stops_without_room_does_not_claim_to_be_saved(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(checkpoints: Any, *_: Any) -> None:
        checkpoints.stopping.set()
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(flashback.training.Checkpoints, "due", lambda *_: True)
    monkeypatch.setattr(flashback.training.Checkpoints, "write", no_room)
    no_claim = pytest.raises(flashback.training.Interrupted, match="there was no space to save the state")
    with pytest.warns(UserWarning, match="no space for a checkpoint"), no_claim:
        flashback.run(config_for(dataset), out=tmp_path / "run", device="cpu")


def test_a_run_on_other_data_is_not_gone_on_with(dataset: Path, tmp_path: Path) -> None:
    config = config_for(dataset)
    folder = RunFolder.open(tmp_path / "run", to_dict(config))
    folder.write_run({"data_checksum": "another"})
    with pytest.raises(FlashbackError, match="the data have changed"):
        flashback.run(config, out=tmp_path / "run", device="cpu")


def test_config_yaml_is_plain(dataset: Path, tmp_path: Path) -> None:
    RunFolder.open(tmp_path / "run", to_dict(config_for(dataset)))
    text = (tmp_path / "run" / "config.yaml").read_text()
    assert "!!" not in text
    assert yaml.safe_load(text)["benchmark"]["sizes"] == [2, 2]


@pytest.mark.parametrize(
    ("setting", "used"), [("", "smallcnn"), pytest.param("resnet32", "resnet32", marks=pytest.mark.slow)]
)
def test_a_run_names_its_network_whoever_chose_it(setting: str, used: str, tmp_path: Path) -> None:
    settings = {"benchmark.tasks": 1, "training.epochs": 1, "training.batch_size": 200, "host.net": setting}
    flashback.run(configure("finetune", settings=settings), out=tmp_path / "run", device="cpu")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["net"] == used


def test_several_may_write_the_same_file(tmp_path: Path) -> None:
    contents = [str(k) * 1000 for k in range(4)]

    def write(content: str) -> None:
        for _ in range(50):
            write_atomically(tmp_path / "file", content)

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, contents))
    assert (tmp_path / "file").read_text() in contents
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_a_killed_process_left_half_written_is_removed(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path / "run", {"seed": 0})
    (tmp_path / "run" / ".0123abcd.run.json.part").touch()
    (tmp_path / "run" / "of somebody else.part").touch()
    with folder.lock():
        pass
    assert [path.name for path in (tmp_path / "run").glob("*.part")] == ["of somebody else.part"]
