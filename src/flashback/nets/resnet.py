"""Residual networks (He et al. 2016) as used in continual-learning papers."""

from collections.abc import Callable, Sequence
from typing import Self

from torch import Tensor, nn
from torch.nn import functional as F

from flashback.nets.base import NETS, Backbone, Shape, scaled
from flashback.nets.batchnorm import BatchNorm2d

Shortcut = Callable[[int, int, int], nn.Module]  # from input channels, output channels and stride


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


def projection(inputs: int, outputs: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), BatchNorm2d(outputs))


class ZeroPadding(nn.Module):
    """A shortcut without parameters: every stride-th pixel, and zeros in the new channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.new_channels = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))


class BasicBlock(nn.Module):
    """conv-BN-ReLU-conv-BN plus the shortcut, then ReLU (except in the last block of signed features)."""

    def __init__(self, inputs: int, outputs: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1 = conv3x3(inputs, outputs, stride)
        self.bn1 = BatchNorm2d(outputs)
        self.conv2 = conv3x3(outputs, outputs)
        self.bn2 = BatchNorm2d(outputs)
        same_shape = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same_shape else shortcut(inputs, outputs, stride)
        self.last: nn.Module = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.last(out + self.shortcut(x))  # type: ignore[no-any-return]


class ResNet(Backbone):
    """A stem, stages of basic blocks (all but the first halve the resolution), and the spatial mean."""

    supports_joint_forward = True

    def __init__(
        self, stem: nn.Module, widths: Sequence[int], depth: int, shortcut: Shortcut = projection, signed: bool = False
    ) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.Sequential()
        inputs = widths[0]
        for index, outputs in enumerate(widths):
            first = BasicBlock(inputs, outputs, 1 if index == 0 else 2, shortcut)
            rest = (BasicBlock(outputs, outputs, 1, shortcut) for _ in range(depth - 1))
            self.stages.append(nn.Sequential(first, *rest))
            inputs = outputs
        self.width = inputs
        if signed:
            self._last_blocks()[-1].last = nn.Identity()

    def stage_maps(self, x: Tensor) -> list[Tensor]:
        maps = [self.stem(x)]
        for stage in self.stages:
            maps.append(stage(maps[-1]))
        return maps[1:]

    def levels(self) -> list[nn.Module]:
        first, *others = self.stages
        return [nn.Sequential(self.stem, first), *others]

    def last_stage_layers(self) -> dict[str, nn.Module]:
        blocks = enumerate(self._last_blocks(), start=1)
        return {f"block{index}.{conv}": getattr(block, conv) for index, block in blocks for conv in ("conv1", "conv2")}

    def _last_blocks(self) -> list[BasicBlock]:
        return [block for block in self.stages[-1].children() if isinstance(block, BasicBlock)]

    def with_he_init(self) -> Self:
        """Initialise convolutions from N(0, 2 / (k * k * outputs))."""
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        return self


def small_stem(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(conv3x3(channels, width), BatchNorm2d(width), nn.ReLU())


RESNET18 = (64, 128, 256, 512)
RESNET32 = (16, 32, 64)


@NETS.register("resnet18")
def resnet18(image_shape: Shape, width: float = 1.0) -> Backbone:
    """ResNet-18 for small images: 3x3 stem, no max-pool, default initialisation of PyTorch (as in the DER papers)."""
    widths = scaled(RESNET18, width)
    return ResNet(small_stem(image_shape[0], widths[0]), widths, depth=2)


@NETS.register("resnet18-imagenet")
def resnet18_imagenet(image_shape: Shape, width: float = 1.0) -> Backbone:
    """ResNet-18 for large images: 7x7 stem with stride 2, then max-pool."""
    widths = scaled(RESNET18, width)
    conv = nn.Conv2d(image_shape[0], widths[0], 7, stride=2, padding=3, bias=False)
    stem = nn.Sequential(conv, BatchNorm2d(widths[0]), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1))
    return ResNet(stem, widths, depth=2).with_he_init()


@NETS.register("resnet18-imagenet-b50")
def resnet18_imagenet_b50(image_shape: Shape, width: float = 1.0) -> Backbone:
    """The ImageNet ResNet-18 of the protocols that start with half of the classes: 3x3 stem, then max-pool."""
    widths = scaled(RESNET18, width)
    stem = small_stem(image_shape[0], widths[0]).append(nn.MaxPool2d(3, stride=2, padding=1))
    return ResNet(stem, widths, depth=2).with_he_init()


@NETS.register("resnet32")
def resnet32(image_shape: Shape, width: float = 1.0) -> Backbone:
    """ResNet-32 for CIFAR with parameter-free shortcuts."""
    widths = scaled(RESNET32, width)
    return ResNet(small_stem(image_shape[0], widths[0]), widths, depth=5, shortcut=ZeroPadding).with_he_init()


@NETS.register("resnet32-cosine")
def resnet32_cosine(image_shape: Shape, width: float = 1.0) -> Backbone:
    """ResNet-32 for cosine heads (LUCIR, PODNet): projections as shortcuts, no last ReLU, so features are signed."""
    widths = scaled(RESNET32, width)
    return ResNet(small_stem(image_shape[0], widths[0]), widths, depth=5, signed=True).with_he_init()
