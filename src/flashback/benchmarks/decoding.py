"""Decode one image of any size and kind into the pixels that a network takes."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from flashback.benchmarks.tasks import Array

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "GIF")  # of animations and multi-page files, the first frame
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif")
BITS_PER_SAMPLE = 258  # a tag of TIFF
TOO_DEEP = "more than 8 bits a channel; write it with 8"


def decode_image(content: bytes, image_shape: tuple[int, int, int] | None = None) -> Array:
    """Decode the bytes of an image file, upright and without its transparency.

    Args:
        content: The bytes of the file.
        image_shape: Channels (1 or 3), height and width to fit it to; None: three channels of its own size.

    Returns:
        The pixels, uint8 [C, H, W].

    Raises:
        ValueError: If it is not an image, or has more than 8 bits a channel. Damaged files raise nearly every
            exception; `reading` turns them into a sentence.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        file = Image.open(io.BytesIO(content), formats=FORMATS)
    except UnidentifiedImageError:  # its message names the buffer
        raise ValueError("no image of a known format") from None
    with file:
        if _bits_per_channel(file, content) > 8:  # Pillow would drop the low bits of colours
            raise ValueError(TOO_DEEP)
        return fit_upright(file, image_shape)


def _bits_per_channel(file: Image.Image, content: bytes) -> int:
    """The bit depth in the header of a PNG or TIFF; 8 for the other formats, whose images have at most that."""
    if file.format == "PNG":
        return content[24]
    tags: Mapping[int, tuple[int, ...]] = getattr(file, "tag_v2", {})  # a TIFF has some
    return max(tags.get(BITS_PER_SAMPLE, (8,)))


def fit_upright(picture: Image.Image, image_shape: tuple[int, int, int] | None) -> Array:
    """Turn a picture upright in place and fit it to a shape; raises as `decode_image`."""
    from PIL import ImageOps

    if picture.mode[0] in "IF":  # a conversion would clip values at 255
        raise ValueError(TOO_DEEP)
    with suppress(Exception):  # unreadable EXIF data are ignored; damaged pixels raise again below
        if picture.format != "TIFF":  # Pillow turns those itself
            ImageOps.exif_transpose(picture, in_place=True)
    picture = picture.convert("RGB")
    return np.asarray(picture).transpose(2, 0, 1) if image_shape is None else fit_picture(picture, image_shape)


def fit_picture(picture: Image.Image, image_shape: tuple[int, int, int]) -> Array:
    """Cut the centre with the proportions of `image_shape` out of a picture and resize it, to uint8 [C, H, W]."""
    from PIL import Image

    channels, height, width = image_shape
    picture = picture.convert("L" if channels == 1 else "RGB")
    cut_width = min(picture.width, picture.height * width / height)
    cut_height = min(picture.height, picture.width * height / width)
    left, top = (picture.width - cut_width) / 2, (picture.height - cut_height) / 2
    box = (left, top, left + cut_width, top + cut_height)
    picture = picture.resize((width, height), Image.Resampling.BILINEAR, box=box)
    return np.asarray(picture).reshape(height, width, channels).transpose(2, 0, 1)
