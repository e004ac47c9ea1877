"""An exported model that goes on learning gives the answers of `predict`, without this package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_export_models import FAMILIES, ONNX, run_elsewhere

from flashback.conformance import short_settings
from flashback.hosts import HOSTS
from flashback.models.learner import Learner

NAMES = ("replay", "er", "bic", *FAMILIES)
EACH = [pytest.param(name, marks=() if name == "replay" else pytest.mark.slow) for name in NAMES]


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
    images = np.stack([np.asarray(Image.open(path)).transpose(2, 0, 1) for path in paths])
    for ending in (".pt2", *([".onnx"] if all(map(find_spec, ONNX)) else [])):
        model.export(tmp_path / f"model{ending}")
        result = run_elsewhere(tmp_path / f"model{ending}", images, tmp_path)
        classes = result["metadata"]["class_names"]
        assert classes == ["apple", "bolt", "cup"]
        differences = [
            abs(result["probabilities"][paths.index(row.path)][classes.index(row.class_name)] - row.probability)
            for row in predictions
        ]
        print(f"{host}{ending}: largest difference {max(differences):.1g}")
        assert max(differences) <= 1e-4
