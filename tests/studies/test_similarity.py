"""CKA of trained networks, read from their run folders alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from flashback import configure, run
from flashback.errors import FlashbackError
from flashback.metrics import linear_cka
from flashback.nets.small import SmallCNN
from flashback.studies.similarity import compare_representations, layer_similarity, layers_of, output_of
from flashback.training import Trainer
from flashback.training.running import load_trained
from helpers import quick_host, small_settings, write_tiny

SETTINGS: dict[str, Any] = {
    "training.epochs": 2,
    "training.batch_size": 100,
    "benchmark.tasks": 2,
    "flashback.epochs": 1,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    for name, host, flashback in (("host", "lwf-mc", False), ("flashback", "lwf-mc", True), ("joint", "joint", False)):
        run(configure(host, flashback=flashback, settings=SETTINGS), out=root / name, device="cpu")
    return {path.name: path for path in root.iterdir()}


def test_both_arms_are_compared_with_the_reference(runs: dict[str, Path], tmp_path: Path) -> None:
    similarity = compare_representations(runs["host"], runs["flashback"], runs["joint"], device="cpu", out=tmp_path)
    assert json.loads((tmp_path / "cka.json").read_text()) == similarity
    for part in ("old", "new"):
        for arm in ("host", "flashback"):
            assert len(similarity[part][arm]) == len(similarity["layers"]) == 2
            assert all(0 < value < 1 for value in similarity[part][arm])
    assert (similarity["host"], similarity["reference"]) == ("lwf-mc", "joint")
    assert similarity["seeds"] == {"host": 0, "flashback": 0, "reference": 0}
    assert similarity["folders"] == {"host": "host", "flashback": "flashback", "reference": "joint"}
    assert similarity["new"]["host"] != similarity["new"]["flashback"]


def test_both_arms_as_they_were_after_some_tasks(tmp_path: Path) -> None:
    path, settings = (
        str(write_tiny(tmp_path / "tiny.npz")),
        {**SETTINGS, "benchmark.tasks": 3, "checkpoint.tasks": True},
    )
    for name, host in (("host", "lwf-mc"), ("flashback", "lwf-mc"), ("joint", "joint")):
        config = configure(host, path, flashback=name == "flashback", settings={**settings, "benchmark.sizes": "2+3+2"})
        run(config, out=tmp_path / name, device="cpu")
    folders = [tmp_path / name for name in ("host", "flashback", "joint")]
    similarity, last = (compare_representations(*folders, device="cpu", after_tasks=tasks) for tasks in (2, None))
    assert similarity["host"] == "lwf-mc after 2 tasks"
    joint, earlier = load_trained(folders[2], device="cpu"), load_trained(folders[0], device="cpu", after_tasks=2)
    tasks = joint.benchmark.tasks
    assert similarity["old"]["host"] == layer_similarity(earlier, joint, [tasks[0].test])
    assert similarity["new"]["host"] == layer_similarity(earlier, joint, [tasks[1].test])
    assert similarity["new"] != last["new"]
    with pytest.raises(FlashbackError, match="at least two tasks"):
        compare_representations(*folders, device="cpu", after_tasks=1)


def test_a_network_that_names_no_layers_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(SmallCNN, "last_stage_layers")
    with pytest.raises(
        FlashbackError, match=r"^CKA compares layers, but the network SmallCNN does not name any; .*\(\)"
    ):
        layers_of(quick_host("finetune"))


@pytest.mark.slow
def test_data_of_ones_own_are_the_same_by_any_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_tiny(tmp_path / "data" / "tiny.npz")
    write_tiny(tmp_path / "other" / "tiny.npz", shift=1)
    settings = {**SETTINGS, "benchmark.sizes": [2, 5], "training.epochs": 2}
    for name, host, benchmark in (
        ("host", "lwf-mc", "data/tiny.npz"),
        ("flashback", "lwf-mc", str(path)),
        ("joint", "joint", "./data/tiny.npz"),
        ("stranger", "lwf-mc", "other/tiny.npz"),
    ):
        run(configure(host, benchmark, flashback=name == "flashback", settings=settings), out=name, device="cpu")
    similarity = compare_representations("host", "flashback", "joint", device="cpu")
    assert similarity["new"]["host"] != similarity["new"]["flashback"]
    with pytest.raises(FlashbackError, match="the runs were made on other data"):
        compare_representations("stranger", "flashback", "joint", device="cpu")


def test_a_network_is_like_itself(runs: dict[str, Path]) -> None:
    joint = load_trained(runs["joint"], device="cpu")
    images = [joint.benchmark.tasks[0].test]
    assert layer_similarity(joint, joint, images) == pytest.approx([1.0, 1.0])


def test_values_agree_with_the_direct_computation(runs: dict[str, Path]) -> None:
    similarity = compare_representations(runs["host"], runs["flashback"], runs["joint"], device="cpu")
    outputs = []
    for name in ("host", "joint"):
        host = load_trained(runs[name], device="cpu").eval()
        images = host.benchmark.tasks[-1].test.x
        layers = {}
        for layer, module in layers_of(host).items():
            with torch.no_grad():
                layers[layer] = output_of(module, host, images)
        outputs.append(layers)
    direct = [linear_cka(outputs[0][layer], outputs[1][layer]) for layer in similarity["layers"]]
    assert similarity["new"]["host"] == pytest.approx(direct)


def test_a_loaded_network_predicts_as_it_did(runs: dict[str, Path]) -> None:
    from flashback import evaluate

    results = json.loads((runs["flashback"] / "results.json").read_text())
    host = load_trained(runs["flashback"], device="cpu")
    assert not any(module.training for module in host.modules())
    row = evaluate(host, host.benchmark.tasks)["linear"]["class_incremental"]
    assert row == results["class_incremental"]["matrix"][-1]


def test_what_cannot_be_compared_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(FlashbackError, match="not a run record"):
        compare_representations(tmp_path, runs["flashback"], runs["joint"], device="cpu")
    other = tmp_path / "other"
    run(configure("joint", flashback=False, settings={**SETTINGS, "benchmark.tasks": 3}), out=other, device="cpu")
    with pytest.raises(FlashbackError, match="other tasks"):
        compare_representations(runs["host"], runs["flashback"], other, device="cpu")


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (("flashback", "host", "joint"), "flashback was trained with flashback; the first run is the host alone"),
        (("host", "host", "joint"), "host was trained without flashback; the second run is the same host with it"),
        (("joint", "flashback", "joint"), "have the hosts joint and lwf-mc; CKA needs the same host"),
        (("host", "flashback", "host"), "is a run of lwf-mc, which learns task by task; the reference is one that saw"),
    ],
)
def test_every_run_has_its_place(runs: dict[str, Path], names: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(FlashbackError, match=sentence):
        compare_representations(*(runs[name] for name in names), device="cpu")


def with_settings(run: Path, folder: Path, **changes: Any) -> Path:
    """A copy of a run whose record says otherwise."""
    shutil.copytree(run, folder)
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    (folder / "config.yaml").write_text(yaml.safe_dump(config | changes), encoding="utf-8")
    return folder


def test_another_seed_is_told(runs: dict[str, Path], tmp_path: Path) -> None:
    run(configure("lwf-mc", flashback=False, seed=1, settings=SETTINGS), out=tmp_path / "other", device="cpu")
    with pytest.warns(UserWarning, match="have the seeds 1 and 0: they differ by more than flashback"):
        similarity = compare_representations(tmp_path / "other", runs["flashback"], runs["joint"], device="cpu")
    assert similarity["seeds"] == {"host": 1, "flashback": 0, "reference": 0}


@pytest.mark.slow
def test_a_host_that_predicts_with_several_modules_is_refused() -> None:
    for name, refused in (("beef", True), ("beef-compress", False), ("foster", False)):
        host = quick_host(name, **small_settings(name))
        Trainer(host, host.benchmark).run()
        if refused:
            with pytest.raises(FlashbackError, match="beef predicts with several modules"):
                layers_of(host)
        else:
            assert all(layer in host.compression.student.modules() for layer in layers_of(host).values())


@pytest.mark.parametrize("changes", [{"validation": 0.3}, {"validation": 0.3, "seed": 1}])
def test_runs_that_hold_out_other_images_are_refused(
    runs: dict[str, Path], tmp_path: Path, changes: dict[str, Any]
) -> None:
    """CKA would look at training images of some of them."""
    config = yaml.safe_load((runs["joint"] / "config.yaml").read_text(encoding="utf-8"))
    benchmark = config["benchmark"] | {"validation": 0.3}
    folders = [runs["host"], runs["flashback"]]
    if "seed" in changes:
        folders = [with_settings(run, tmp_path / run.name, benchmark=benchmark) for run in folders]
    other = with_settings(runs["joint"], tmp_path / "other", benchmark=benchmark, seed=changes.get("seed", 0))
    with pytest.raises(FlashbackError, match="hold out other images for validation"):
        compare_representations(*folders, other, device="cpu")
