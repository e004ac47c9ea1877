"""Images that lie in the files of a folder train a host to the same bits as the same images in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import flashback as fb
from flashback.benchmarks.mapped_images import MappedImages
from flashback.conformance import short_settings
from flashback.hosts import HOSTS

ONE_OF_A_FAMILY = ("icarl", "der++", "oewc", "foster")
EVERY_HOST = [name if name in ONE_OF_A_FAMILY else pytest.param(name, marks=pytest.mark.slow) for name in HOSTS]


@pytest.mark.parametrize("name", EVERY_HOST)
def test_every_host_learns_the_same_from_a_folder_as_from_arrays(tmp_path: Path, name: str) -> None:
    generator = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for part, count in (("train", 8), ("test", 3)):
        x, y = generator.integers(0, 256, (4 * count, 12, 12, 3), np.uint8), np.arange(4).repeat(count)
        for number, (picture, label) in enumerate(zip(x, y, strict=True)):
            (tmp_path / "same" / part / str(label)).mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(tmp_path / "same" / part / str(label) / f"{number:02d}.png")
        arrays |= {f"x_{part}": x, f"y_{part}": y}
    np.savez(tmp_path / "same.npz", **arrays)
    results = []
    for path in (tmp_path / "same", tmp_path / "same.npz"):
        settings = {"benchmark.sizes": [2, 2], "benchmark.order": 1, "training.epochs": 2, "training.batch_size": 8}
        settings |= {"flashback.epochs": 1, **short_settings(HOSTS[name])}
        config = fb.configure(name, path, flashback=HOSTS[name].has_knowledge, settings=settings)
        results.append(fb.run(config, device="cpu").as_dict())
    assert results[0] == results[1]
    assert isinstance(fb.load_benchmark(tmp_path / "same", sizes=[2, 2]).tasks[0].train.x, MappedImages)
