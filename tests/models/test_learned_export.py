"""An exported model that goes on learning gives the answers of `predict`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from flashback.conformance import short_settings
from flashback.hosts import HOSTS
from flashback.models.export import onnx_runner
from flashback.models.learner import Learner

EACH = [
    pytest.param(name, marks=() if name == "replay" else pytest.mark.slow) for name in ("replay", "icarl", "er", "ewc")
]


@pytest.mark.parametrize("host", EACH)
def test_the_answers_are_those_of_predict(host: str, pictures: Path, tmp_path: Path) -> None:
    settings = {**short_settings(HOSTS[host]), "training.epochs": 3, "training.batch_size": 8}
    model = Learner.create(tmp_path / "model", host=host, settings=settings)
    for names in (("apple", "bolt"), ("cup",)):
        batch = [
            (np.asarray(Image.open(file)), name) for name in names for file in (pictures / "train" / name).glob("*")
        ]
        model.learn({name: np.stack([pixels for pixels, label in batch if label == name]) for name in names})
    predictions = model.predict(pictures / "test", top=3)
    paths = list(dict.fromkeys(row.path for row in predictions))
    images = torch.from_numpy(np.stack([np.asarray(Image.open(path)).transpose(2, 0, 1) for path in paths]))
    model.export(tmp_path / "model.pt2")
    answers = [torch.export.load(tmp_path / "model.pt2").module()(images).detach()]
    if all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))):
        model.export(tmp_path / "model.onnx")
        answers.append(onnx_runner((tmp_path / "model.onnx").read_bytes())(images))
    classes = ["apple", "bolt", "cup"]
    for probabilities in answers:
        for row in predictions:
            value = float(probabilities[paths.index(row.path), classes.index(row.class_name)])
            assert value == pytest.approx(row.probability, abs=1e-4)
