from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import storm

import flashback
from flashback.conformance import generate_images


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "made.npz"
    np.savez(path, **generate_images(sum(storm.SIZES), side=12))
    return path


@pytest.fixture(scope="session")
def whole(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the run of iCaRL with flashback leaves that nobody disturbs."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    flashback.run(storm.short_run("icarl", dataset), out=folder, device="cpu")
    return storm.fingerprint(folder)
