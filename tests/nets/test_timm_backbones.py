"""timm's backbones, with a stand-in for the optional package."""

import sys
import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import flashback as fb
from flashback.errors import FlashbackError
from flashback.nets import build_backbone


class Patches(nn.Module):
    """Four tokens of a 4x4 image and a class token in front."""

    num_features = 6
    pretrained_cfg = types.MappingProxyType({"input_size": (3, 4, 4), "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)})

    def __init__(self, channels):
        super().__init__()
        self.embed = nn.Conv2d(channels, 6, 2, stride=2)
        self.cls_token = nn.Parameter(torch.randn(1, 1, 6))
        self.blocks = nn.Sequential(*(nn.Linear(6, 6) for _ in range(6)))

    def forward_features(self, x):
        tokens = self.embed(x).flatten(2).transpose(1, 2)
        return self.blocks(torch.cat([self.cls_token.expand(len(x), -1, -1), tokens], 1))


class Maps(nn.Module):
    """A convolutional model, channels first or last."""

    num_features = 6
    pretrained_cfg = types.MappingProxyType({"input_size": (3, 8, 8)})

    def __init__(self, channels, last=False):
        super().__init__()
        self.conv = nn.Conv2d(channels, 6, 3, stride=2)
        self.last = last

    def forward_features(self, x):
        out = self.conv(x)
        return out.permute(0, 2, 3, 1) if self.last else out


@pytest.fixture
def timm(monkeypatch):
    made = []
    models = {"patches": Patches, "maps": Maps, "maps_last": lambda channels: Maps(channels, last=True)}

    def create_model(name, pretrained, num_classes, in_chans):
        assert num_classes == 0
        made.append((name, pretrained))
        return models[name](in_chans)

    module = types.ModuleType("timm")
    module.create_model, module.is_model, module.list_models = create_model, models.__contains__, lambda: list(models)
    monkeypatch.setitem(sys.modules, "timm", module)
    return made


@pytest.mark.parametrize("channels", [1, 3])
def test_mean_of_all_tokens_of_the_resized_image(timm, channels):
    backbone = build_backbone("timm:patches", (channels, 10, 10))
    x = torch.randn(2, channels, 10, 10)
    tokens = backbone.model.forward_features(F.interpolate(x, (4, 4), mode="bicubic", align_corners=False))
    assert tokens.shape[1] == 5
    torch.testing.assert_close(backbone(x), tokens.mean(1))
    assert backbone.width == 6
    assert timm == [("patches", False)]


def test_class_token_and_pretrained_weights(timm):
    backbone = build_backbone("timm:patches:pretrained:cls", (3, 4, 4))
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(backbone(x), backbone.model.forward_features(x)[:, 0])
    assert timm == [("patches", True)]


def test_images_are_normalised_as_the_pretrained_weights_know_them(timm):
    assert build_backbone("timm:patches", (3, 4, 4)).normalisation is None
    assert build_backbone("timm:patches:pretrained", (3, 4, 4)).normalisation == ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    (mean,), (std,) = build_backbone("timm:patches:pretrained", (1, 4, 4)).normalisation
    assert (mean, std) == pytest.approx((0.4, 0.3))


def test_a_host_with_pretrained_weights_shows_them_such_images(timm, monkeypatch):
    images = torch.randint(0, 256, (8, 3, 4, 4), dtype=torch.uint8)
    x, y = images.permute(0, 2, 3, 1).numpy(), torch.arange(8).numpy() % 2
    benchmark = fb.load_benchmark({"x_train": x, "y_train": y, "x_test": x, "y_test": y}, sizes=1)
    seen = {}
    for net in ("timm:patches", "timm:patches:pretrained"):
        host = fb.build_host("finetune", benchmark, net=net, device="cpu")
        seen[net] = host.views.plain(images)
    unit = images / 255
    own = torch.tensor(benchmark.mean).view(1, 3, 1, 1), torch.tensor(benchmark.std).view(1, 3, 1, 1)
    torch.testing.assert_close(seen["timm:patches"], (unit - own[0]) / own[1])
    mean, std = torch.tensor([0.5, 0.4, 0.3]).view(1, 3, 1, 1), torch.tensor([0.2, 0.3, 0.4]).view(1, 3, 1, 1)
    torch.testing.assert_close(seen["timm:patches:pretrained"], (unit - mean) / std)


@pytest.mark.parametrize("name", ["timm:maps", "timm:maps_last"])
def test_maps_are_averaged_over_space(timm, name):
    backbone = build_backbone(name, (3, 8, 8))
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(backbone(x), backbone.model.conv(x).mean((2, 3)))


def test_last_stage_layers(timm):
    backbone = build_backbone("timm:patches", (3, 4, 4))
    layers = backbone.last_stage_layers()
    assert list(layers) == ["block3", "block4", "block5", "block6"]
    assert list(layers.values()) == list(backbone.model.blocks)[2:]
    with pytest.raises(FlashbackError, match="CKA needs"):
        build_backbone("timm:maps", (3, 8, 8)).last_stage_layers()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("timm:patches:pretraind", "unknown timm option 'pretraind'; did you mean 'pretrained'"),
        ("timm:patchs", "unknown timm model 'patchs'; did you mean 'patches'"),
        ("timm:maps:cls", "no class token"),
    ],
)
def test_errors(timm, name, message):
    with pytest.raises(FlashbackError, match=message):
        build_backbone(name, (3, 8, 8))


def test_timm_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(FlashbackError, match="needs the package timm; install it with pip install"):
        build_backbone("timm:vit_small_patch16_224", (3, 32, 32))
