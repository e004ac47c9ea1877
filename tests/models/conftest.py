"""A small folder of images, and finished runs on it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import flashback as fb
from flashback.conformance import short_settings
from flashback.hosts import HOSTS

CLASSES = ("apple", "bolt", "cup", "drill", "Égg")


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train/<class>/ and test/<class>/, five classes of 12x12 pixels that a small network can tell apart."""
    root, generator = tmp_path_factory.mktemp("pictures"), np.random.default_rng(3)
    patterns = generator.integers(40, 216, (len(CLASSES), 12, 12, 3))
    for part, count in (("train", 8), ("test", 5)):
        for pattern, name in zip(patterns, CLASSES, strict=True):
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                noisy = (pattern + generator.integers(-40, 40, pattern.shape)).clip(0, 255).astype(np.uint8)
                Image.fromarray(noisy).save(root / part / name / f"{number}.png")
    return root


@pytest.fixture(scope="session")
def finished(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a finished run of a host on the pictures."""

    @cache
    def run(host: str) -> Path:
        out = tmp_path_factory.mktemp("runs") / host.replace("+", "p")
        settings = {"benchmark.sizes": [2, 3], "benchmark.order": 4, "training.batch_size": 8}
        settings |= short_settings(HOSTS[host]) | {"training.epochs": 4}
        config = fb.configure(host, pictures, recipe="defaults", settings=settings)
        fb.run(config, out=out, device="cpu")
        return out

    return run


@pytest.fixture(scope="session")
def model(finished: Callable[[str], Path]) -> fb.Model:
    return fb.load_model(finished("icarl"), "cpu")
