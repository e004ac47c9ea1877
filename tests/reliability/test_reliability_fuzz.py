"""Anything at all in a configuration, a checkpoint or a record: taken as it is meant, or refused in one sentence."""

from __future__ import annotations

import copy
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import storm
import torch
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from reliability_runs import begin, sign

import flashback
from flashback import FlashbackError
from flashback.benchmarks import load_benchmark
from flashback.cli.learning import history_row
from flashback.config import CheckpointConfig, RunConfig, to_dict
from flashback.hosts import HOSTS
from flashback.models.learner import Learner
from flashback.plain_yaml import read_yaml
from flashback.recipes import config_from_dict
from flashback.records import RunFolder, read_config, read_record
from flashback.records.terms import FLASHBACK, HOST
from flashback.results.reading import Runs, read_into
from flashback.studies.comparison import conclude
from flashback.studies.jobs import Job, RunContext
from flashback.training import Checkpoints, Trainer, build_method

pytestmark = pytest.mark.slow
QUICK = settings(max_examples=int(os.environ.get("EXAMPLES", "60")), suppress_health_check=list(HealthCheck))
odd = st.sampled_from(  # the first is too large for 32 bits, and as a size for the memory of any machine
    [2**45, 2**62, 2**63, -(2**63), 2**80, 1e308, 1e-320, float("nan"), float("inf"), -0.0, "", "\0", "𝕏"]
)
leaves = st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.text(max_size=8) | odd
values = st.recursive(
    leaves, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3), max_leaves=8
)


def paths(tree: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in nested mappings and lists."""
    if before:
        yield before
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in entries:
        yield from paths(value, (*before, key))


@st.composite
def changed(draw: st.DrawFn, tree: Any) -> Any:
    """The same tree with something else, or nothing, in a place or two."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 2))):
        *parents, last = draw(st.sampled_from(sorted(paths(tree), key=str) or [("x",)]))
        place = tree
        for key in parents:
            place = place[key]
        if isinstance(place, dict) and draw(st.booleans()) and draw(st.booleans()):
            place.pop(last, None)
        else:
            place[last] = draw(values)
    return tree


@contextmanager
def or_one_sentence() -> Iterator[None]:
    """Anything but success or a FlashbackError fails the test."""
    try:
        yield
    except FlashbackError as error:
        sentence = str(error)
    else:
        return
    assert "\n" not in sentence
    assert 0 < len(sentence) < 2000


# ---------------------------------------------------------------- configurations


def assert_usable(config: RunConfig, folder: Path) -> None:
    """A configuration that was not refused can be written, and starts the same run again."""
    shutil.rmtree(folder, ignore_errors=True)
    RunFolder.open(folder, to_dict(config))
    assert config_from_dict(read_config(folder)) == config


@QUICK
@given(text=st.text(max_size=60) | st.binary(max_size=60).map(lambda raw: raw.decode("latin1")))
@example(text="a: &x\n- *x")
@example(text="=")
@example(text="{? {}}")
@example(text="1: 1")
@example(text="host: {name: [icarl]}")
@example(text="host: {name: icarl, 1: 2}")
@example(text="!!omap [a]")
@example(text="!!timestamp x")
@example(text="!!float x")
@example(text="!!int ''")
@example(text="!!bool x")
def test_any_text_as_a_configuration(text: str, tmp_path: Path) -> None:
    with or_one_sentence():
        assert_usable(config_from_dict(read_yaml(text, "x")), tmp_path / "run")


@QUICK
@given(data=st.data(), name=st.sampled_from(sorted(HOSTS)))
def test_any_change_of_a_configuration(data: st.DataObject, name: str, tmp_path: Path) -> None:
    mapping = data.draw(changed(to_dict(RunConfig(host=HOSTS[name].Settings(name=name)))))
    try:
        text = yaml.safe_dump(mapping)
    except (yaml.YAMLError, ValueError):
        return
    with or_one_sentence():
        assert_usable(config_from_dict(read_yaml(text, "x")), tmp_path / "run")


@QUICK
@given(data=st.data(), name=st.sampled_from(["icarl", "der", "foster", "oewc"]))
def test_any_accepted_configuration_builds_or_is_refused(data: st.DataObject, name: str, dataset: Path) -> None:
    base = to_dict(storm.short_run(name, dataset))
    mapping = data.draw(changed({key: base[key] for key in ("host", "benchmark", "training", "flashback", "seed")}))
    with or_one_sentence():
        config = config_from_dict(mapping)
        build_method(config, flashback.training.open_benchmark(config), "cpu")


# ---------------------------------------------------------------- checkpoints


@pytest.fixture(scope="module")
def begun(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("begun") / "run"
    begin(dataset, folder)
    return folder


@QUICK
@given(data=st.data())
def test_any_bytes_in_a_checkpoint(data: st.DataObject, begun: Path, tmp_path: Path) -> None:
    """What comes back is one of the two states that were saved, bit for bit, or nothing; never a third."""
    place = tmp_path / "checkpoint"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(begun / "checkpoint", place)
    saved = [flashback.training.checkpoints.read_checkpoint(path) for path in sorted(place.glob("*.json"))]
    touched = data.draw(st.lists(st.sampled_from(sorted(place.iterdir())), min_size=1, max_size=3, unique=True))
    for path in touched:
        raw = bytearray(path.read_bytes())
        ways = st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255))
        for spot, byte in data.draw(st.lists(ways, min_size=1, max_size=4)):
            raw[spot] = byte
        path.write_bytes(raw[: data.draw(st.just(len(raw)) | st.integers(0, len(raw)))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = Checkpoints(place, CheckpointConfig()).load()
    assert state is None or any(is_same(state, one) for one in saved)


def is_same(one: Any, other: Any) -> bool:
    same = one.tensors.keys() == other.tensors.keys() and one.values == other.values
    return same and all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())


@QUICK
@given(data=st.data())
def test_any_values_in_a_signed_manifest(data: st.DataObject, begun: Path, dataset: Path, tmp_path: Path) -> None:
    """Whoever forges the checksum too gets a run that goes on from where he says, or a sentence."""
    place = tmp_path / "checkpoint"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(begun / "checkpoint", place)
    manifest = sorted(place.glob("*.json"))[-1]
    for other in sorted(place.iterdir())[:2]:
        other.unlink()
    document = json.loads(manifest.read_text())
    sign(manifest, data.draw(changed(document["values"])))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = Checkpoints(place, CheckpointConfig()).load()
    if state is None:
        return
    config = storm.short_run("icarl", dataset)
    benchmark = load_benchmark(str(dataset), sizes=storm.SIZES)
    trainer = Trainer(build_method(config, benchmark, "cpu"), benchmark)
    with or_one_sentence():
        trainer.resume(state)
        trainer.run()


# ---------------------------------------------------------------- records


@pytest.fixture(scope="module")
def finished(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {arm: tmp_path_factory.mktemp("finished") / arm for arm in (HOST, FLASHBACK)}
    for arm, folder in folders.items():
        config = storm.short_run("icarl", dataset)
        config = replace(config, flashback=replace(config.flashback, enabled=arm == FLASHBACK))
        flashback.run(config, out=folder, device="cpu")
    return folders


@QUICK
@given(data=st.data(), name=st.sampled_from(["run.json", "results.json"]), arm=st.sampled_from([HOST, FLASHBACK]))
def test_any_change_of_a_record(
    data: st.DataObject, name: str, arm: str, finished: dict[str, Path], tmp_path: Path
) -> None:
    """Comparisons and reports of it come out, or one sentence does."""
    folders = {HOST: finished[HOST], FLASHBACK: finished[FLASHBACK], arm: tmp_path / "run"}
    shutil.rmtree(folders[arm], ignore_errors=True)
    shutil.copytree(finished[arm], folders[arm], ignore=shutil.ignore_patterns("checkpoint"))
    run = json.loads((folders[arm] / "run.json").read_text())
    del run["results_checksum"]
    (folders[arm] / "run.json").write_text(json.dumps(run))
    document = json.loads((folders[arm] / name).read_text())
    (folders[arm] / name).write_text(json.dumps(data.draw(changed(document))))
    place = RunContext(None, "cpu", None)
    planned = [Job(kind, 0, read_config(folder), folder, place) for kind, folder in folders.items()]
    with or_one_sentence():
        json.dumps(conclude(planned, {}, []).as_dict())
    read_into(Runs(), folders[arm], "run")


@QUICK
@given(content=st.binary(max_size=80), name=st.sampled_from(["config.yaml", "run.json", "results.json"]))
def test_any_bytes_as_a_record(content: bytes, name: str, finished: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(finished[HOST], folder, ignore=shutil.ignore_patterns("checkpoint"))
    (folder / name).write_bytes(content)
    with or_one_sentence():
        read_record(folder)


# ---------------------------------------------------------------- models


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two versions."""
    folder = tmp_path_factory.mktemp("learned") / "model"
    model = Learner.create(folder, settings={"training.epochs": 1, "host.memory_size": 6}, device="cpu")
    for names in (("cup", "fork"), ("spoon",)):
        model.learn(images_of(*names))
    return folder


def images_of(*names: str) -> dict[str, Any]:
    return {name: np.full((4, 12, 12, 3), 20 * len(name), np.uint8) for name in names}


@QUICK
@given(data=st.data(), name=st.sampled_from(["model.json", "current.json", "versions/0001", "versions/0002"]))
def test_any_change_of_a_model(data: st.DataObject, name: str, learned: Path, tmp_path: Path) -> None:
    """Whoever takes the checksum away too gets an answer of the model, or a sentence."""
    folder = tmp_path / "model"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(learned, folder)
    path = folder / name if name.endswith(".json") else folder / name / "version.json"
    document = json.loads(path.read_text())
    document.pop("checksum", None)
    path.write_text(json.dumps(data.draw(changed(document))))
    actions: list[Callable[[Learner], Any]] = [
        lambda model: model.predict(images_of("cup")),
        lambda model: model.learn(images_of("pan")),
        lambda model: model.rollback(2),
        lambda model: [history_row(version, model) for version in model.history()],
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for action in actions:
            with or_one_sentence():
                action(Learner(folder, "cpu"))
