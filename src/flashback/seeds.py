"""Randomness that depends on where it is used, and on nothing that happened before."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive_seed(*parts: object) -> int:
    """A seed of 63 bits from any printable key, the same on every machine."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def seeded_generator(*parts: object, device: torch.device | str = "cpu") -> torch.Generator:
    generator = torch.Generator(device=device)
    generator.manual_seed(derive_seed(*parts))
    return generator


@contextmanager
def seeded_initialisation(*parts: object) -> Iterator[None]:
    """New modules draw their weights from torch's global CPU generator; seed it here and put it back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(*parts))
        yield
