"""Networks whose layers draw at random (dropout): a run is decided by its seed, and resumes exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flashback.config import CheckpointConfig
from flashback.nets import NETS, Backbone
from flashback.training import Checkpoints, Interrupted, Trainer, build_method
from flashback.training.trainer import Position, RunState
from helpers import quick_config, tiny_benchmark

NET = "dropping"
NETWORKS = [NET, "cnn6"]


class Dropping(Backbone):
    width = 16

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = shape
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(channels * height * width, 16), nn.Dropout(0.5), nn.Linear(16, 16)
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


@pytest.fixture(autouse=True)
def dropping_net() -> None:
    NETS.register(NET)(Dropping)


def train(
    seed: int = 0, checkpointer: Checkpoints | None = None, state: RunState | None = None, **settings: Any
) -> dict[str, Tensor]:
    values = {"host__net": NET, "host__memory_size": 8, "seed": seed, "training__epochs": 3, **settings}
    benchmark = tiny_benchmark((2, 2), per_class=6, test_per_class=2)
    config = quick_config("icarl", **{"flashback": True, **values})
    trainer = Trainer(build_method(config, benchmark, "cpu"), benchmark, checkpointer=checkpointer)
    if state is not None:
        trainer.resume(state)
    trainer.run()
    return {name: tensor.clone() for name, tensor in trainer.host.state_dict().items() if name.startswith("net.")}


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


class StopAt(Checkpoints):
    def __init__(self, folder: Path, moment: int) -> None:
        super().__init__(folder, CheckpointConfig())
        self.moment, self.asked = moment, 0

    def due(self, position: Position) -> bool:
        self.asked += 1
        if self.asked == self.moment:
            self.stopping.set()
        return self.stopping.is_set()


@pytest.mark.parametrize("net", NETWORKS)
def test_the_seed_alone_decides(net: str) -> None:
    torch.manual_seed(1)
    first = train(host__net=net)
    torch.manual_seed(2)
    assert equal(first, train(host__net=net))
    assert not equal(first, train(seed=1, host__net=net))


def test_what_others_draw_is_as_without_the_run() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    train()
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize(("net", "moment"), [(NET, 2), (NET, 12), (NET, 20), ("cnn6", 20)])
def test_a_resumed_run_draws_what_it_would_have(tmp_path: Path, moment: int, net: str) -> None:
    whole = train(host__net=net)
    checkpointer = StopAt(tmp_path, moment)
    with pytest.raises(Interrupted):
        train(checkpointer=checkpointer, host__net=net)
    torch.manual_seed(moment)
    assert equal(whole, train(state=Checkpoints(tmp_path, CheckpointConfig()).load(), host__net=net))


def test_without_alpha_phase_2_is_the_host_with_its_epochs() -> None:
    """Phase 1 draws too, but leaves nothing behind."""
    later = {"training__epochs": 2, "training__first_epochs": 3, "flashback": False}
    assert equal(train(flashback__alpha=0.0, flashback__epochs=1), train(**later))
