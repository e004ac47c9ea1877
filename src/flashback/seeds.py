"""Randomness that depends on where it is used, and on nothing that happened before."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch


def derive_seed(*parts: object) -> int:
    """A seed of 63 bits from any printable key, the same on every machine."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def seeded_generator(*parts: object) -> torch.Generator:
    """On the CPU."""
    return torch.Generator().manual_seed(derive_seed(*parts))


@contextmanager
def own_layer_randomness(device: torch.device) -> Iterator[None]:
    """Layers such as dropout draw from torch's global generators: a run has them to itself, and puts them back."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def layer_randomness(device: torch.device) -> dict[str, torch.Tensor]:
    """The state of the generators that layers on a device draw from."""
    states = {"layers": torch.get_rng_state()}
    return states | {"cuda layers": torch.cuda.get_rng_state(device)} if device.type == "cuda" else states


def set_layer_randomness(states: Mapping[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["layers"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda layers"], device)


@contextmanager
def seeded_initialisation(*parts: object) -> Iterator[None]:
    """New modules draw their weights from torch's global CPU generator; seed it here and put it back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(*parts))
        yield
