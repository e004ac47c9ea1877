"""A small network for small benchmarks: a training step on one CPU core takes milliseconds."""

from __future__ import annotations

from torch import Tensor, nn

from flashback.nets.base import NETS, Backbone, Shape
from flashback.nets.norms import BatchNorm2d


class SmallCNN(Backbone):
    """Four conv-BN-ReLU layers, the first three with stride 2, and the mean over space."""

    width = 64
    takes_parts = True

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential()
        for inputs, outputs, stride in ((channels, 16, 2), (16, 32, 2), (32, 64, 2), (64, 64, 1)):
            conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
            self.layers.extend([conv, BatchNorm2d(outputs), nn.ReLU()])

    def forward(self, x: Tensor) -> Tensor:
        return self.stage_maps(x)[-1].mean((2, 3))

    def stage_maps(self, x: Tensor) -> list[Tensor]:
        """Every convolution, with its norm and ReLU, is a stage."""
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
def smallcnn(image_shape: Shape) -> Backbone:
    """Four convolutions, for images below 32 pixels and for a CPU."""
    return SmallCNN(image_shape[0])
