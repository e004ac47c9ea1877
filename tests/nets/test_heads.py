"""Heads: initialisation, growth, cosine logits, precision."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flashback.nets import CosineHead, LinearHead, Net, build_backbone, grown_linear


def test_linear_head_starts_as_pytorch_does():
    torch.manual_seed(3)
    ours = LinearHead(6, 4)
    torch.manual_seed(3)
    theirs = nn.Linear(6, 4)
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.bias, theirs.bias)


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
    own = head(head.weight * 100)  # every class vector is nearest to itself, at the bound
    assert own.abs().max() <= 3 + 1e-5
    torch.testing.assert_close(own.diagonal(), torch.full((5,), 3.0))


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
