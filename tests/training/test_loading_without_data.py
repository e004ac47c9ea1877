"""A trained host is loaded from its record alone; data are opened when images are looked at, and only then."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import flashback as fb
from flashback.benchmarks.from_record import DATA, benchmark_from_record
from flashback.conformance import short_settings
from flashback.hosts import HOSTS
from flashback.training import running
from helpers import tiny_benchmark, write_tiny

ONE_OF_A_FAMILY = ("icarl", "der++", "oewc", "foster")
EVERY_HOST = [name if name in ONE_OF_A_FAMILY else pytest.param(name, marks=pytest.mark.slow) for name in HOSTS]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path / "tiny.npz")
    return tmp_path


def trained(host: str, flashback: bool = False, **changes: Any) -> fb.TrainingResult:
    settings = {"benchmark.sizes": [2, 3, 2], "benchmark.order": 3, "training.epochs": 1, "flashback.second_epochs": 1}
    config = fb.configure(
        host, "tiny.npz", flashback=flashback, settings={**settings, **short_settings(HOSTS[host]), **changes}
    )
    return fb.run(config, out="out", device="cpu")


@pytest.mark.parametrize("host", EVERY_HOST)
def test_every_host_predicts_without_its_data(here: Path, host: str) -> None:
    trained(host, flashback=HOSTS[host].has_knowledge)
    whole = fb.load_benchmark("tiny.npz", sizes=[2, 3, 2], order=3)
    expected = fb.load_trained("out", device="cpu")
    before = [expected.predict(task.test) for task in whole.tasks]
    (here / "tiny.npz").unlink()
    host_alone = fb.load_trained("out", device="cpu")
    assert [host_alone.predict(task.test).tolist() for task in whole.tasks] == [row.tolist() for row in before]
    assert torch.equal(host_alone.features(whole.tasks[0].test), expected.features(whole.tasks[0].test))


def test_the_benchmark_of_a_record_is_the_one_it_was_made_on(here: Path) -> None:
    trained("finetune", **{"benchmark.tasks": 2})
    whole = fb.load_benchmark("tiny.npz", sizes=[2, 3, 2], order=3, tasks=2)
    (here / "tiny.npz").unlink()
    benchmark = fb.load_trained("out", device="cpu").benchmark
    for name in (
        "name",
        "dataset",
        "order",
        "mean",
        "std",
        "class_names",
        "checksum",
        "image_shape",
        "sizes",
        "classes",
    ):
        assert getattr(benchmark, name) == getattr(whole, name), name
    assert repr(benchmark) == repr(whole)
    for one, other in zip(benchmark.tasks, whole.tasks, strict=True):
        assert (one.index, one.classes, one.before, one.new) == (other.index, other.classes, other.before, other.new)
        assert (len(one.train), len(one.test)) == (len(other.train), len(other.test))


def test_images_are_opened_once_when_they_are_asked_for(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = trained("icarl")
    opened, open_benchmark = list[str](), running.open_benchmark
    monkeypatch.setattr(
        running, "open_benchmark", lambda *arguments: opened.append("once") or open_benchmark(*arguments)
    )
    host = fb.load_trained("out", device="cpu")
    assert opened == []
    row = fb.evaluate(host, host.benchmark)
    assert row[next(iter(row))]["class_incremental"] == result["class_incremental"]["matrix"][-1]
    assert host.predict(host.benchmark.tasks[1].train).shape == host.benchmark.tasks[1].train.y.shape
    assert opened == ["once"]


def test_data_that_are_gone_or_others_are_told_when_they_are_asked_for(here: Path) -> None:
    trained("finetune")
    (here / "tiny.npz").rename(here / "moved.npz")
    host = fb.load_trained("out", device="cpu")
    with pytest.raises(fb.FlashbackError, match=r"there is no file tiny.npz; check the path, or name the folder"):
        fb.evaluate(host, host.benchmark)
    write_tiny(here / "tiny.npz", shift=1)
    with pytest.raises(fb.FlashbackError, match=r"^the data differ from those of the run in out; give the same data"):
        fb.evaluate(host, host.benchmark)
    with pytest.raises(AttributeError):
        _ = host.benchmark.tasks[0].train.z


def change_record(change: Callable[[dict[str, Any]], Any]) -> None:
    path = Path("out/run.json")
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def test_a_record_from_before_needs_its_data(here: Path) -> None:
    trained("finetune")
    change_record(lambda record: record.pop(DATA))
    host = fb.load_trained("out", device="cpu")
    assert host.predict(host.benchmark.tasks[0].test).shape == (12,)
    (here / "tiny.npz").rename(here / "moved.npz")
    with pytest.raises(fb.FlashbackError, match=r"there is no file tiny\.npz"):
        fb.load_trained("out", device="cpu")


def test_the_record_says_what_a_user_would_look_for(here: Path) -> None:
    trained("finetune")
    data = json.loads(Path("out/run.json").read_text())[DATA]
    assert data["image_shape"] == [1, 12, 12]
    assert data["class_names"] == [str(label) for label in fb.load_benchmark("tiny.npz", sizes=[7], order=3).order]
    assert (data["training_images"], data["test_images"]) == ([24, 36, 24], [12, 18, 12])


RECORD = {
    "benchmark": "tiny",
    "class_order": [1, 0, 2],
    "task_sizes": [2, 1],
    "data_checksum": "0123",
    DATA: {
        "dataset": "tiny",
        "image_shape": [1, 4, 4],
        "mean": [0.5],
        "std": [0.25],
        "class_names": ["a", "b", "c"],
        "training_images": [4, 2],
        "test_images": [2, 1],
    },
}


@pytest.mark.parametrize(
    "change",
    [
        {"image_shape": [4, 4]},
        {"image_shape": []},
        {"image_shape": [1, 4, 0]},
        {"image_shape": [3, 4, 4]},
        {"mean": []},
        {"std": [0.0]},
        {"class_names": ["a"]},
        {"training_images": [4]},
        {"test_images": [2, 0]},
        {"sizes": [2, 2]},
        {"sizes": []},
        {"order": [0, 0, 1]},
    ],
)
def test_a_record_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    assert benchmark_from_record(RECORD, tiny_benchmark) is not None
    with pytest.raises(
        fb.FlashbackError, match=r"the entries of run\.json under 'data' contradict each other; it was changed"
    ):
        benchmark_from_record({**RECORD, DATA: {**RECORD[DATA], **change}}, tiny_benchmark)


@settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)
@given(
    place=st.sampled_from([*RECORD, *RECORD[DATA]]),
    value=st.recursive(
        st.none() | st.integers(-2, 4) | st.floats() | st.text(max_size=3), lambda v: st.lists(v, max_size=4)
    ),
)
def test_anything_in_a_record_is_a_benchmark_or_one_sentence(place: str, value: Any) -> None:
    inner = {**RECORD[DATA], **({place: value} if place in RECORD[DATA] else {})}
    record = {**RECORD, DATA: inner, **({place: value} if place in RECORD else {})}
    try:
        benchmark = benchmark_from_record(record, tiny_benchmark)
    except fb.FlashbackError as error:
        sentence = str(error)
    else:
        sentence = repr(benchmark)
    assert sentence
    assert "\n" not in sentence
