"""CKA of trained networks, read from their run folders alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from flashback import configure, run
from flashback.errors import FlashbackError
from flashback.metrics import linear_cka
from flashback.training.similarity import compare_representations, layers_of, load_trained, recorded

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
    found = compare_representations(runs["host"], runs["flashback"], runs["joint"], device="cpu", out=tmp_path)
    assert json.loads((tmp_path / "cka.json").read_text()) == found
    for part in ("old", "new"):
        for arm in ("host", "flashback"):
            assert len(found[part][arm]) == len(found["layers"]) == 2
            assert all(0 < value < 1 for value in found[part][arm])
    assert found["new"]["host"] != found["new"]["flashback"]


def test_a_network_is_like_itself(runs: dict[str, Path]) -> None:
    found = compare_representations(runs["joint"], runs["host"], runs["joint"], device="cpu")
    assert found["old"]["host"] == pytest.approx([1.0, 1.0])


def test_values_agree_with_the_direct_computation(runs: dict[str, Path]) -> None:
    found = compare_representations(runs["host"], runs["flashback"], runs["joint"], device="cpu")
    outputs = []
    for name in ("host", "joint"):
        host = load_trained(runs[name], device="cpu").eval()
        images = host.benchmark.tasks[-1].test.x
        with torch.no_grad(), recorded(layers_of(host)) as layers:
            host.scores(host.views.plain(images))
        outputs.append(layers)
    direct = [linear_cka(outputs[0][layer], outputs[1][layer]) for layer in found["layers"]]
    assert found["new"]["host"] == pytest.approx(direct)


def test_a_loaded_network_predicts_as_it_did(runs: dict[str, Path]) -> None:
    from flashback import evaluate

    results = json.loads((runs["flashback"] / "results.json").read_text())
    host = load_trained(runs["flashback"], device="cpu")
    row = evaluate(host, host.benchmark.tasks)["linear"]["class_incremental"]
    assert row == results["class_incremental"]["matrix"][-1]


def test_what_cannot_be_compared_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(FlashbackError, match="not a run record"):
        compare_representations(tmp_path, runs["flashback"], runs["joint"], device="cpu")
    other = tmp_path / "other"
    run(configure("joint", settings={**SETTINGS, "benchmark.tasks": 3}), out=other, device="cpu")
    with pytest.raises(FlashbackError, match="other tasks"):
        compare_representations(runs["host"], runs["flashback"], other, device="cpu")
