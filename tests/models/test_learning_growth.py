"""What an update costs does not depend on how many there were before."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashback.models.learner import Learner

CLASSES, SIDE, IMAGES = 100, 16, 20
MEASURED = (5, 20, 60)  # earlier updates


def images(generator: np.random.Generator, classes: range, count: int) -> dict[str, Any]:
    return {f"class {c}": generator.integers(0, 256, (count, SIDE, SIDE), dtype=np.uint8) for c in classes}


def growth(folder: Path, host: str, epochs: int) -> dict[int, tuple[float, int]]:
    """Seconds of CPU time and bytes of an update of two known classes, by the number of updates before it."""
    generator = np.random.default_rng(2)
    model = Learner.create(folder, host=host, memory=500, settings={"training.epochs": epochs})
    model.learn(images(generator, range(CLASSES), 10))
    seconds, measured = list[float](), dict[int, tuple[float, int]]()
    for earlier in range(1, max(MEASURED) + 3):
        started = time.process_time()
        version = model.learn(images(generator, range(2), IMAGES))
        seconds.append(time.process_time() - started)
        if earlier - 2 in MEASURED:
            files = [file for file in model.folder.folder(version.number).rglob("*") if file.is_file()]
            measured[earlier - 2] = statistics.median(seconds[-5:]), sum(file.stat().st_size for file in files)
    return measured


@pytest.mark.slow
@pytest.mark.parametrize("host", ["replay", "wa"])
def test_an_update_costs_what_its_images_and_the_memory_cost(host: str, tmp_path: Path) -> None:
    measured = growth(tmp_path / "model", host, epochs=2)
    for earlier, (seconds, size) in measured.items():
        print(f"{host}: {earlier} earlier updates: {seconds:.2f} s, {size:,} bytes")
    # What an earlier update adds is some lines of a record; a ratio of two times would fail on a busy machine.
    assert (measured[60][0] - measured[5][0]) / (60 - 5) < 0.002
    assert measured[60][1] < 1.1 * measured[5][1]
