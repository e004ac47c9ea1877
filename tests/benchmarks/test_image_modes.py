"""Decoding of single images: orientation, colour modes, transparency."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flashback.benchmarks.decoding import decode_image
from flashback.benchmarks.image_files import Store
from flashback.errors import FlashbackError

ORIENTATION = 0x0112
UPRIGHT: dict[int, Callable[[np.ndarray], np.ndarray]] = {  # from the stored pixels, by the EXIF standard
    1: lambda stored: stored,
    2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1],
    4: lambda stored: stored[::-1],
    5: lambda stored: stored.swapaxes(0, 1),
    6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: np.rot90(stored, 2).swapaxes(0, 1),
    8: lambda stored: np.rot90(stored, 1),
}


def encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return stream.getvalue()


def decoded(content: bytes, side: int | None = None) -> np.ndarray:
    """[H, W, 3]."""
    store = Store(Path("pictures"), lambda name: content, Path("unused"))
    return store.decode("one", side).transpose(1, 2, 0)


def pixels(height: int = 5, width: int = 7) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", UPRIGHT)
def test_the_exif_orientation_is_applied(kind: str, orientation: int) -> None:
    stored, exif = pixels(), Image.Exif()
    exif[ORIENTATION] = orientation
    content = encoded(Image.fromarray(stored), kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    assert np.array_equal(decoded(content), UPRIGHT[orientation](stored))


def test_a_photograph_taken_upright_is_upright() -> None:
    stored, exif = np.zeros((40, 80, 3), np.uint8), Image.Exif()
    stored[:, :40] = 250  # the left half of the sensor, which is the top of the photograph
    exif[ORIENTATION] = 6
    photograph = decoded(encoded(Image.fromarray(stored), "JPEG", exif=exif, quality=100))
    assert photograph.shape == (80, 40, 3)
    assert (photograph[:30].min(), photograph[50:].max()) == (250, 0)
    square = decoded(encoded(Image.fromarray(stored), "JPEG", exif=exif, quality=100), side=8)
    assert (square[0].min(), square[-1].max()) == (250, 0)


@pytest.mark.parametrize("exif", [b"", b"Exif\x00\x00", b"Exif\x00\x00garbage", b"Exif\x00\x00MM\x00*\xff\xff\xff\xff"])
def test_damaged_exif_data_are_ignored(exif: bytes) -> None:
    stored = np.full((6, 4, 3), 90, np.uint8)
    assert np.array_equal(decoded(encoded(Image.fromarray(stored), "JPEG", exif=exif, quality=100)), stored)


def test_grey_images_have_three_equal_channels() -> None:
    grey = pixels()[..., 0]
    expected = np.stack([grey] * 3, 2)
    assert np.array_equal(decoded(encoded(Image.fromarray(grey), "PNG")), expected)
    with_alpha = Image.merge("LA", [Image.fromarray(grey), Image.new("L", (7, 5), 100)])
    assert np.array_equal(decoded(encoded(with_alpha, "PNG")), expected)


def test_black_and_white_images_are_0_and_255() -> None:
    bits = pixels()[..., 0] > 127
    assert np.array_equal(decoded(encoded(Image.fromarray(bits), "PNG"))[..., 1], 255 * bits)


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
@pytest.mark.parametrize("options", [{}, {"transparency": 1}, {"transparency": b"\x00\x80\xff"}])
def test_palettes_are_looked_up(options: dict[str, Any]) -> None:
    colours = np.array([[10, 20, 30], [200, 0, 0], [0, 99, 255]], np.uint8)
    places = pixels()[..., 0] % 3
    picture = Image.fromarray(places, mode="P")
    picture.putpalette(colours.tobytes())
    assert np.array_equal(decoded(encoded(picture, "PNG", **options)), colours[places])


def test_transparency_is_dropped_and_the_colour_kept() -> None:
    colours, alpha = pixels(), pixels()[..., 1]
    assert (alpha < 20).any()
    content = encoded(Image.fromarray(np.dstack([colours, alpha])), "PNG")
    assert np.array_equal(decoded(content), colours)


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk_images_become_rgb(kind: str) -> None:
    inks = {(0, 0, 0, 0): (255, 255, 255), (0, 0, 0, 255): (0, 0, 0), (0, 255, 255, 0): (255, 0, 0)}
    for ink, colour in inks.items():
        content = encoded(Image.new("CMYK", (8, 8), ink), kind, **({"quality": 100} if kind == "JPEG" else {}))
        assert np.abs(decoded(content).astype(int) - colour).max() <= 2


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_more_than_8_bits_are_refused(kind: str) -> None:
    deep = Image.fromarray(np.full((4, 4), 40_000, np.uint16))
    with pytest.raises(FlashbackError, match="more than 8 bits a channel"):
        decoded(encoded(deep, kind))


def deep_png(channels: int) -> bytes:
    """Pillow writes no colours of 16 bits."""
    header = struct.pack(">IIBBBBB", 4, 4, 16, {2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    rows = (b"\0" + b"\x01\x2c" * 4 * channels) * 4
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    framed = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


def deep_tiff() -> bytes:
    """One strip of 4 x 4 pixels, whose three depths follow the directory."""
    end = 8 + 2 + 8 * 12 + 4
    fields = (
        (256, 1, 4),
        (257, 1, 4),
        (258, 3, end),
        (259, 1, 1),
        (262, 1, 2),
        (273, 1, end + 6),
        (277, 1, 3),
        (279, 1, 96),
    )
    entries = b"".join(struct.pack("<HHII", tag, 3, count, value) for tag, count, value in fields)
    directory = struct.pack("<H", len(fields)) + entries + bytes(4)
    return struct.pack("<2sHI", b"II", 42, 8) + directory + struct.pack("<3H", 16, 16, 16) + bytes(96)


@pytest.mark.parametrize(
    "content", [deep_png(2), deep_png(3), deep_png(4), deep_tiff()], ids=["LA", "RGB", "RGBA", "TIFF"]
)
def test_colours_of_16_bits_are_refused(content: bytes) -> None:
    with Image.open(io.BytesIO(content)) as picture:
        assert picture.mode in ("LA", "RGB", "RGBA"), "Pillow drops the low bits"
    with pytest.raises(FlashbackError, match="more than 8 bits a channel; write it with 8"):
        decoded(content)


@pytest.mark.parametrize("size", [(9, 9), (20, 9), (9, 31), (7, 3), (8, 6), (1, 40)])
@pytest.mark.parametrize("shape", [(3, 6, 8), (1, 9, 9), (3, 7, 5)])
def test_an_image_of_any_size_is_cut_to_the_proportions_and_resized(
    size: tuple[int, int], shape: tuple[int, int, int]
) -> None:
    channels, height, width = shape
    picture = Image.fromarray(pixels(size[1], size[0]))
    area = (min(size[0], size[1] * width / height), min(size[1], size[0] * height / width))
    box = tuple((whole + sign * part) / 2 for sign in (-1, 1) for whole, part in zip(size, area, strict=True))
    expected = picture.convert("L" if channels == 1 else "RGB").resize((width, height), Image.BILINEAR, box=box)
    content = decode_image(encoded(picture, "PNG"), shape)
    assert content.shape == shape
    assert np.array_equal(content.transpose(1, 2, 0), np.asarray(expected).reshape(height, width, channels))
    if size == (width, height) and channels == 3:
        assert np.array_equal(content.transpose(1, 2, 0), np.asarray(picture))
