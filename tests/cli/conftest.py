from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flashback.cli import main

Command = Callable[..., tuple[int, str, str]]
PROGRESS = re.compile(r"[\w+, -]+: task \d+( of \d+)?, average accuracy \d+\.\d$")


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def flashback(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command line here and gives its exit code, stdout, and stderr without the lines that tell of progress."""

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert isinstance(end.value.code, int)
        lines = captured.err.splitlines(keepends=True)
        return end.value.code, captured.out, "".join(line for line in lines if not PROGRESS.match(line))

    return call


@pytest.fixture
def tiny(workplace: Path) -> list[str]:
    """Options for a benchmark of three small tasks that trains in a moment."""
    generator = np.random.default_rng(5)
    patterns = generator.integers(40, 216, (6, 12, 12))
    arrays = {}
    for part, count in (("train", 10), ("test", 5)):
        labels = np.arange(6).repeat(count)
        noise = generator.integers(-40, 40, (len(labels), 12, 12))
        arrays |= {f"x_{part}": (patterns[labels] + noise).clip(0, 255).astype(np.uint8), f"y_{part}": labels}
    np.savez(workplace / "tiny.npz", **arrays)
    settings = ("benchmark.sizes=[2,2,2]", "training.epochs=2", "training.batch_size=8", "training.lr=0.3")
    words = [word for setting in (*settings, "flashback.epochs=1") for word in ("--set", setting)]
    return ["--benchmark", "tiny.npz", "--recipe", "defaults", *words]


@pytest.fixture
def bare(tiny: list[str]) -> list[str]:
    """The same for a run without flashback, which takes none of its settings."""
    return tiny[:-2]
