"""ConViT (d'Ascoli et al. 2021): a transformer on image patches whose attention starts out local, as a convolution."""

import math

import torch
from torch import Tensor, nn

from flashback.errors import require
from flashback.nets.base import NETS, Backbone, Shape, scaled

HEAD_WIDTH = 32  # features of one attention head
DROP_PATH = 0.1  # share of the images that the last block of DyTox leaves as they are; earlier blocks drop fewer


class ConViT(Backbone):
    """Patches with learned positions, then blocks of gated positional self-attention.

    The features are the mean over patches. DyTox takes the patches themselves, from `stage_maps`.

    Args:
        image_shape: Channels, height and width of an image.
        width: The features of a patch.
        depth: The number of blocks.
    """

    supports_joint_forward = True

    def __init__(self, image_shape: Shape, width: int, depth: int) -> None:
        super().__init__()
        channels, *sides = image_shape
        patch = 4 if min(sides) <= 64 else 16
        require(
            all(side % patch == 0 for side in sides),
            f"the net 'convit' cuts images into patches of {patch} pixels, so their sides must be multiples of it, not "
            f"{sides[0]} and {sides[1]}; set training.image_size, or choose another net",
        )
        grid = (sides[0] // patch, sides[1] // patch)
        self.width = width
        self.patches = Patches(channels, width, patch, grid)
        rates = [DROP_PATH * block / depth for block in range(depth)]
        self.blocks = nn.Sequential(*(GatedBlock(width, grid, rate) for rate in rates))

    def levels(self) -> list[nn.Module]:
        return [self.patches, *self.blocks]

    def last_stage_layers(self) -> dict[str, nn.Module]:
        last = {f"block{index}": block for index, block in enumerate(self.blocks.children(), start=1)}
        return dict(list(last.items())[-2:])


class Patches(nn.Module):
    """Project every patch of an image linearly, and add a learned vector for its position."""

    def __init__(self, channels: int, width: int, patch: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.project = nn.Conv2d(channels, width, patch, stride=patch)
        self.positions = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, width, *grid), std=0.02))

    def forward(self, x: Tensor) -> Tensor:
        patches: Tensor = self.project(x) + self.positions
        return patches


class GatedBlock(nn.Module):
    """Attention between patches and two linear layers on each, both with a shortcut; from maps to maps."""

    def __init__(self, width: int, grid: tuple[int, int], drop_rate: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = GatedAttention(width, grid)
        self.mlp = mlp(width)
        self.drop_path = nn.Dropout2d(drop_rate)  # of whole images, which are its channels here

    def forward(self, maps: Tensor) -> Tensor:
        x: Tensor = maps.flatten(2).mT  # [B, patches, width]
        x = x + self.drop_path(self.attention(self.norm1(x))[:, None])[:, 0]
        x = x + self.drop_path(self.mlp(self.norm2(x))[:, None])[:, 0]
        return x.mT.reshape(maps.shape)


class GatedAttention(nn.Module):
    """Gated positional self-attention (Eq. 7 of d'Ascoli et al.).

    Each head mixes attention by content with attention by relative position: (1 - g) softmax(q k / sqrt(d)) +
    g softmax(v_1 dx + v_2 dy + v_3 (dx^2 + dy^2)), with g = sigmoid(gate). The first heads start with their attention
    on one neighbour each, as the weights of a convolution.
    """

    offsets: Tensor

    def __init__(self, width: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.count = heads_for(width)
        self.query, self.key, self.value = (plain_linear(width, width, bias=False) for _ in range(3))
        self.project = plain_linear(width, width)
        self.position = plain_linear(3, self.count)
        self.gate = nn.Parameter(torch.ones(self.count))
        self.register_buffer("offsets", relative_offsets(*grid), persistent=False)
        self.start_as_convolution()

    @torch.no_grad()
    def start_as_convolution(self) -> None:
        """Centre k x k heads on the offsets of a k x k filter: -|offset - centre|^2, up to a constant."""
        nn.init.eye_(self.value.weight)
        side = math.isqrt(self.count)
        middle = (side - 1) / 2 if side % 2 == 0 else side // 2
        for head in range(side**2):
            centre = torch.tensor([head // side - middle, head % side - middle])  # dx, dy
            self.position.weight[head] = torch.cat([2 * centre, torch.tensor([-1.0])])

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (split_heads(part(x), self.count) for part in (self.query, self.key, self.value))
        content = (query @ key.mT / math.sqrt(query.shape[-1])).softmax(dim=-1)
        position = self.position(self.offsets).permute(2, 0, 1).softmax(dim=-1)
        share = self.gate.sigmoid()[:, None, None]
        attention = (1 - share) * content + share * position
        mixed: Tensor = self.project(merge_heads(attention.to(value.dtype) @ value))
        return mixed


def relative_offsets(rows: int, columns: int) -> Tensor:
    """From patch i to patch j: dx, dy and dx^2 + dy^2, [patches, patches, 3]."""
    y, x = (part.flatten() for part in torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"))
    dx, dy = x[None] - x[:, None], y[None] - y[:, None]
    return torch.stack([dx, dy, dx**2 + dy**2], dim=2).float()


# ---------------------------------------------------------------- parts of every transformer block


def heads_for(width: int) -> int:
    """As many heads as have 32 features each, or fewer wider ones that share the width equally."""
    return next(count for count in range(max(1, width // HEAD_WIDTH), 0, -1) if width % count == 0)


def split_heads(x: Tensor, count: int) -> Tensor:
    """[..., n, width] to [..., heads, n, width / heads]."""
    return x.reshape(*x.shape[:-1], count, -1).transpose(-3, -2)


def merge_heads(x: Tensor) -> Tensor:
    return x.transpose(-3, -2).flatten(-2)


def plain_linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """A linear layer as transformers initialise it: weights of deviation 0.02, no bias at first."""
    layer = nn.Linear(inputs, outputs, bias)
    nn.init.trunc_normal_(layer.weight, std=0.02)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def mlp(width: int) -> nn.Sequential:
    return nn.Sequential(plain_linear(width, 4 * width), nn.GELU(), plain_linear(4 * width, width))


@NETS.register("convit")
def convit(image_shape: Shape, width: float = 1.0) -> Backbone:
    """ConViT with five blocks, 384 wide, and patches of 4 pixels (16 above 64): the encoder of DyTox."""
    return ConViT(image_shape, scaled([384], width)[0], depth=5)


@NETS.register("convit-small")
def convit_small(image_shape: Shape, width: float = 1.0) -> Backbone:
    """ConViT with two blocks, 64 wide, for a CPU."""
    return ConViT(image_shape, scaled([64], width)[0], depth=2)
