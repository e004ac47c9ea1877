"""Small networks without shortcuts."""

from torch import Tensor, nn

from flashback.errors import FlashbackError
from flashback.nets.base import NETS, Backbone, Shape, scaled
from flashback.nets.batchnorm import BatchNorm2d


class SmallCNN(Backbone):
    """Four conv-BN-ReLU layers, the first three with stride 2, and the spatial mean.

    Meant for small benchmarks: a training step on one CPU core takes milliseconds.
    """

    supports_joint_forward = True

    def __init__(self, channels: int, width: float = 1.0) -> None:
        super().__init__()
        widths = scaled((16, 32, 64, 64), width)
        self.width = widths[-1]
        self.layers = nn.Sequential()
        for inputs, outputs, stride in zip((channels, *widths), widths, (2, 2, 2, 1), strict=False):
            conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
            self.layers.extend([conv, BatchNorm2d(outputs), nn.ReLU()])

    def stage_maps(self, x: Tensor) -> list[Tensor]:
        maps: list[Tensor] = []
        for layer in self.layers:
            x = layer(x)
            maps += [x] if isinstance(layer, nn.ReLU) else []
        return maps

    def levels(self) -> list[nn.Module]:
        return [self.layers[start : start + 3] for start in range(0, len(self.layers), 3)]

    def last_stage_layers(self) -> dict[str, nn.Module]:
        convs = [layer for layer in self.layers if isinstance(layer, nn.Conv2d)]
        return {"conv3": convs[-2], "conv4": convs[-1]}


@NETS.register("smallcnn")
def smallcnn(image_shape: Shape, width: float = 1.0) -> Backbone:
    """Four convolutions, for images below 32 pixels and for a CPU."""
    return SmallCNN(image_shape[0], width)


class CNN6(Backbone):
    """Three times two convolutions, max-pool and dropout, then a hidden layer of 256 units with dropout.

    It has no normalisation layers. `width` scales the convolutions; the hidden layer keeps its size.
    """

    width = 256
    supports_joint_forward = True

    def __init__(self, image_shape: Shape, width: float = 1.0) -> None:
        super().__init__()
        channels, height, breadth = image_shape
        if min(height, breadth) < 8:
            raise FlashbackError(
                f"the net 'cnn6' halves images three times, so they need 8 pixels a side, not {min(height, breadth)}"
            )
        widths = scaled((32, 64, 128), width)
        self.blocks = nn.Sequential(*map(pooled_pair, (channels, *widths), widths))
        units = nn.Linear(widths[-1] * (height // 8) * (breadth // 8), self.width)
        as_map = nn.Unflatten(1, (self.width, 1, 1))
        self.hidden = nn.Sequential(nn.Flatten(), units, nn.ReLU(), nn.Dropout(0.5), as_map)

    def forward(self, x: Tensor) -> Tensor:
        return self.stage_maps(x)[-1].flatten(1)

    def levels(self) -> list[nn.Module]:
        """The pooled blocks, then the hidden layer, whose maps have one pixel."""
        return [*self.blocks, self.hidden]

    def last_stage_layers(self) -> dict[str, nn.Module]:
        conv5, _, conv6, *_ = self.blocks[-1].children()
        return {"conv5": conv5, "conv6": conv6}


def pooled_pair(inputs: int, outputs: int) -> nn.Sequential:
    convs = (nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU())
    return nn.Sequential(*convs, nn.MaxPool2d(2), nn.Dropout(0.25))


@NETS.register("cnn6")
def cnn6(image_shape: Shape, width: float = 1.0) -> Backbone:
    """Six convolutions with max-pool and dropout, no batch norm: the network of AFEC and CAF for CIFAR."""
    return CNN6(image_shape, width)
