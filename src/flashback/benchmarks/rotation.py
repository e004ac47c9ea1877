"""Rotated images, for tasks that show known classes in another look."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F


def rotated(images: torch.Tensor, degrees: float) -> torch.Tensor:
    """Rotate uint8 images [n, C, H, W] anticlockwise about their centre, bilinearly; what comes from outside is black.

    In float64, where rounding to whole values gives the same images on every machine, and a right angle is exact.
    """
    if degrees == 0:
        return images
    height, width = images.shape[2:]
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    # Where each pixel comes from, in coordinates from -1 to 1 along both sides.
    turn = [[cosine, -sine * height / width, 0.0], [sine * width / height, cosine, 0.0]]
    matrix = torch.tensor([turn], dtype=torch.float64)
    grid = F.affine_grid(matrix, [1, 1, height, width], align_corners=False)
    pixels = images.reshape(1, -1, height, width).double()  # channels of one image, as all turn by one angle
    result = F.grid_sample(pixels, grid, align_corners=False)
    return result.round().clamp(0, 255).to(torch.uint8).reshape(images.shape)
