"""Passes of evaluation, batch norm without tracking, and frozen copies."""

import copy

import pytest
import torch
from torch import nn

from flashback.nets import Frozen, LinearHead, Net, build_backbone, evaluating, untracked_batchnorm


@pytest.fixture
def net():
    torch.manual_seed(0)
    made = Net(build_backbone("smallcnn", (1, 8, 8)), LinearHead(64, 3))
    with torch.no_grad():
        made(torch.randn(16, 1, 8, 8) * 3 + 1)  # running statistics away from their start
    return made


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
