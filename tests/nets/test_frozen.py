"""Passes of evaluation, batch norm without tracking, and frozen copies."""

import copy

import pytest
import torch
from torch import nn

from flashback.nets import (
    NETS,
    Backbone,
    Frozen,
    LinearHead,
    Net,
    build_backbone,
    evaluating,
    joint_forward,
    untracked_batchnorm,
)
from flashback.nets.small import SmallCNN


@pytest.fixture
def net():
    torch.manual_seed(0)
    network = Net(build_backbone("smallcnn", (1, 8, 8)), LinearHead(64, 3))
    with torch.no_grad():
        network(torch.randn(16, 1, 8, 8) * 3 + 1)  # running statistics away from their start
    return network


@pytest.fixture
def x():
    return torch.randn(8, 1, 8, 8)


def state(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("training", [True, False])
def test_evaluating_reads_running_statistics_and_puts_the_mode_back(net, x, training):
    expected = copy.deepcopy(net).eval()(x).logits
    net.train(training)
    before = state(net)
    with evaluating(net):
        assert torch.equal(net(x).logits, expected)
    assert same(state(net), before)
    assert {module.training for module in net.modules()} == {training}
    with pytest.raises(TypeError), evaluating(net):
        net(None)
    assert net.training is training


def test_untracked_training_uses_batch_statistics_and_moves_none(net, x):
    before = state(net)
    with untracked_batchnorm(net):
        untracked = net(x).logits
    assert same(state(net), before)
    assert torch.equal(net(x).logits, untracked)  # the tracked pass, with batch statistics too
    assert not same(state(net), before)


def test_untracked_evaluation_uses_running_statistics(net, x):
    net.eval()
    expected = net(x).logits
    before = state(net)
    with untracked_batchnorm(net):
        assert torch.equal(net(x).logits, expected)
    assert same(state(net), before)
    assert not torch.equal(expected, net.train()(x).logits)


def test_untracked_gradients_are_those_of_a_tracked_pass(net, x):
    net(x).logits.square().sum().backward()
    expected = [parameter.grad.clone() for parameter in net.parameters()]
    net.zero_grad()
    with untracked_batchnorm(net):
        output = net(x)
    output.logits.square().sum().backward()
    assert all(torch.equal(parameter.grad, grad) for parameter, grad in zip(net.parameters(), expected, strict=True))


def test_flags_come_back_as_they_were(net):
    net.backbone.layers[1].track_running_stats = False
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    with untracked_batchnorm(net):
        with pytest.raises(TypeError), untracked_batchnorm(net):
            net(None)
        assert not any(norm.track_running_stats for norm in norms)
    assert [norm.track_running_stats for norm in norms] == [False, True, True, True]


def test_frozen_is_a_copy_in_eval_mode_without_gradients(net, x):
    frozen = Frozen(net)
    expected = copy.deepcopy(net).eval()(x).logits
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1)
    x.requires_grad_()
    output = frozen(x)
    assert torch.equal(output.logits, expected)
    assert not output.logits.requires_grad
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert net.training


def test_frozen_stays_so_inside_a_training_parent(net, x):
    parent = nn.ModuleDict({"student": net, "teacher": Frozen(net)})
    parent.train()
    assert parent["student"].training
    assert not any(module.training for module in parent["teacher"].modules())
    before = state(parent["teacher"])
    parent["teacher"](x)
    assert same(state(parent["teacher"]), before)
    copied = copy.deepcopy(parent).train()
    assert not any(module.training for module in copied["teacher"].modules())


def test_frozen_state_dict_round_trip(net, x):
    frozen = Frozen(net)
    other = Frozen(Net(build_backbone("smallcnn", (1, 8, 8)), LinearHead(64, 3)))
    assert not torch.equal(other(x).logits, frozen(x).logits)
    other.load_state_dict(frozen.state_dict())
    assert torch.equal(other(x).logits, frozen(x).logits)
    assert set(frozen.module.state_dict()) == set(net.state_dict())


# ---------------------------------------------------------------- frozen norm layers


class Normed(Backbone):
    """Two blocks of a convolution, a norm layer and one without parameters."""

    width = 3

    def __init__(self, frozen):
        super().__init__()
        self.blocks = nn.Sequential(*(self.block(channels) for channels in (1, 3)))
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(not name.startswith(tuple(frozen)))

    def block(self, channels):
        return nn.Sequential(
            nn.Conv2d(channels, 3, 1), nn.BatchNorm2d(3), nn.InstanceNorm2d(3, track_running_stats=True)
        )

    def forward(self, x):
        return self.blocks(x).mean((2, 3))


@pytest.mark.parametrize(
    ("frozen", "still"),
    [
        ([], set()),
        (["blocks.0.0"], set()),  # a convolution alone
        (["blocks.0.1.weight"], set()),  # a norm layer in part
        (["blocks.0.1"], {"blocks.0.1"}),  # the layer without parameters has a convolution beside it that is trained
        (["blocks.0"], {"blocks.0.1", "blocks.0.2"}),
        (["blocks"], {"blocks.0.1", "blocks.0.2", "blocks.1.1", "blocks.1.2"}),
    ],
)
def test_the_statistics_of_frozen_norm_layers_stand_still(frozen, still):
    NETS.register("normed")(lambda shape: Normed(frozen))
    net = Net(build_backbone("normed", (1, 6, 6)), LinearHead(3, 2))
    copied = copy.deepcopy(net)
    copied.backbone.set_trainable(False).set_trainable()
    with evaluating(copied), evaluating(copied.backbone):
        pass
    for one in (net, copied, copied.eval().train()):
        before = state(one)
        for _ in range(2):
            one(torch.randn(8, 1, 6, 6) * 3 + 1)
        names = {name.rpartition(".")[0] for name, value in state(one).items() if not torch.equal(value, before[name])}
        everything = {f"backbone.blocks.{block}.{layer}" for block in (0, 1) for layer in (1, 2)}
        assert names == everything - {f"backbone.{name}" for name in still}


def test_a_backbone_without_parameters_has_nothing_frozen():
    class Bare(Backbone):
        width = 1

        def __init__(self, image_shape):
            super().__init__()
            self.norm = nn.BatchNorm2d(1, affine=False)

        def forward(self, x):
            return self.norm(x).mean((2, 3))

    NETS.register("bare")(Bare)
    assert build_backbone("bare", (1, 6, 6)).norm.training


def test_frozen_norm_layers_answer_each_part_of_a_batch_alike():
    def made(shape):
        backbone = SmallCNN(shape[0])
        backbone.layers[:2].requires_grad_(False)
        return backbone

    NETS.register("frozen")(made)
    net = Net(build_backbone("frozen", (1, 8, 8)), LinearHead(64, 3)).train()
    other = copy.deepcopy(net)
    x, y = torch.randn(6, 1, 8, 8), torch.randn(4, 1, 8, 8)
    joined = joint_forward(net, [x], [y])
    alone = other(x)
    with untracked_batchnorm(other):
        untracked = other(y)
    assert torch.allclose(joined[0].logits, alone.logits, atol=1e-5)
    assert torch.allclose(joined[1].logits, untracked.logits, atol=1e-5)
    assert all(torch.allclose(one, two) for one, two in zip(net.buffers(), other.buffers(), strict=True))
