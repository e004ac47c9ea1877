"""What a run would spend is what it spends, for every host in both arms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flashback.benchmarks import load_benchmark
from flashback.hosts import HOSTS
from flashback.recipes import configure
from flashback.studies.preview import preview_cost
from flashback.training import run

REPRESENTATIVES = ("icarl", "xder", "bic", "foster", "beef")  # one for each way to spend steps
ARMS = [
    pytest.param(name, arm, marks=() if name in REPRESENTATIVES and arm else pytest.mark.slow)
    for name in HOSTS
    for arm in (False, True)
    if not arm or HOSTS[name].has_knowledge
]


@pytest.fixture
def uneven(tmp_path: Path) -> Path:
    """Classes of 7, 8, 9, ... images, so that no two tasks are of one size and memories are not filled evenly."""
    draw = np.random.default_rng(0)
    labels = np.concatenate([np.full(7 + label, label) for label in range(6)])
    images = {f"x_{part}": draw.integers(0, 256, (len(labels), 12, 12), np.uint8) for part in ("train", "test")}
    np.savez(tmp_path / "uneven.npz", **images, y_train=labels, y_test=labels)
    return tmp_path / "uneven.npz"


@pytest.mark.parametrize(("host", "flashback"), ARMS)
def test_the_count_is_that_of_the_run(uneven: Path, host: str, flashback: bool) -> None:
    settings = {"benchmark.sizes": [1, 3, 2], "training.epochs": 3, "training.batch_size": 8, "flashback.epochs": 1}
    overrides = {"memory_size": 20, "compression_epochs": 2, "fusion_epochs": 2}
    settings |= {f"host.{name}": value for name, value in overrides.items() if hasattr(HOSTS[host].Settings, name)}
    config = configure(host, str(uneven), flashback=flashback, settings=settings)
    measured = run(config, device="cpu").history.budget
    counted = preview_cost(config, None)
    assert [{key: entry[key] for key in entry if key != "epochs"} for entry in counted] == measured
    assert measured


def test_a_sketch_has_the_labels_and_decodes_nothing(uneven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load_benchmark(str(uneven), sizes=[2, 4], validation=0.2)
    sketch = load_benchmark(str(uneven), sizes=[2, 4], validation=0.2, labels_only=True)
    assert sketch.image_shape == (1, 16, 16)
    for real, outline in zip(whole.tasks, sketch.tasks, strict=True):
        assert real.train.y.tolist() == outline.train.y.tolist()
        assert real.test.y.tolist() == outline.test.y.tolist()


@pytest.mark.parametrize("changes", [{"host.memory_size": 6}, {"training.batch_size": 1}])
def test_a_run_with_one_image_at_a_time_can_be_counted(uneven: Path, changes: dict[str, int]) -> None:
    settings = {"benchmark.sizes": [2, 4], "training.epochs": 1, "training.batch_size": 4, "host.memory_size": 20}
    config = configure("xder", str(uneven), settings={**settings, **changes})
    assert len(preview_cost(config, None)) == 2
