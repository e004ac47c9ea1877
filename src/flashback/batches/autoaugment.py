"""AutoAugment's policies for CIFAR-10 and ImageNet (Cubuk et al. 2019, appendix tables) on whole batches.

Each operation belongs to one of three families: a warp (an affine map), a lookup (a table of 256 values per channel) or
a blend (a mix with a simpler image). Each image has parameters in each family, the identity if its operation is of
another one, so that two fixed-shape passes through the families apply a sub-policy to a whole batch. Warps use the
nearest pixel and fill with grey 128.
"""

import math
import tomllib
from functools import lru_cache
from pathlib import Path

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from flashback.batches.augment import blend, grey, per_image

FILL = 128
LEVELS = 9  # a policy's magnitude is a level from 0 to 9 of the operation's range

# Operation: its magnitude at level 0 and at level 9, and whether its sign is drawn; None where it has no magnitude.
# Translations are shares of the image's side (150 of 331 pixels in the paper), the factors of blends are 1 + magnitude.
RANGES: dict[str, tuple[float, float, bool] | None] = {
    "ShearX": (0, 0.3, True),
    "ShearY": (0, 0.3, True),
    "TranslateX": (0, 150 / 331, True),
    "TranslateY": (0, 150 / 331, True),
    "Rotate": (0, 30, True),
    "AutoContrast": None,
    "Invert": None,
    "Equalize": None,
    "Solarize": (256, 0, False),
    "Posterize": (8, 4, False),
    "Color": (0, 0.9, True),
    "Contrast": (0, 0.9, True),
    "Brightness": (0, 0.9, True),
    "Sharpness": (0, 0.9, True),
}
OPERATIONS = {name: index for index, name in enumerate(RANGES)}
IDENTITY = len(OPERATIONS)

Policy = tuple[tuple[tuple[str, float, int], ...], ...]  # pairs of steps: operation, probability, level


def _read_policy(sub_policies: list[str]) -> Policy:
    pairs = [[step.split() for step in sub_policy.split(", ")] for sub_policy in sub_policies]
    return tuple(tuple((name, float(p), int(level)) for name, p, level in pair) for pair in pairs)


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
CIFAR10_POLICY, IMAGENET_POLICY = _read_policy(_TABLES["cifar10"]), _read_policy(_TABLES["imagenet"])


def magnitude(operation: str, level: int) -> float:
    bounds = RANGES[operation]
    if bounds is None:
        return 0.0
    low, high, _ = bounds
    value = low + (high - low) * level / LEVELS
    return float(round(value)) if operation == "Posterize" else value


@lru_cache(maxsize=8)
def _policy_tables(policy: Policy, device: torch.device) -> list[Tensor]:
    """Operations, probabilities, magnitudes and whether signs are drawn, [25, 2] each, cached per device."""
    steps = [
        (OPERATIONS[name], probability, magnitude(name, level), (RANGES[name] or (0, 0, False))[2])
        for sub_policy in policy
        for name, probability, level in sub_policy
    ]
    with torch.inference_mode(False):
        return [torch.tensor(column, device=device).view(-1, 2) for column in zip(*steps, strict=True)]


def draw_steps(policy: Policy, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Draw two operations for each image (or the identity) and their signed magnitudes, both [B, 2]."""
    device = generator.device
    operations, probabilities, magnitudes, signed = _policy_tables(policy, device)
    rows = torch.randint(0, len(policy), (count,), generator=generator, device=device)
    acts = torch.rand((count, 2), generator=generator, device=device) < probabilities[rows]
    negative = torch.rand((count, 2), generator=generator, device=device) < 0.5
    amounts = torch.where(negative & signed[rows], -magnitudes[rows], magnitudes[rows])
    return torch.where(acts, operations[rows], IDENTITY), amounts


def warp(x: Tensor, operation: Tensor, amount: Tensor) -> Tensor:
    """Shear from the corner, translate, or rotate around the centre."""

    def only(name: str) -> Tensor:
        return torch.where(operation == OPERATIONS[name], amount, 0).view(-1, 1, 1)

    height, width = x.shape[-2:]
    angle = only("Rotate") * (math.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    columns = torch.arange(width, device=x.device).view(1, 1, -1) + 0.5 - width / 2
    rows = torch.arange(height, device=x.device).view(1, -1, 1) + 0.5 - height / 2
    # The source of each output pixel: rotated around the centre, then sheared and moved from the corner.
    source_x = cos * columns - sin * rows + width / 2 + only("ShearX") * (rows + height / 2)
    source_y = sin * columns + cos * rows + height / 2 + only("ShearY") * (columns + width / 2)
    source_x = (source_x + only("TranslateX") * width).floor().long()
    source_y = (source_y + only("TranslateY") * height).floor().long()
    inside = (source_x >= 0) & (source_x < width) & (source_y >= 0) & (source_y < height)
    index = source_y.clamp(0, height - 1) * width + source_x.clamp(0, width - 1)
    pixels = x.flatten(2).gather(2, index.flatten(1)[:, None].expand(-1, x.shape[1], -1)).view_as(x)
    return torch.where(inside[:, None], pixels, FILL)


def lookup(x: Tensor, operation: Tensor, amount: Tensor) -> Tensor:
    """AutoContrast, Equalize, Invert, Solarize or Posterize, by a table of 256 values per image and channel."""
    values = torch.arange(256, device=x.device).expand(*x.shape[:2], -1)
    pixels = x.flatten(2).sort(2).values
    low, high = pixels[:, :, :1].long(), pixels[:, :, -1:].long()
    levels = (255 * (values - low)).div((high - low).clamp(min=1), rounding_mode="floor")

    # Pillow's histogram equalisation: pixels below a value, in units of 1/255 of those below the largest one.
    below = torch.searchsorted(pixels, values.to(x.dtype).contiguous())
    unit = below.gather(2, high).div(255, rounding_mode="floor")
    equalised = (below + unit.div(2, rounding_mode="floor")).div(unit.clamp(min=1), rounding_mode="floor")

    amount = amount.view(-1, 1, 1)
    dropped_bits = (8 - amount).clamp(0, 8).long()
    tables = {
        "AutoContrast": torch.where(high > low, levels, values),
        "Equalize": torch.where(unit > 0, equalised, values),
        "Invert": 255 - values,
        "Solarize": torch.where(values < amount, values, 255 - values),
        "Posterize": (values >> dropped_bits) << dropped_bits,
    }
    table = values
    for name, candidate in tables.items():
        table = torch.where((operation == OPERATIONS[name]).view(-1, 1, 1), candidate, table)
    return table.clamp(0, 255).gather(2, x.flatten(2).long()).view_as(x).to(x.dtype)


def smooth(x: Tensor) -> Tensor:
    """A 3x3 mean in which the middle counts five times; the border is unchanged."""
    whole = x.float()
    sums = F.avg_pool2d(whole, 3, stride=1, divisor_override=1) + 4 * whole[..., 1:-1, 1:-1]
    result = whole.clone()
    result[..., 1:-1, 1:-1] = (sums / 13 + 0.5).floor()
    return result


def enhance(x: Tensor, operation: Tensor, amount: Tensor) -> Tensor:
    """Color, Contrast, Brightness or Sharpness: extrapolate from a grey, mean-grey, black or smoothed image."""
    light = (grey(x) + 0.5).floor()
    bases = {
        "Color": light,
        "Contrast": (light.mean((2, 3), keepdim=True) + 0.5).floor(),
        "Brightness": torch.zeros_like(light),
        "Sharpness": smooth(x),
    }
    base, factor = x.float(), torch.ones_like(amount)
    for name, candidate in bases.items():
        mask = operation == OPERATIONS[name]
        base = torch.where(per_image(mask), candidate, base)
        factor = torch.where(mask, 1 + amount, factor)
    return blend(x, base, per_image(factor))


def apply_operation(x: Tensor, operation: Tensor, amount: Tensor) -> Tensor:
    for family in (warp, lookup, enhance):
        x = family(x, operation, amount)
    return x


def auto_augment(x: Tensor, policy: Policy, generator: Generator) -> Tensor:
    operations, amounts = draw_steps(policy, len(x), generator)
    for operation, amount in zip(operations.unbind(1), amounts.unbind(1), strict=True):
        x = apply_operation(x, operation, amount)
    return x
