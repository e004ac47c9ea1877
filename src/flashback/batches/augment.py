"""Random augmentation of batches of images on their device, with separate parameters for each image.

Images are uint8 [0, 255] or float [0, 1] tensors [B, C, H, W] with one or three channels, and keep their dtype. Shapes
are fixed and nothing synchronises with the GPU, so all of it can be captured in a CUDA graph.
"""

import math
from functools import lru_cache

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue in the grey value (ITU-R 601)
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
CROP_TRIES = 10


@lru_cache(maxsize=64)
def constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """A small float tensor, cached: it could not be copied to the device while a graph is captured."""
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=torch.float32, device=device)


def uniform(shape: tuple[int, ...], low: float, high: float, generator: Generator) -> Tensor:
    return torch.rand(shape, generator=generator, device=generator.device) * (high - low) + low


def random_mask(count: int, p: float, generator: Generator) -> Tensor:
    return torch.rand((count, 1, 1, 1), generator=generator, device=generator.device) < p


def per_image(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)


def as_unit(x: Tensor) -> Tensor:
    return x if x.is_floating_point() else x.float() / 255


def like(result: Tensor, x: Tensor) -> Tensor:
    """Convert a float result to the range and dtype of x."""
    return result.clamp(0, 1) if x.is_floating_point() else result.round().clamp(0, 255).to(x.dtype)


# Geometry: crop, flip, resized crop, cutout


def random_crop(x: Tensor, padding: int, generator: Generator) -> Tensor:
    """Crop a window of the size of x at a random place in each zero-padded image."""
    height, width = x.shape[-2:]
    corners = torch.randint(0, 2 * padding + 1, (len(x), 2), generator=generator, device=generator.device)
    windows = F.pad(x, (padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(len(x), device=x.device), :, corners[:, 0], corners[:, 1]]


def centre_crop(x: Tensor, size: int) -> Tensor:
    top, left = (x.shape[-2] - size) // 2, (x.shape[-1] - size) // 2
    return x[..., top : top + size, left : left + size]


def random_flip(x: Tensor, generator: Generator, p: float = 0.5) -> Tensor:
    return torch.where(random_mask(len(x), p, generator), x.flip(-1), x)


def draw_boxes(
    count: int, shape: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float], generator: Generator
) -> Tensor:
    """Draw boxes (top, left, height, width) in whole pixels, with random area and aspect ratio."""
    height, width = shape
    tries = (count, CROP_TRIES)
    area = uniform(tries, *scale, generator) * height * width
    aspect = uniform(tries, math.log(ratio[0]), math.log(ratio[1]), generator).exp()
    heights, widths = (area / aspect).sqrt().round(), (area * aspect).sqrt().round()
    fits = (heights >= 1) & (heights <= height) & (widths >= 1) & (widths <= width)
    # The first try that fits; without any, the largest centred box of an allowed ratio.
    first = fits.int().argmax(1, keepdim=True)
    fitted = fits.any(1)
    nearest = min(max(width / height, ratio[0]), ratio[1])
    h = torch.where(fitted, heights.gather(1, first)[:, 0], max(1, min(height, round(width / nearest))))
    w = torch.where(fitted, widths.gather(1, first)[:, 0], max(1, min(width, round(height * nearest))))
    place = torch.where(fitted[:, None], uniform((count, 2), 0, 1, generator), 0.5)
    # floor(u * (n + 1)) is uniform over 0..n; u may round up to 1, hence the minimum.
    top = torch.minimum((place[:, 0] * (height - h + 1)).floor(), height - h)
    left = torch.minimum((place[:, 1] * (width - w + 1)).floor(), width - w)
    return torch.stack([top, left, h, w], 1)


def _resampling(start: Tensor, length: Tensor, inputs: int, outputs: int) -> Tensor:
    """Matrices [B, outputs, inputs] that resample [start, start + length) linearly, with antialiasing."""
    step = (length / outputs)[:, None, None]
    pixels = torch.arange(inputs, device=start.device) + 0.5
    centres = start[:, None, None] + step * (torch.arange(outputs, device=start.device)[:, None] + 0.5)
    weights = (1 - (pixels - centres).abs() / step.clamp(min=1)).clamp(min=0)
    inside = (pixels > start[:, None]) & (pixels < (start + length)[:, None])
    weights = weights * inside[:, None]
    return weights / weights.sum(2, keepdim=True)


def resized_crop_at(x: Tensor, boxes: Tensor, shape: tuple[int, int]) -> Tensor:
    """Resample the box of each image to a given shape by two batched matrix products."""
    top, left, h, w = boxes.unbind(1)
    rows = _resampling(top, h, x.shape[-2], shape[0])
    columns = _resampling(left, w, x.shape[-1], shape[1])
    with torch.autocast(x.device.type, enabled=False):
        return like(rows[:, None] @ x.float() @ columns[:, None].transpose(2, 3), x)


def random_resized_crop(
    x: Tensor, shape: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float], generator: Generator
) -> Tensor:
    return resized_crop_at(x, draw_boxes(len(x), (x.shape[-2], x.shape[-1]), scale, ratio, generator), shape)


def cutout(x: Tensor, size: int, generator: Generator) -> Tensor:
    """Set a square around a random pixel of each image to zero."""

    def covered(length: int) -> Tensor:
        centre = torch.randint(0, length, (len(x), 1), generator=generator, device=generator.device)
        distance = torch.arange(length, device=x.device) - (centre - size // 2)
        return (distance >= 0) & (distance < size)

    rows, columns = covered(x.shape[-2]), covered(x.shape[-1])
    return x.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0)


# Colour: hue and saturation do not change grey images


def grey(x: Tensor) -> Tensor:
    """Grey values, float [B, 1, H, W] in the range of x."""
    if x.shape[1] == 1:
        return x.float()
    return (x.float() * constant(LUMA, x.device).view(1, 3, 1, 1)).sum(1, keepdim=True)


def blend(x: Tensor, base: Tensor, factor: Tensor) -> Tensor:
    """base + factor * (x - base) in the range of x: factor 0 gives the base, 1 gives x, 2 extrapolates."""
    result = base + factor * (x.float() - base)
    return like(result if x.is_floating_point() else result.floor(), x)  # rounded down as in Pillow's ImageEnhance


def brightness_jitter(x: Tensor, generator: Generator, amount: float = 63 / 255) -> Tensor:
    factors = uniform((len(x), 1, 1, 1), 1 - amount, 1 + amount, generator)
    return blend(x, torch.zeros((), device=x.device), factors)


def greyscale(x: Tensor, p: float, generator: Generator) -> Tensor:
    return torch.where(random_mask(len(x), p, generator), like(grey(x), x), x)


def shift_hue(x: Tensor, turns: Tensor) -> Tensor:
    """Rotate the hue of float images by [B] full circles, keeping saturation and value (HSV)."""
    if x.shape[1] == 1:
        return x
    red, green, blue = x.unbind(1)
    value, least = x.amax(1), x.amin(1)
    chroma = value - least
    safe = torch.where(chroma > 0, chroma, 1)
    sextant = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    hue = sextant + 6 * turns.view(-1, 1, 1)
    # A channel decreases from the value by the chroma as the hue leaves its third of the circle.
    places = (hue[:, None] + constant((5.0, 3.0, 1.0), x.device).view(1, 3, 1, 1)) % 6
    fall = torch.minimum(places, 4 - places).clamp(0, 1)
    return value[:, None] - chroma[:, None] * fall


def draw_jitter(
    count: int, brightness: float, contrast: float, saturation: float, hue: float, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Draw the amounts (three factors around 1, turns around 0) and the order of the operations, both [B, 4]."""
    spread = constant((brightness, contrast, saturation, hue), generator.device)
    middle = constant((1.0, 1.0, 1.0, 0.0), generator.device)
    lowest = constant((0.0, 0.0, 0.0, -0.5), generator.device)
    amounts = torch.maximum(middle - spread, lowest)
    amounts = amounts + uniform((count, 4), 0, 1, generator) * (middle + spread - amounts)
    order = torch.rand((count, 4), generator=generator, device=generator.device).argsort(1)
    return amounts, order


def jitter_by(x: Tensor, amounts: Tensor, order: Tensor) -> Tensor:
    """Change brightness, contrast, saturation and hue of float images, in a separate order for each image."""
    for turn in order.unbind(1):
        amount = amounts.gather(1, turn[:, None])[:, 0]
        light = grey(x)
        base = torch.where(per_image(turn == CONTRAST), light.mean((2, 3), keepdim=True), light)
        base = torch.where(per_image(turn == BRIGHTNESS), 0, base)
        hued = shift_hue(x, torch.where(turn == HUE, amount, 0))
        x = torch.where(per_image(turn == HUE), hued, blend(x, base, per_image(amount)))
    return x


def color_jitter(
    x: Tensor, brightness: float, contrast: float, saturation: float, hue: float, generator: Generator, p: float = 1.0
) -> Tensor:
    mask = random_mask(len(x), p, generator)
    amounts, order = draw_jitter(len(x), brightness, contrast, saturation, hue, generator)
    return torch.where(mask, jitter_by(x, amounts, order), x)
