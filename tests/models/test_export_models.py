"""An exported model gives the answers of `predict_files`, in a process that cannot import this package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import flashback as fb
from flashback.batches import augment
from flashback.hosts import HOSTS
from flashback.models import export
from helpers import lacking, quick_host, tiny_benchmark

FAMILIES = ("icarl", "lwf", "lucir", "podnet", "der++", "ewc", "foster", "der-expansion", "beef", "ranpac", "dytox")
ONNX = ("onnx", "onnxscript", "onnxruntime")
EACH_FAMILY = [pytest.param(name, marks=() if name == "icarl" else pytest.mark.slow) for name in FAMILIES]

ELSEWHERE = """
import json, sys
sys.modules["flashback"] = None  # importing it raises an ImportError
import numpy as np

file, pixels, answers = sys.argv[1:]
images = np.load(pixels)
if file.endswith(".pt2"):
    import torch

    extra = {"metadata.json": ""}
    module = torch.export.load(file, extra_files=extra).module()
    metadata = json.loads(extra["metadata.json"])
    with torch.no_grad():
        probabilities = module(torch.from_numpy(images)).numpy()
else:
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    metadata = {key: json.loads(value) for key, value in session.get_modelmeta().custom_metadata_map.items()}
    assert [entry.name for entry in session.get_inputs()] == ["images"]
    (probabilities,) = session.run(["probabilities"], {"images": images})
with open(answers, "w") as stream:
    json.dump({"metadata": metadata, "probabilities": probabilities.tolist()}, stream)
"""


def run_elsewhere(file: Path, images: np.ndarray, folder: Path) -> dict[str, Any]:
    np.save(folder / "pixels.npy", images)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    answers = folder / "answers.json"
    command = [sys.executable, "-c", ELSEWHERE, str(file), str(folder / "pixels.npy"), str(answers)]
    subprocess.run(command, check=True, cwd=folder, env=environment)
    result: dict[str, Any] = json.loads(answers.read_text())
    return result


@pytest.mark.parametrize("ending", [".pt2", ".onnx"])
@pytest.mark.parametrize("host", EACH_FAMILY)
def test_the_answers_are_those_of_predict(
    host: str, ending: str, finished: Callable[[str], Path], pictures: Path, tmp_path: Path
) -> None:
    if ending == ".onnx" and not all(map(find_spec, ONNX)):
        lacking(", ".join(ONNX))
    model = fb.load_model(finished(host), "cpu")
    file = fb.export_model(model, tmp_path / f"model{ending}")
    predictions = fb.predict_files(model, pictures / "test", top=5)
    paths = list(dict.fromkeys(row.path for row in predictions))
    images = np.stack([np.asarray(Image.open(path)).transpose(2, 0, 1) for path in paths])
    result = run_elsewhere(file, images, tmp_path)
    metadata, probabilities = result["metadata"], result["probabilities"]
    assert metadata["class_names"] == list(model.class_names)
    assert (metadata["image_size"], metadata["channels"]) == ([12, 12], 3)
    assert metadata["normalisation"]["mean"] == list(model.host.views.mean)
    assert len(probabilities) == len(paths)
    for row in predictions:
        column = metadata["class_names"].index(row.class_name)
        assert probabilities[paths.index(row.path)][column] == pytest.approx(row.probability, abs=1e-4)


def test_the_last_layer_would_give_other_answers(model: fb.Model) -> None:
    raw = torch.cat([task.test.x[:] for task in model.host.benchmark.tasks])
    with torch.no_grad():
        default, linear = (model.host.as_module(name)(raw).softmax(1) for name in (None, "linear"))
    assert (default - linear).abs().max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in HOSTS if HOSTS[name].__module__.startswith("flashback.")])
def test_every_host_can_be_exported(name: str, finished: Callable[[str], Path], tmp_path: Path) -> None:
    fb.export_model(finished(name), tmp_path / "model.pt2")


def test_an_export_leaves_the_host_as_it_was(finished: Callable[[str], Path], tmp_path: Path) -> None:
    model = fb.load_model(finished("icarl"), "cpu")
    augment.constant.cache_clear()  # as in a process that has not predicted yet
    fb.export_model(model, tmp_path / "model.pt2")
    torch.export.export(model.host.as_module(), (torch.zeros(2, 3, 12, 12, dtype=torch.uint8),))
    columns = model.host.predict(model.host.benchmark.tasks[0].test)
    assert type(columns) is torch.Tensor
    assert len(columns.tolist()) == 10


def test_any_classifier_becomes_a_module() -> None:
    host = quick_host("foster", tiny_benchmark((2, 3)))
    fb.train(host)
    raw = host.benchmark.tasks[1].test.x
    for name in host.classifiers():
        with torch.no_grad():
            scores = host.as_module(name)(raw)
        assert torch.equal(scores.argmax(1), host.predict(raw, name))
    with pytest.raises(fb.FlashbackError, match=r"unknown classifier 'teecher'; did you mean 'teacher'\?"):
        host.as_module("teecher")


@pytest.mark.parametrize("name", ["model.pt", "model", "model.ONNX.zip"])
def test_another_ending_is_refused(model: fb.Model, tmp_path: Path, name: str) -> None:
    with pytest.raises(fb.FlashbackError, match=r"names no format to export to; use \.onnx or \.pt2"):
        fb.export_model(model, tmp_path / name)


def test_a_missing_package_is_named(model: fb.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(fb.FlashbackError, match=r"exporting to \.onnx needs onnx; install it with .*\[onnx\]"):
        fb.export_model(model, tmp_path / "model.onnx")


def test_a_network_that_cannot_be_exported_is_one_sentence(
    model: fb.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Deciding(nn.Module):
        def forward(self, raw: torch.Tensor) -> torch.Tensor:
            return raw.float().mean((2, 3)) if raw.float().mean() > 1 else raw.float().amax((2, 3))

    monkeypatch.setattr(fb.Model, "probabilities", lambda model: Deciding())
    with pytest.raises(fb.FlashbackError, match=r"^this network cannot be exported"):
        fb.export_model(model, tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


def test_a_file_with_other_answers_is_not_written(
    model: fb.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: Any) -> tuple[bytes, Callable[[torch.Tensor], torch.Tensor]]:
        return b"wrong", lambda images: torch.zeros(len(images), 5)

    monkeypatch.setitem(export.WRITERS, ".pt2", wrong)
    with pytest.raises(fb.FlashbackError, match="the exported model differs from this one by"):
        fb.export_model(model, tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())
