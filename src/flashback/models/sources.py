"""Labelled images to learn from: folders, lists, arrays and data sets of other libraries."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flashback.benchmarks.decoding import fit_picture
from flashback.benchmarks.image_lists import (
    ListedImage,
    Shape,
    fit_array,
    has_split,
    list_images,
    read_batches,
    refuse_case_twins,
)
from flashback.benchmarks.tasks import Array
from flashback.errors import FlashbackError, require

Source = Any  # a path, a mapping of class names to arrays, or a data set of torchvision or Hugging Face
BATCH = 256
PROBED = 50  # images whose sizes decide the size of the model's
USUAL_SIDE, SMALLEST_SIDE, LARGEST_SIDE = 32, 8, 64


@dataclass(frozen=True, eq=False)
class Collected:
    """Images that were read.

    Attributes:
        x: uint8 [n, C, H, W].
        names: The class of each image.
        skipped: Why an image could not be read, by its name.
    """

    x: Tensor
    names: list[str]
    skipped: dict[str, str]

    def new(self, known: Sequence[str]) -> tuple[str, ...]:
        """The classes that are not known yet, in the order in which they come."""
        return tuple(name for name in dict.fromkeys(self.names) if name not in known)

    def digest(self) -> str:
        """A digest of all pixels and classes."""
        content = hashlib.sha256(self.x.numpy().tobytes())
        content.update("\0".join(self.names).encode("utf-8", "surrogateescape"))
        return content.hexdigest()


def list_parts(source: Source) -> tuple[list[ListedImage], list[ListedImage]]:
    """List the training images of a source, and its test images if it has a split."""
    if isinstance(source, Mapping):
        return _list_arrays(source), []
    if not isinstance(source, str | Path):
        return _list_dataset(source), []
    tests = list_images(source, labelled=True, part="test") if has_split(source) else []
    return list_images(source, labelled=True, part="train"), tests


def image_shape_for(images: Sequence[ListedImage], size: int | None) -> Shape:
    """Choose the shape of a model's images by the first ones.

    The side is `size`; else that of the images, if they all have the same small size; else 32. There are three
    channels, unless arrays have one.
    """
    shapes = set()
    for image in images[:: -(-len(images) // PROBED)]:
        try:
            shapes.add(image.read(None).shape)
        except FlashbackError:
            continue  # it is skipped later
    channels = 1 if {shape[0] for shape in shapes} == {1} else 3
    if size is None:
        sides = {side for shape in shapes for side in shape[1:]}
        fits = len(sides) == 1 and SMALLEST_SIDE <= min(sides) <= LARGEST_SIDE
        size = sides.pop() if fits else USUAL_SIDE
    return channels, size, size


def collect(images: Sequence[ListedImage], shape: Shape, known: Sequence[str], progress: bool = False) -> Collected:
    """Read images and fit them to one shape; those that cannot be read are skipped.

    Args:
        images: What `list_parts` returned.
        shape: Channels, height and width.
        known: Classes that are known already.
        progress: Show a progress bar, if there is a terminal.

    Raises:
        FlashbackError: If none can be read, or class names differ only in case.
    """
    from rich.console import Console
    from rich.progress import Progress

    refuse_case_twins((str(image.label) for image in images), known)
    skipped, pieces, names = dict[str, str](), list[Tensor](), list[str]()
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not (progress and console.is_terminal)) as bar:
        line = bar.add_task("images", total=len(images))
        for rows, pixels in read_batches(images, shape, BATCH, skipped, lambda count: bar.advance(line, count)):
            pieces.append(pixels)
            names.extend(str(images[row].label) for row in rows)
    require(bool(pieces), f"none of the {len(images)} images can be read: {next(iter(skipped.values()), '')}")
    for name in sorted({str(image.label) for image in images} - set(names)):
        warnings.warn(f"no image of '{name}' can be read, so it is not learned", stacklevel=2)
    return Collected(torch.cat(pieces), names, skipped)


# ---------------------------------------------------------------- Python objects


def _list_arrays(arrays: Mapping[str, Any]) -> list[ListedImage]:
    """List a mapping of class names to images, uint8 [n, H, W] or [n, H, W, C]."""
    listed = []
    for name, images in arrays.items():
        pixels = np.asarray(images)
        require(
            pixels.dtype == np.uint8 and pixels.ndim in (3, 4) and (pixels.ndim == 3 or pixels.shape[3] in (1, 3)),
            f"the images of '{name}' must be uint8 [n, H, W] or [n, H, W, C] with 1 or 3 channels, not "
            f"{pixels.dtype} {list(pixels.shape)}",
        )
        for row, image in enumerate(pixels if pixels.ndim == 4 else pixels[..., None]):
            listed.append(ListedImage(f"{name}[{row}]", str(name), partial(fit_array, image)))
    require(bool(listed), "there are no images in this mapping; give arrays by class name")
    return listed


def _list_dataset(dataset: Any) -> list[ListedImage]:
    """List a data set whose items are (image, label) or mappings with "image" and "label", images being PIL images."""
    require(
        hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"),
        f"images are a path, a mapping of class names to arrays, or a data set, not {type(dataset).__name__}",
    )
    features = getattr(dataset, "features", None)
    names = getattr(features["label"], "names", None) if features and "label" in features else None
    names = names or getattr(dataset, "classes", None)

    def label(row: int) -> str:
        value = _item(dataset, row)[1]
        return str(names[int(value)]) if names else str(value)

    listed = [ListedImage(f"image {row}", label(row), partial(_read_item, dataset, row)) for row in range(len(dataset))]
    require(bool(listed), "this data set has no images")
    return listed


def _item(dataset: Any, row: int) -> tuple[Any, Any]:
    item = dataset[row]
    return (item["image"], item["label"]) if isinstance(item, Mapping) else (item[0], item[1])


def _read_item(dataset: Any, row: int, shape: Shape | None) -> Array:
    picture = _item(dataset, row)[0]
    if not hasattr(picture, "convert"):
        raise FlashbackError("its images are no PIL images; leave out the transform of the data set")
    return np.asarray(picture.convert("RGB")).transpose(2, 0, 1) if shape is None else fit_picture(picture, shape)
