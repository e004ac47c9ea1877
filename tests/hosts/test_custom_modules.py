"""Modules that a host makes beside its network: which of them learn, and what is refused where a class is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flashback import train
from flashback.config import HostSettings
from flashback.errors import FlashbackError
from flashback.hosts import HOSTS, Host
from flashback.hosts.base import trainable
from flashback.hosts.ewc import OnlineEWC
from flashback.hosts.lwf_mc import LwFMC
from flashback.knowledge import Knowledge
from flashback.nets import Frozen
from helpers import forgetting, quick_flashback, quick_host, small_settings


class Learned(Knowledge):
    """Knowledge that forgot to freeze what it holds."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.zeros(width))


class Modules(Host):
    """To be mixed into a host: all kinds of things beside the network."""

    def build(self) -> None:
        self.before = nn.Linear(2, 2)  # the network comes first in the list all the same
        super().build()
        width = self.net.backbone.width
        self.projector = nn.Linear(width, width)
        self.prompt = nn.Parameter(torch.zeros(width))
        self.teacher = Frozen(self.projector)
        self.still = nn.Linear(width, width).requires_grad_(False)
        self.kept = Learned(width)

    def losses(self, step: Any) -> Mapping[str, Tensor]:
        features = step.output.features
        projected = self.projector(features) + self.prompt + self.still(self.teacher(features))
        return {**super().losses(step), "projection": (projected - self.kept.values - 1).square().mean()}


class OwnLwF(Modules, LwFMC): ...


class OwnEWC(Modules, OnlineEWC): ...


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    with forgetting(HOSTS):
        for host in (OwnLwF, OwnEWC):
            HOSTS.register(host.__name__)(host)
        yield


@pytest.mark.parametrize("name", ["OwnLwF", "OwnEWC"])
@pytest.mark.parametrize("flashback", [False, True])
def test_what_asks_for_gradients_learns(name: str, flashback: bool) -> None:
    method = quick_flashback(name) if flashback else quick_host(name)
    host = method.host
    before = {key: tensor.clone() for key, tensor in host.state_dict().items()}
    train(method)
    after = host.state_dict()
    changed = {key for key, tensor in before.items() if not torch.equal(tensor, after[key])}
    assert {"projector.weight", "projector.bias", "prompt", "net.head.weight"} <= changed
    fixed = {"teacher.module.weight", "still.weight", "kept.values"}
    assert not changed & fixed
    assert fixed <= before.keys()


def test_the_network_comes_first() -> None:
    host = quick_host("OwnLwF")
    names = {id(parameter): name for name, parameter in host.named_parameters()}
    learned = [names[id(parameter)] for parameter in host.trained_parameters()]
    size = len(trainable(host.net))
    assert all(name.startswith("net.") for name in learned[:size])
    assert sorted(learned[size:]) == ["before.bias", "before.weight", "projector.bias", "projector.weight", "prompt"]


@pytest.mark.parametrize("name", [name for name in HOSTS if name not in ("afec", "caf")])
def test_the_main_stage_of_a_host_of_the_package_trains_its_network_alone(name: str) -> None:
    host = quick_host(name, **small_settings(name))
    assert list(map(id, host.trained_parameters())) == list(map(id, trainable(host.net)))


# ---------------------------------------------------------------- refused where it is written


def test_an_init_of_its_own_is_refused() -> None:
    with pytest.raises(FlashbackError, match=r"Bare defines __init__, .* build\(self\), after super"):

        class Bare(Host):
            def __init__(self) -> None:
                super().__init__()  # type: ignore[call-arg]

    class Mixed:
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)

    with pytest.raises(FlashbackError, match="Both defines __init__"):

        class Both(Mixed, Host): ...


def test_settings_without_the_decorator_are_refused() -> None:
    class Undecorated(HostSettings):
        lam: float = 1.0

    with pytest.raises(FlashbackError, match=r"Undecorated is not a dataclass; write @dataclass\(frozen=True\)"):

        class Own(Host):
            Settings = Undecorated

    class StricterOnly(HostSettings):  # nothing to decorate
        def check(self) -> None: ...

    @dataclass(frozen=True)
    class Decorated(StricterOnly):
        lam: float = 1.0

    class Fine(Host):
        Settings = Decorated

    class Stricter(Host):
        Settings = StricterOnly
