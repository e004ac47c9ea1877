from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
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


class Hanging(BaseException):
    """Not an OSError, such as TimeoutError, which code that opens files may catch."""


@pytest.fixture
def alarm() -> Iterator[None]:
    """A test that hangs fails."""

    def ring(*_: Any) -> None:
        raise Hanging

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
