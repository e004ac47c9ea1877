"""What the maker of a backbone has frozen stays as it was, in every host and every module made from it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from flashback.hosts import HOSTS
from flashback.nets import NETS, Backbone, Shape
from flashback.nets.small import SmallCNN
from flashback.training import Trainer, build_method
from helpers import quick_config, small_settings, tiny_benchmark

NET, STEM = "frozen-stem", "layers.0.weight"


@pytest.fixture(autouse=True)
def frozen_stem() -> Iterator[None]:
    def made(shape: Shape) -> Backbone:
        backbone = SmallCNN(shape[0])
        backbone.layers[0].requires_grad_(False)
        return backbone

    NETS.register(NET)(made)
    yield
    del NETS._entries[NET]


@pytest.mark.parametrize("name", list(HOSTS))
def test_frozen_layers_are_not_trained(name: str) -> None:
    benchmark = tiny_benchmark()
    settings = {"host__net": NET, "training__momentum": 0.9, "training__weight_decay": 0.1, **small_settings(name)}
    config = quick_config(name, flashback=HOSTS[name].has_knowledge, **settings)
    method = build_method(config, benchmark, "cpu")
    before = {key: value.clone() for key, value in method.host.net.state_dict().items()}
    Trainer(method, benchmark).run()
    after = method.host.state_dict()
    stem = before[f"backbone.{STEM}"]
    stems = [value for key, value in after.items() if key.endswith(STEM)]
    assert stems
    assert all(torch.equal(value, stem) for value in stems)
    others = [value for key, value in after.items() if key.endswith("layers.3.weight")]
    assert all(not torch.equal(value, before["backbone.layers.3.weight"]) for value in others)
