"""Images that do not fit on the device are fetched ahead, and nothing else changes."""

from __future__ import annotations

import pytest
import torch

from flashback.batches import Stream, prefetch, streams
from flashback.benchmarks import Images
from flashback.training import Trainer, build_host
from helpers import quick_config, tiny_benchmark


def test_images_too_large_for_the_device_are_fetched_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    images = Images(torch.randint(0, 256, (20, 1, 4, 4), dtype=torch.uint8), torch.arange(20))
    device = torch.device("cpu")
    near = Stream.of(images, device)
    monkeypatch.setattr(streams, "available_bytes", lambda device: 10)
    far = Stream.of(images, device)
    assert near.resident
    assert not far.resident
    batches = torch.split(near.order("key"), 3)
    fetched = list(prefetch(far, batches))
    assert len(fetched) == len(batches)
    for (indices, raw), expected in zip(fetched, batches, strict=True):
        assert torch.equal(indices, expected)
        assert raw is not None
        assert torch.equal(raw, near.images[expected])
    assert all(raw is None for _, raw in prefetch(near, batches))
    assert not far.joined(near).resident
    assert torch.equal(far.joined(near).images, near.joined(near).images)


def test_a_set_joined_with_nothing_is_not_read() -> None:
    device = torch.device("cpu")
    images = Images(torch.randint(0, 256, (20, 1, 4, 4), dtype=torch.uint8), torch.arange(20))
    stream = Stream.of(images, device)
    empty = Stream.of(Images(images.x[:0], images.y[:0]), device)
    for joined in (stream.joined(empty), empty.joined(stream), stream.joined()):
        assert joined.images.data_ptr() == images.x.data_ptr()
        assert torch.equal(joined.labels, stream.labels)
    assert len(empty.joined(empty)) == 0


def test_training_from_afar_equals_training_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for free_bytes in (1 << 62, 10):
        monkeypatch.setattr(streams, "available_bytes", lambda device, free_bytes=free_bytes: free_bytes)
        benchmark = tiny_benchmark((2, 2))
        host = build_host(quick_config("icarl", host__memory_size=8), benchmark, "cpu")
        assert host.stream().resident == (free_bytes > 10)
        results.append(Trainer(host, benchmark).run().as_dict())
    assert results[0] == results[1]
