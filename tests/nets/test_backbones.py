"""Backbones against published parameter counts and obvious references."""

import copy
import math
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flashback import train
from flashback.errors import FlashbackError
from flashback.nets import NETS, Backbone, LinearHead, Net, Output, build_backbone, net_for
from flashback.nets.base import scaled
from flashback.nets.resnet import BasicBlock, ZeroPadding
from helpers import forgetting, quick_host

SMALL = (3, 32, 32)


EVERY_NET = [pytest.param(name, marks=pytest.mark.slow) if name.startswith("resnet18-") else name for name in NETS]


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
        # Convolutions 3-32-32-64-64-128-128 with biases, then 2048 inputs of 256 units.
        ("cnn6", 9 * (3 * 32 + 32 * 32 + 32 * 64 + 64 * 64 + 64 * 128 + 128 * 128) + 448 + 2048 * 256 + 256, 256),
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


@pytest.mark.parametrize("name", EVERY_NET)
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


@pytest.mark.parametrize("name", ["convit", "convit-small"])
def test_last_stage_layers_of_a_transformer_are_its_last_blocks(name):
    net = build_backbone(name, SMALL)
    depth = len(net.blocks)
    assert list(net.last_stage_layers().items()) == [(f"block{k + 1}", net.blocks[k]) for k in (depth - 2, depth - 1)]


@pytest.mark.parametrize("name", [name for name in EVERY_NET if name not in ("convit", "convit-small")])
def test_last_stage_layers_are_the_last_convolutions(name):
    net = build_backbone(name, SMALL)
    expected = {"smallcnn": 2, "cnn6": 2, "resnet32": 10, "resnet32-cosine": 10}.get(name, 4)
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


@pytest.mark.parametrize("name", EVERY_NET)
def test_levels_one_after_another_give_the_stage_maps(name):
    net = build_backbone(name, SMALL).eval()
    x = torch.randn(2, *SMALL)
    maps = net.stage_maps(x)
    for level, expected in zip(net.levels(), maps, strict=True):
        x = level(x)
        assert torch.equal(x, expected)
    parameters = {parameter for level in net.levels() for parameter in level.parameters()}
    assert parameters == set(net.parameters())


SLOW_HOSTS = [pytest.param(name, marks=pytest.mark.slow) for name in ("podnet", "lucir-aanets")]


@pytest.mark.parametrize("host", ["pnc", *SLOW_HOSTS])
def test_a_network_that_names_its_levels_need_not_give_their_maps(host):
    class Levels(Backbone):
        width = 8

        def __init__(self, channels):
            super().__init__()
            convs = (nn.Conv2d(inputs, 8, 3, stride=4, padding=1) for inputs in (channels, 8))
            self.blocks = nn.Sequential(*(nn.Sequential(conv, nn.ReLU()) for conv in convs))

        def forward(self, x):
            return self.stage_maps(x)[-1].mean((2, 3))

        def levels(self):
            return list(self.blocks)

    with forgetting(NETS):
        NETS.register("levels")(lambda image_shape: Levels(image_shape[0]))
        train(quick_host(host, host__net="levels"))


def test_a_network_without_levels_is_told_what_to_do():
    with pytest.raises(FlashbackError, match=r"Backbone does not define them; give its class a method levels\(\)"):
        Backbone().levels()


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 8, 17)])
def test_cnn6_against_its_formula(shape):
    net = build_backbone("cnn6", shape).eval()
    parameters = list(net.parameters())
    x = torch.randn(2, *shape)
    out = x
    for weight, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        out = F.conv2d(out, weight, bias, padding=1).relu()
        if weight.shape[0] == weight.shape[1]:  # the second of a pair
            out = F.max_pool2d(out, 2)
    torch.testing.assert_close(net(x), F.linear(out.flatten(1), *parameters[-2:]).relu())


def test_cnn6_drops_at_random_while_it_trains():
    net = build_backbone("cnn6", SMALL)
    assert [module.p for module in net.modules() if isinstance(module, nn.Dropout)] == [0.25, 0.25, 0.25, 0.5]
    x = torch.rand(64, *SMALL)
    active = net.eval()(x) > 0
    torch.manual_seed(3)
    first = net.train()(x)
    assert 0.4 < (first[active] > 0).float().mean() < 0.6  # half of the units, and few that others wake or silence
    assert not torch.equal(net(x), first)
    torch.manual_seed(3)
    assert torch.equal(net(x), first)


def test_cnn6_refuses_images_that_cannot_be_halved_three_times():
    with pytest.raises(FlashbackError, match="halves images three times, so they need 8 pixels a side, not 7"):
        build_backbone("cnn6", (1, 12, 7))


# ---------------------------------------------------------------- other widths


@pytest.mark.parametrize("name", EVERY_NET)
def test_a_width_scales_the_channels(name):
    usual, narrow = build_backbone(name, SMALL), build_backbone(name, SMALL, 0.25)
    kinds = (nn.Conv2d, nn.BatchNorm2d)
    wide, slim = ([layer for layer in net.modules() if isinstance(layer, kinds)] for net in (usual, narrow))
    assert [len(layer.weight) for layer in slim] == [len(layer.weight) // 4 for layer in wide]
    assert narrow.width == (256 if name == "cnn6" else usual.width // 4)
    with torch.no_grad():
        assert narrow(torch.randn(2, *SMALL)).shape == (2, narrow.width)


def test_a_layer_has_a_channel_at_least():
    assert scaled((16, 32, 100), 0.02) == (1, 1, 2)
    assert build_backbone("smallcnn", SMALL, 1e-6).width == 1


def test_a_net_of_one_width_says_so():
    NETS.register("own")(lambda shape: Own(shape))
    with pytest.raises(FlashbackError, match=r"^the net 'own' has a fixed width; choose one of cnn6, .* at 1$"):
        build_backbone("own", SMALL, 0.5)
    with pytest.raises(FlashbackError, match="'timm:vit' has a fixed width"):
        build_backbone("timm:vit", SMALL, 0.5)
    with pytest.raises(FlashbackError, match="unknown net 'resnet33'"):
        build_backbone("resnet33", SMALL, 0.5)


def test_a_net_of_ones_own_may_take_a_width():
    class OfAnyWidth(Own):
        def __init__(self, image_shape, width=1.0):
            super().__init__(image_shape)
            self.asked = width

    NETS.register("own")(OfAnyWidth)
    assert build_backbone("own", SMALL, 0.5).asked == 0.5
    assert build_backbone("own", SMALL).asked == 1.0


# ---------------------------------------------------------------- features, copies and names


def test_features_are_the_mean_over_space():
    net = build_backbone("resnet32", SMALL).eval()
    x = torch.randn(2, *SMALL)
    with torch.no_grad():
        torch.testing.assert_close(net(x), F.avg_pool2d(net.stages(net.stem(x)), 8).flatten(1))


@pytest.mark.parametrize("name", EVERY_NET)
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


# ---------------------------------------------------------------- networks of one's own


class Own(Backbone):
    width = 4

    def __init__(self, image_shape):
        super().__init__()
        self.layer = nn.Conv2d(image_shape[0], 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(self.layer(x)).mean((2, 3))


class Maps(Own):
    def forward(self, x):
        return self.layer(x)


class Pair(Own):
    def forward(self, x):
        return x, x


class NoWidth(Own):
    width = None


class Narrow(Own):
    width = 3


class NoForward(Backbone):
    width = 4

    def __init__(self, image_shape):
        super().__init__()


class Trunk(nn.Module):
    def forward(self, x):
        return x.amax((2, 3)).repeat(1, 4)[:, :4]


class Mixed(Backbone, Trunk):
    """The forward that it inherits counts, although it defines maps."""

    width = 4

    def stage_maps(self, x):
        return [x]


class SetInConstructor(Backbone):
    width = 4

    def __init__(self):
        super().__init__()
        self.forward = Trunk().forward


class MapsAlone(Backbone):
    width = 1

    def stage_maps(self, x):
        return [x]


@pytest.mark.parametrize("kind", [Mixed, SetInConstructor])
def test_a_forward_that_is_inherited_or_assigned_is_kept(kind):
    x = torch.rand(2, 1, 5, 5)
    assert torch.equal(built_as(kind)(x), Trunk()(x))


def test_the_features_of_a_network_that_only_gives_maps_are_their_mean():
    x = torch.rand(2, 1, 5, 5)
    assert torch.equal(built_as(MapsAlone)(x), x.mean((2, 3)))


def built_as(kind):
    with forgetting(NETS):
        NETS.register("own")(lambda shape: kind())
        return build_backbone("own", (1, 5, 5))


@pytest.mark.parametrize(
    ("maker", "message"),
    [
        (lambda shape: nn.Linear(2, 3), "is a Linear; let its class inherit from flashback.Backbone"),
        (lambda shape: None, "is a NoneType; let its class inherit from flashback.Backbone"),
        (NoForward, "does not define forward(x); add this method"),
        (NoWidth, "has width None; set `width` to its number of features, 1 or more"),
        (type("Zero", (Own,), {"width": 0}), "has width 0; set `width` to"),
        (type("Yes", (Own,), {"width": True}), "has width True; set `width` to"),
        (Maps, "returns [2, 4, 6, 6] for two images; it must return features [2, 4]"),
        (Narrow, "returns [2, 4] for two images; it must return features [2, 3]"),
        (Pair, "returns tuple for two images; it must return features [2, 4]"),
    ],
)
def test_what_is_no_backbone_is_refused(maker, message):
    NETS.register("own")(maker)
    with pytest.raises(FlashbackError, match=f"^the net 'own' {re.escape(message)}") as caught:
        build_backbone("own", (1, 8, 8))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("size", "side"), [(None, 12), (8, 8)])
def test_a_maker_is_told_the_shape_that_its_network_will_see(size, side):
    class Fixed(Backbone):
        width = 2

        def __init__(self, image_shape):
            super().__init__()
            self.layer = nn.Linear(math.prod(image_shape), 2)

        def forward(self, x):
            return self.layer(x.flatten(1))

    NETS.register("own")(Fixed)
    host = quick_host("finetune", host__net="own", training__image_size=size)
    assert host.net.backbone.layer.in_features == side * side
    train(host)


def test_the_look_at_two_images_leaves_nothing_behind():
    class Noisy(Own):
        def forward(self, x):
            return super().forward(x) + torch.rand(4)

    NETS.register("own")(Noisy)
    torch.manual_seed(3)
    fresh = Noisy((1, 8, 8))
    after = torch.rand(5)
    torch.manual_seed(3)
    built = build_backbone("own", (1, 8, 8))
    assert torch.equal(torch.rand(5), after)
    assert built.training
    assert all(
        torch.equal(one, two) for one, two in zip(built.state_dict().values(), fresh.state_dict().values(), strict=True)
    )
    assert all(parameter.grad is None for parameter in built.parameters())
