"""Heads: initialisation, growth, cosine logits, precision."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flashback.nets import LinearHead, Net, build_backbone
from flashback.nets.base import widen_linear
from flashback.nets.growing import grown_linear
from flashback.nets.heads import BiasCorrectedNet, CosineHead, CosineNet, ProxyNet


def test_linear_head_starts_as_pytorch_does():
    torch.manual_seed(3)
    head = LinearHead(6, 4)
    torch.manual_seed(3)
    linear = nn.Linear(6, 4)
    assert torch.equal(head.weight, linear.weight)
    assert torch.equal(head.bias, linear.bias)


def test_cosine_head():
    torch.manual_seed(0)
    head = CosineHead(16, 5)
    features = torch.randn(7, 16) * 10
    expected = F.cosine_similarity(features[:, None], head.weight[None], dim=2)
    torch.testing.assert_close(head.cosines(features), expected)
    torch.testing.assert_close(head(features), expected)  # sigma starts at 1
    with torch.no_grad():
        head.sigma.fill_(3)
    torch.testing.assert_close(head(features), 3 * expected)
    output = head(head.weight * 100)  # every class vector is nearest to itself, at the bound
    assert output.abs().max() <= 3 + 1e-5
    torch.testing.assert_close(output.diagonal(), torch.full((5,), 3.0))


def test_cosine_head_initialisation():
    weight = CosineHead(100, 1000).weight
    assert weight.abs().max() <= 0.1
    assert weight.std().item() == pytest.approx(0.1 / math.sqrt(3), rel=0.02)


def test_cosine_head_learns_its_scale():
    head = CosineHead(4, 3)
    head(torch.randn(2, 4)).sum().backward()
    assert head.sigma.grad is not None
    assert head.weight.grad is not None


def test_grown_linear_keeps_the_old_head():
    old = nn.Linear(3, 2)
    new = grown_linear(old, 6, 5)
    assert torch.equal(new.weight[:2, :3], old.weight)
    assert torch.equal(new.bias[:2], old.bias)
    assert torch.equal(new.bias[2:], torch.zeros(3))
    assert new.weight.data_ptr() != old.weight.data_ptr()
    assert new.weight.requires_grad
    # Features of old modules alone give the old logits.
    features = torch.cat([torch.randn(4, 3), torch.zeros(4, 3)], 1)
    torch.testing.assert_close(new(features)[:, :2], old(features[:, :3]))


def test_grown_linear_initialisation():
    old = nn.Linear(10, 10)
    torch.manual_seed(1)
    new = grown_linear(old, 300, 400)
    fresh = new.weight[10:]
    assert fresh.abs().max() <= math.sqrt(3 / 300)
    assert fresh.std().item() == pytest.approx(math.sqrt(1 / 300), rel=0.02)
    torch.manual_seed(1)
    again = grown_linear(None, 300, 400)
    assert torch.equal(again.weight[10:], fresh)
    assert not again.bias.any()


@pytest.mark.parametrize("head", [LinearHead(64, 3), CosineHead(64, 3), nn.Linear(64, 3)])
def test_autocast_reaches_the_backbone_only(head):
    net = Net(build_backbone("smallcnn", (1, 8, 8)), head).eval()
    x = torch.randn(2, 1, 8, 8)
    with torch.no_grad():
        full = net(x)
        with torch.autocast("cpu", torch.bfloat16):
            assert net.backbone(x).dtype == torch.bfloat16
            mixed = net(x)
            assert mixed.features.dtype == mixed.logits.dtype == torch.float32
            inside = mixed.features.clone()
        assert not torch.equal(full.features, mixed.features)  # the backbone did run in bfloat16
        assert torch.equal(mixed.logits, head(inside))  # the head did not


@pytest.mark.parametrize("head", [LinearHead(8, 3), CosineHead(8, 3)])
def test_heads_alone_leave_autocast(head):
    features = torch.randn(2, 8)
    expected = head(features)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(head(features), expected)
        assert head(features.bfloat16()).dtype == torch.float32


HEADS = {
    "linear": lambda backbone: Net(backbone, nn.Linear(backbone.width, 5)),
    "cosine": lambda backbone: CosineNet(backbone, [2, 3]),
    "proxy": lambda backbone: ProxyNet(backbone, [2, 3], 4),
    "corrected": lambda backbone: BiasCorrectedNet(backbone, [2, 3]),
}


@pytest.mark.parametrize("head", list(HEADS))
def test_a_head_that_grows_keeps_its_old_rows(head):
    torch.manual_seed(0)
    net = HEADS[head](build_backbone("smallcnn", (1, 12, 12), 1.0)).eval()
    images = torch.randn(6, 1, 12, 12)
    before = net(images).logits
    weights = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    net.grow(9)
    after = net(images).logits
    assert after.shape == (6, 9)
    torch.testing.assert_close(after[:, :5], before)
    state = net.state_dict()
    for name, tensor in weights.items():
        assert torch.equal(state[name][: len(tensor)] if tensor.dim() else state[name], tensor), name


@pytest.mark.parametrize("trainable", [True, False])
def test_a_frozen_head_stays_frozen_when_it_grows(trainable):
    layer = nn.Linear(3, 2).requires_grad_(trainable)
    widen_linear(layer, 4)
    assert layer.out_features == 4
    assert all(parameter.requires_grad is trainable for parameter in layer.parameters())


def test_a_copy_of_a_cosine_net_stays_whole_when_the_original_grows() -> None:
    net = CosineNet(build_backbone("smallcnn", (1, 12, 12)), [2])
    twin, x = copy.deepcopy(net).eval(), torch.rand(3, 1, 12, 12)
    before = twin(x).logits
    net.grow(5)
    assert torch.equal(twin(x).logits, before)
    twin.grow(4)
    assert (len(net.head.weight), len(twin.head.weight)) == (5, 4)
