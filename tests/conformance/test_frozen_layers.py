"""What the maker of a backbone has frozen stays as it was, in every host and every module made from it."""

from __future__ import annotations

import pytest
import torch
from conformance_runs import TRAINED, mostly_slow

from flashback.hosts import HOSTS
from flashback.nets import NETS, Backbone, Shape
from flashback.nets.small import SmallCNN
from flashback.training import Trainer, build_method
from helpers import quick_config, small_settings, tiny_benchmark

NET = "frozen-stem"
STATISTICS = ("layers.1.running_mean", "layers.1.running_var", "layers.1.num_batches_tracked")
STEM = ("layers.0.weight", "layers.1.weight", "layers.1.bias", *STATISTICS)


@pytest.fixture(autouse=True)
def frozen_stem() -> None:
    def made(shape: Shape, width: float = 1.0) -> Backbone:
        backbone = SmallCNN(shape[0], width)
        backbone.layers[:2].requires_grad_(False)  # a convolution and its batch norm
        with torch.no_grad():
            backbone.layers[1].running_mean.fill_(0.5)
        return backbone

    NETS.register(NET)(made)


@pytest.mark.parametrize("name", mostly_slow(TRAINED))
def test_frozen_layers_are_not_trained(name: str) -> None:
    benchmark = tiny_benchmark((2, 2), per_class=6, test_per_class=2)
    settings = {"host__net": NET, "training__momentum": 0.9, "training__weight_decay": 0.1, **small_settings(name)}
    config = quick_config(name, flashback=HOSTS[name].has_knowledge, **settings)
    method = build_method(config, benchmark, "cpu")
    before = {key: value.clone() for key, value in method.host.state_dict().items()}
    Trainer(method, benchmark).run()
    after = method.host.state_dict()

    def unchanged(name: str) -> list[bool]:
        """Each as it was at first itself or, if it was made on the way, as the first of its name was."""
        first = next(value for key, value in before.items() if key.endswith(name))
        return [torch.equal(value, before.get(key, first)) for key, value in after.items() if key.endswith(name)]

    for name in STEM:
        assert unchanged(name)
        assert all(unchanged(name)), name
    for name in ("layers.3.weight", "layers.4.running_mean"):
        assert not any(unchanged(name)), name
