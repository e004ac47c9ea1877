"""A plain nn.Module as the network of a host."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import flashback as fb
from flashback.nets import Backbone, ModuleNets
from flashback.seeds import seeded_initialisation
from flashback.training import trainer
from helpers import quick_config, small_settings, tiny_benchmark


class Features(nn.Module):
    """Images of one channel to seven features."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(1, 7, 3, padding=1), nn.BatchNorm2d(7)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.convolution(x))).mean(dim=(2, 3))


class Scaled(nn.Module):
    """A parameter that nothing can initialise again."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(144))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) * self.scale


@pytest.mark.parametrize("name", ["icarl", "foster"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_module_is_trained_from_its_weights_and_stays_as_it_was(name: str, wrapped: bool) -> None:
    module = Features()
    before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    config = quick_config(name, flashback=wrapped, **small_settings(name))
    host = fb.build_host(config, tiny_benchmark(), "cpu", net=module)
    assert host.config.host.net == "module:Features"
    (weight,) = (p for key, p in host.named_parameters() if key.endswith("convolution.weight") and "net" in key)
    assert torch.equal(weight, before["convolution.weight"])
    result = fb.train(fb.Flashback(host) if wrapped else host)
    assert len(result["class_incremental"]["matrix"]) == 3
    assert host.features(host.benchmark.tasks[0].test).shape[1] % 7 == 0
    assert all(torch.equal(tensor, before[key]) for key, tensor in module.state_dict().items())


def test_equal_modules_train_to_equal_weights() -> None:
    module, benchmark = Features(), tiny_benchmark()
    states = []
    for _ in range(2):
        host = fb.build_host("finetune", benchmark, "cpu", net=module, epochs=1)
        fb.train(host)
        states.append(host.state_dict())
    assert all(torch.equal(tensor, states[1][key]) for key, tensor in states[0].items())
    assert not torch.equal(states[0]["net.backbone.module.convolution.weight"], module.convolution.weight)


def test_a_backbone_and_the_name_of_a_net_are_taken_too() -> None:
    class Small(Backbone):
        width = 144

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)

    assert fb.build_host("finetune", tiny_benchmark(), "cpu", net=Small()).config.host.net == "module:Small"
    assert fb.build_host("finetune", tiny_benchmark(), "cpu", net="smallcnn").config.host.net == "smallcnn"


def test_a_host_with_several_networks_initialises_the_others_again() -> None:
    module, pairs = Features(), []
    for _ in range(2):
        nets = ModuleNets(module)
        with seeded_initialisation(3):
            pairs.append([nets((1, 12, 12)).get_parameter("module.convolution.weight") for _ in range(2)])
    assert [torch.equal(weight, module.convolution.weight) for weight in pairs[0]] == [True, False]
    assert torch.equal(pairs[0][1], pairs[1][1])  # the seed decides
    nets = ModuleNets(Scaled())
    nets((1, 12, 12))
    with pytest.raises(fb.FlashbackError, match=r"the top module of 'module:Scaled' cannot be initialised again"):
        nets((1, 12, 12))


def test_untrained_is_measured_with_the_weights_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module, benchmark, measured = Features(), tiny_benchmark(), []
    monkeypatch.setattr(trainer, "evaluate_unlearned", lambda host, tasks: measured.append(host) or {})
    host = fb.build_host("finetune", benchmark, "cpu", net=module)
    fb.Trainer(host, benchmark).evaluate_untrained()
    assert torch.equal(measured[0].net.backbone.module.convolution.weight, module.convolution.weight)


def test_a_host_with_one_network_needs_no_other_initialisation() -> None:
    host = fb.build_host("finetune", tiny_benchmark(), "cpu", net=Scaled(), epochs=1, views=[])
    assert len(fb.train(host)["class_incremental"]["matrix"]) == 3


def test_a_module_that_gives_no_features_is_refused() -> None:
    with pytest.raises(fb.FlashbackError, match=r"'module:Conv2d' must map images \[n, 1, 12, 12\] to features"):
        fb.build_host("finetune", tiny_benchmark(), "cpu", net=nn.Conv2d(1, 2, 3))
