"""Random seeds derived from where they are used, independent of anything drawn before."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch


def derive_seed(*parts: object) -> int:
    """A seed of 63 bits from any printable key, equal on every machine."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def seeded_generator(*parts: object) -> torch.Generator:
    """A generator on the CPU."""
    return torch.Generator().manual_seed(derive_seed(*parts))


@contextmanager
def isolated_layer_randomness(device: torch.device) -> Iterator[None]:
    """Restore torch's global generators, which layers such as dropout use, afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def layer_randomness(device: torch.device) -> dict[str, torch.Tensor]:
    """The state of torch's global generators for a device."""
    states = {"layers": torch.get_rng_state()}
    return states | {"cuda layers": torch.cuda.get_rng_state(device)} if device.type == "cuda" else states


def set_layer_randomness(states: Mapping[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["layers"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda layers"], device)


@contextmanager
def seeded_initialisation(*parts: object) -> Iterator[None]:
    """Seed torch's global CPU generator, from which new modules draw weights, and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(*parts))
        yield
