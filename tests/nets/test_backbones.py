"""Backbones against published parameter counts and obvious references."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flashback.errors import FlashbackError
from flashback.nets import NETS, LinearHead, Net, Output, build_backbone, net_for
from flashback.nets.resnet import BasicBlock, ZeroPadding

SMALL = (3, 32, 32)


def count(tensors):
    return sum(tensor.numel() for tensor in tensors)


def norms(net):
    return [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]


@pytest.mark.parametrize(
    ("name", "parameters", "width"),
    [
        ("resnet18", 11_168_832, 512),
        ("resnet18-imagenet", 11_168_832 + (49 - 9) * 3 * 64, 512),  # a 7x7 instead of a 3x3 stem
        ("resnet18-imagenet-b50", 11_168_832, 512),
        ("resnet32", 463_504, 64),
        # Two projections more: 1x1 convolutions and their batch norms.
        ("resnet32-cosine", 463_504 + 16 * 32 + 2 * 32 + 32 * 64 + 2 * 64, 64),
    ],
)
def test_parameter_counts(name, parameters, width):
    net = build_backbone(name, SMALL)
    assert count(net.parameters()) == parameters
    assert net.width == width


def test_resnet18_batch_norms_and_buffers():
    net = build_backbone("resnet18", SMALL)
    assert len(norms(net)) == 20
    assert count(net.buffers()) == 9_620
    assert all(norm.momentum == 0.1 and norm.eps == 1e-5 for norm in norms(net))
    assert not any(isinstance(module, nn.MaxPool2d) for module in net.modules())


@pytest.mark.parametrize(("classes", "parameters"), [(10, 11_173_962), (100, 11_220_132), (200, 11_271_432)])
def test_resnet18_with_linear_head(classes, parameters):
    net = Net(build_backbone("resnet18", SMALL), LinearHead(512, classes))
    assert count(net.parameters()) == parameters


def test_smallcnn_is_small():
    assert 30_000 <= count(build_backbone("smallcnn", (1, 28, 28)).parameters()) <= 100_000


@pytest.mark.parametrize("name", list(NETS))
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 64, 64)])
def test_output_shapes(name, shape):
    backbone = build_backbone(name, shape)
    net = Net(backbone, LinearHead(backbone.width, 7)).eval()
    with torch.no_grad():
        output = net(torch.randn(2, *shape))
    assert isinstance(output, Output)
    assert output.features.shape == (2, backbone.width)
    assert output.logits.shape == (2, 7)


@pytest.mark.parametrize("name", [name for name in NETS if name.startswith("resnet")])
def test_only_cosine_features_are_signed(name):
    net = build_backbone(name, SMALL)
    with torch.no_grad():
        maps = net.stages(net.stem(torch.randn(4, *SMALL)))
    assert (maps.min() < 0) == (name == "resnet32-cosine")


@pytest.mark.parametrize("name", list(NETS))
def test_last_stage_layers_are_the_last_convolutions(name):
    net = build_backbone(name, SMALL)
    expected = {"smallcnn": 2, "resnet32": 10, "resnet32-cosine": 10}.get(name, 4)
    layers = net.last_stage_layers()
    convs = [module for module in net.modules() if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3)]
    assert list(layers.values()) == convs[-expected:]
    if expected == 4:
        assert list(layers) == ["block1.conv1", "block1.conv2", "block2.conv1", "block2.conv2"]


@pytest.mark.parametrize(("name", "side"), [("resnet18-imagenet", 16), ("resnet18-imagenet-b50", 32)])
def test_imagenet_stems(name, side):
    assert build_backbone(name, (3, 64, 64)).stem(torch.randn(1, 3, 64, 64)).shape == (1, 64, side, side)


def test_zero_padding_shortcut():
    x = torch.randn(2, 3, 5, 6)
    expected = torch.zeros(2, 7, 3, 3)
    for image in range(2):
        for channel in range(3):
            for row in range(3):
                for column in range(3):
                    expected[image, channel, row, column] = x[image, channel, 2 * row, 2 * column]
    assert torch.equal(ZeroPadding(3, 7, stride=2)(x), expected)


@pytest.mark.parametrize("last_relu", [True, False])
def test_basic_block_against_its_formula(last_relu):
    block = BasicBlock(4, 8, 2, ZeroPadding)
    if not last_relu:
        block.last = nn.Identity()
    block.eval()
    for norm in norms(block):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    x = torch.randn(2, 4, 6, 6)

    def normed(out, norm):
        return F.batch_norm(out, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)

    out = normed(F.conv2d(x, block.conv1.weight, stride=2, padding=1), block.bn1).relu()
    out = normed(F.conv2d(out, block.conv2.weight, padding=1), block.bn2)
    out = out + torch.cat([x[:, :, ::2, ::2], torch.zeros(2, 4, 3, 3)], 1)
    torch.testing.assert_close(block(x), out.relu() if last_relu else out)


def test_resnet32_initialisation():
    torch.manual_seed(0)
    for conv in build_backbone("resnet32", SMALL).last_stage_layers().values():
        assert conv.weight.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.05)


def test_features_are_the_mean_over_space():
    net = build_backbone("resnet32", SMALL).eval()
    x = torch.randn(2, *SMALL)
    with torch.no_grad():
        torch.testing.assert_close(net(x), F.avg_pool2d(net.stages(net.stem(x)), 8).flatten(1))


@pytest.mark.parametrize("name", list(NETS))
def test_copies_and_state_dicts(name):
    backbone = build_backbone(name, SMALL)
    net = Net(backbone, LinearHead(backbone.width, 5))
    x = torch.randn(2, *SMALL)
    with torch.no_grad():
        net(x)  # moves the running statistics, so that buffers count
        net.eval()
        expected = net(x).logits
        assert torch.equal(copy.deepcopy(net)(x).logits, expected)
        other = Net(build_backbone(name, SMALL), LinearHead(backbone.width, 5)).eval()
        assert not torch.equal(other(x).logits, expected)
        other.load_state_dict(net.state_dict())
        assert torch.equal(other(x).logits, expected)


def test_unknown_names_get_a_suggestion():
    with pytest.raises(FlashbackError, match="unknown net 'resnet33'; did you mean 'resnet32"):
        build_backbone("resnet33", SMALL)


@pytest.mark.parametrize(
    ("side", "name"), [(28, "smallcnn"), (32, "resnet18"), (64, "resnet18"), (96, "resnet18-imagenet")]
)
def test_the_net_of_a_host_that_names_none(side: int, name: str) -> None:
    assert net_for((3, side, side + 8)) == name == net_for((3, side + 8, side))
    assert name in NETS
