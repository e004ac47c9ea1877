"""timm's backbones, with a stand-in for the optional package."""

import sys
import types

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn
from torch.nn import functional as F

import flashback as fb
from flashback.errors import FlashbackError
from flashback.hosts.external import external_code
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
def timm(monkeypatch, tmp_path):
    """A package with three models; the weights of 'patches' can be downloaded, and are in the cache by `cache`."""
    created_models = []
    models = {"patches": Patches, "maps": Maps, "maps_last": lambda channels: Maps(channels, last=True)}

    def create_model(name, num_classes, in_chans, pretrained=False, pretrained_cfg_overlay=None):
        assert num_classes == 0
        model = models[name](in_chans)
        if pretrained_cfg_overlay:
            model.load_state_dict(pretrained_cfg_overlay["state_dict"], strict=False)  # as timm does without a head
            model.pretrained_cfg = {**model.pretrained_cfg, **pretrained_cfg_overlay}
        created_models.append((name, pretrained, bool(pretrained_cfg_overlay)))
        return model

    def get_pretrained_cfg(name):
        return types.SimpleNamespace(hf_hub_id=None, url="https://x/weights.pt" if name == "patches" else None)

    module = types.ModuleType("timm")
    module.create_model, module.is_model, module.list_models = create_model, models.__contains__, lambda: list(models)
    module.get_pretrained_cfg = get_pretrained_cfg
    monkeypatch.setitem(sys.modules, "timm", module)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    return created_models


@pytest.fixture
def cache(timm, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    weights = Patches(3).state_dict()
    torch.save(weights, tmp_path / "checkpoints" / "weights.pt")
    return weights


@pytest.mark.parametrize("channels", [1, 3])
def test_mean_of_all_tokens_of_the_resized_image(timm, channels):
    backbone = build_backbone("timm:patches", (channels, 10, 10))
    x = torch.randn(2, channels, 10, 10)
    tokens = backbone.model.forward_features(F.interpolate(x, (4, 4), mode="bicubic", align_corners=False))
    assert tokens.shape[1] == 5
    torch.testing.assert_close(backbone(x), tokens.mean(1))
    assert backbone.width == 6
    assert timm == [("patches", False, False)]


def test_the_class_token_are_the_features_if_asked_for(timm):
    backbone = build_backbone("timm:patches:cls", (3, 4, 4))
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(backbone(x), backbone.model.forward_features(x)[:, 0])


def test_both_prefixes_name_the_same_model(timm):
    build_backbone("timm/patches:cls", (3, 4, 4))
    assert timm == [("patches", False, False)]


# ---------------------------------------------------------------- weights


def has_weights(backbone, weights):
    assert "state_dict" not in backbone.model.pretrained_cfg
    return all(torch.equal(tensor, weights[name]) for name, tensor in backbone.model.state_dict().items())


@pytest.mark.parametrize("name", ["timm:patches:pretrained", "timm/patches:pretrained:download:cls"])
def test_weights_of_the_cache_are_taken_without_a_download(timm, cache, name):
    assert has_weights(build_backbone(name, (3, 4, 4)), cache)
    assert ("patches", True, False) not in timm


def test_missing_weights_are_downloaded_only_if_asked_for(timm):
    with pytest.raises(FlashbackError, match="write timm:patches:pretrained:download to fetch them"):
        build_backbone("timm:patches:pretrained", (3, 4, 4))
    assert not timm
    build_backbone("timm:patches:pretrained:download", (3, 4, 4))
    assert timm == [("patches", True, False)]


@pytest.mark.parametrize("suffix", ["safetensors", "pt", "pth"])
def test_weights_of_a_file(timm, tmp_path, suffix):
    weights, file = Patches(3).state_dict(), tmp_path / f"a:b.{suffix}"
    if suffix == "safetensors":
        safetensors.torch.save_file(weights, file)
    else:  # as training scripts save them, from several GPUs
        torch.save({"epoch": 3, "model": {f"module.{name}": tensor for name, tensor in weights.items()}}, file)
    backbone = build_backbone(f"timm:patches:cls:weights={file}", (3, 4, 4))
    assert has_weights(backbone, weights)
    assert backbone.normalisation == ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


def test_a_file_that_does_not_fit_is_refused(timm, tmp_path):
    file = tmp_path / "weights.pt"
    for content, message in (
        ({"conv.weight": torch.zeros(6, 3, 3, 3)}, "do not fit the timm model patches: cls_token is missing"),
        ({"cls_token": torch.zeros(1, 1, 7)}, r"do not fit the timm model patches \(Error.*size mismatch"),
        ([torch.zeros(3)], "holds no named tensors"),
        ({}, "holds no named tensors"),
    ):
        torch.save(content, file)
        with pytest.raises(FlashbackError, match=message):
            build_backbone(f"timm:patches:weights={file}", (3, 4, 4))
    file.write_bytes(b"no weights")
    with pytest.raises(FlashbackError, match="cannot be read as weights"):
        build_backbone(f"timm:patches:weights={file}", (3, 4, 4))
    with pytest.raises(FlashbackError, match="there is no file of weights nowhere"):
        build_backbone("timm:patches:weights=nowhere.pt", (3, 4, 4))


def test_a_trained_model_is_loaded_without_the_weights_that_it_started_from(timm, cache, tmp_path, monkeypatch):
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (12, 4, 4, 3), dtype=torch.uint8, generator=draw).numpy()
    np.savez(tmp_path / "data.npz", x_train=x, y_train=np.arange(12) % 2, x_test=x, y_test=np.arange(12) % 2)
    settings = {"benchmark.sizes": [1, 1], "host.net": "timm:patches:pretrained"}
    config = fb.configure("simplecil", tmp_path / "data.npz", settings=settings)
    fb.run(config, out=tmp_path / "run", device="cpu")
    (tmp_path / "checkpoints" / "weights.pt").unlink()
    host = fb.load_trained(tmp_path / "run", device="cpu")
    assert has_weights(host.net.backbone, cache)
    assert host.views.mean == (0.5, 0.4, 0.3)


def test_another_content_of_a_file_of_weights_is_another_run(timm, tmp_path):
    file = tmp_path / "weights.pt"
    digests = []
    for _ in range(2):
        torch.save(Patches(3).state_dict(), file)
        digests.append(external_code("icarl", f"timm:patches:weights={file}"))
    assert digests[0] != digests[1]
    assert external_code("icarl", "timm:patches") == {}


def test_images_are_normalised_as_the_pretrained_weights_know_them(timm):
    assert build_backbone("timm:patches", (3, 4, 4)).normalisation is None
    download = "timm:patches:pretrained:download"
    assert build_backbone(download, (3, 4, 4)).normalisation == ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    (mean,), (std,) = build_backbone(download, (1, 4, 4)).normalisation
    assert (mean, std) == pytest.approx((0.4, 0.3))


def test_a_host_with_pretrained_weights_shows_them_such_images(timm, cache):
    images = torch.randint(0, 256, (8, 3, 4, 4), dtype=torch.uint8)
    x, y = images.permute(0, 2, 3, 1).numpy(), torch.arange(8).numpy() % 2
    benchmark = fb.load_benchmark({"x_train": x, "y_train": y, "x_test": x, "y_test": y}, sizes=1)
    seen = {}
    for net in ("timm:patches", "timm:patches:pretrained"):
        host = fb.build_host("finetune", benchmark, net=net, device="cpu")
        seen[net] = host.views.plain(images)
    unit = images / 255
    statistics = torch.tensor(benchmark.mean).view(1, 3, 1, 1), torch.tensor(benchmark.std).view(1, 3, 1, 1)
    torch.testing.assert_close(seen["timm:patches"], (unit - statistics[0]) / statistics[1])
    mean, std = torch.tensor([0.5, 0.4, 0.3]).view(1, 3, 1, 1), torch.tensor([0.2, 0.3, 0.4]).view(1, 3, 1, 1)
    torch.testing.assert_close(seen["timm:patches:pretrained"], (unit - mean) / std)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_real_timm_takes_weights_of_a_file_and_of_its_cache(tmp_path, monkeypatch, channels):
    real = pytest.importorskip("timm")
    hub = pytest.importorskip("huggingface_hub")
    name, model = "test_resnet", real.create_model("test_resnet")
    safetensors.torch.save_file(model.state_dict(), tmp_path / "model.safetensors")
    backbones = [build_backbone(f"timm/{name}:weights={tmp_path / 'model.safetensors'}", (channels, 32, 32))]
    repository = real.get_pretrained_cfg(name).hf_hub_id
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = tmp_path / "hub" / f"models--{repository.replace('/', '--')}"
    for part, content in (("refs/main", b"abc"), ("snapshots/abc/model.safetensors", None)):
        (folder / part).parent.mkdir(parents=True)
        (folder / part).write_bytes(content or (tmp_path / "model.safetensors").read_bytes())
    backbones.append(build_backbone(f"timm:{name}:pretrained", (channels, 32, 32)))
    for backbone in backbones:
        torch.testing.assert_close(backbone.model.layer4[0].conv1.weight, model.layer4[0].conv1.weight)
        assert len(backbone.normalisation[0]) == channels


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
        ("timm:maps:pretrained", "timm has no weights for the model maps; choose another, or give a file"),
        ("timm:maps:pretrained:weights=x", "names weights twice"),
        ("timm:maps:weights=", "names no file"),
    ],
)
def test_errors(timm, name, message):
    with pytest.raises(FlashbackError, match=message):
        build_backbone(name, (3, 8, 8))


def test_timm_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(FlashbackError, match="needs the package timm; install it with pip install"):
        build_backbone("timm:vit_small_patch16_224", (3, 32, 32))
