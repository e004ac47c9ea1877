"""How an epoch is cut into batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashback import configure, run
from flashback.batches import count_batches, split_batches
from flashback.errors import FlashbackError


@given(st.integers(1, 200), st.integers(1, 20))
def test_every_image_comes_once_and_none_alone(images: int, size: int) -> None:
    order = torch.randperm(images)
    batches = split_batches(order, size)
    assert torch.equal(torch.cat(batches), order)
    assert len(batches) == count_batches(images, size)
    assert all(len(batch) == size for batch in batches[:-1])
    assert len(batches[-1]) <= size + 1
    assert size == 1 or images == 1 or min(map(len, batches)) > 1


@pytest.fixture
def small_images(tmp_path: Path) -> str:
    """Of 8x8 pixels, of which smallcnn leaves one; 17 and 16 images a task."""
    draw, labels = np.random.default_rng(0), np.array([0] * 9 + [1] * 8 + [2] * 8 + [3] * 8)
    images = {f"x_{part}": draw.integers(0, 256, (len(labels), 8, 8), np.uint8) for part in ("train", "test")}
    np.savez(tmp_path / "small.npz", **images, y_train=labels, y_test=labels)
    return str(tmp_path / "small.npz")


@pytest.mark.parametrize("host", ["finetune", "icarl"])
def test_one_image_too_many_is_no_trouble_for_batch_norm(small_images: str, host: str) -> None:
    settings = {"benchmark.sizes": [2, 2], "training.epochs": 1, "training.batch_size": 8}
    result = run(configure(host, small_images, settings=settings), device="cpu")
    assert result.history.budget[0]["steps"] == 2
    assert result.history.budget[0]["images"] == 17


def test_where_an_image_must_be_alone_it_is_said(small_images: str) -> None:
    settings = {"benchmark.sizes": [2, 2], "training.epochs": 1, "training.batch_size": 1}
    with pytest.raises(FlashbackError, match=r"raise training\.batch_size"):
        run(configure("finetune", small_images, settings=settings), device="cpu")
