"""Labelled images to learn from: folders, lists, arrays and data sets of other libraries."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flashback.benchmarks.decoding import fit_upright
from flashback.benchmarks.image_lists import (
    HELD_OUT,
    ListedImage,
    Shape,
    check_case_conflicts,
    fit_array,
    has_split,
    list_images,
    read_batches,
)
from flashback.benchmarks.tasks import Array, reading
from flashback.errors import FlashbackError, printable, require

# A path, a mapping of class names to arrays, a data set of torchvision or Hugging Face, or a mapping of "train" and
# "test" to such data sets.
Source = Any
BATCH = 256
PROBED = 50  # images whose sizes decide the size of the model's
USUAL_SIDE, SMALLEST_SIDE, LARGEST_SIDE = 32, 8, 64


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images that were read, with their classes.

    Attributes:
        x: uint8 [n, C, H, W].
        names: The class of each image.
        new: The classes that are not known yet, in the order of their numbers, else in that in which they come.
        skipped: Why an image could not be read, by its name.
    """

    x: Tensor
    names: list[str]
    new: tuple[str, ...]
    skipped: dict[str, str]

    def digest(self) -> str:
        """A digest of all pixels and classes."""
        content = hashlib.sha256(self.x.numpy().tobytes())
        content.update("\0".join(self.names).encode("utf-8", "surrogateescape"))
        return content.hexdigest()


def list_parts(source: Source, labelled: bool = True) -> tuple[list[ListedImage], list[ListedImage]]:
    """List the training images of a source, and its test images if it has a split; data sets also without classes."""
    if isinstance(source, Mapping) and source and all(map(_is_dataset, source.values())):
        require("train" in source, f"these data sets are {', '.join(source)}; name the one to learn 'train'")
        held_out = next((source[part] for part in (*HELD_OUT, "validation") if part in source), None)
        return _list_dataset(source["train"], labelled), _list_dataset(held_out, labelled) if held_out else []
    if isinstance(source, Mapping):
        return _list_arrays(source), []
    if not isinstance(source, str | Path):
        return _list_dataset(source, labelled), []
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


def collect(
    images: Sequence[ListedImage], shape: Shape, known: Sequence[str], progress: bool = False
) -> LabelledImages:
    """Read images and fit them to one shape; those that cannot be read are skipped.

    Args:
        images: What `list_parts` returned.
        shape: Channels, height and width.
        known: Classes that are known already.
        progress: Show a progress bar, if there is a terminal.

    Raises:
        FlashbackError: If none can be read, or class names differ only in case.
    """
    from flashback.progress_bar import TerminalProgress

    check_case_conflicts((str(image.label) for image in images), known)
    skipped, pieces, numbered = dict[str, str](), list[Tensor](), list[tuple[int, str]]()
    with TerminalProgress(shown=progress) as bar:
        line = bar.add_task("images", total=len(images))
        for rows, pixels in read_batches(images, shape, BATCH, skipped, lambda count: bar.advance(line, count)):
            pieces.append(pixels)
            numbered.extend((images[row].number, str(images[row].label)) for row in rows)
    require(bool(pieces), f"none of the {len(images)} images can be read: {next(iter(skipped.values()), '')}")
    names = [name for _, name in numbered]
    for name in sorted({str(image.label) for image in images} - set(names)):
        warnings.warn(f"no image of '{name}' can be read, so it is not learned", stacklevel=2)
    ordered = dict.fromkeys(name for _, name in sorted(numbered, key=itemgetter(0)))
    new = tuple(name for name in ordered if name not in known)
    return LabelledImages(contiguous_like_benchmarks(torch.cat(pieces)), names, new, skipped)


def contiguous_like_benchmarks(x: Tensor) -> Tensor:
    """Give grey images the strides that benchmarks have: with others, torch rounds their convolutions differently."""
    return x.squeeze(1).unsqueeze(-1).permute(0, 3, 1, 2) if x.shape[1] == 1 else x


# ---------------------------------------------------------------- Python objects


def list_source(source: Source, labelled: bool = False) -> list[ListedImage]:
    """List the images of a source to predict or to evaluate; of one that is split, those held out."""
    if isinstance(source, str | Path):
        return list_images(source, labelled)
    train, tests = list_parts(source, labelled)
    return tests or train


def _list_arrays(arrays: Mapping[str, Any]) -> list[ListedImage]:
    """List a mapping of class names to images, uint8 [n, H, W] or [n, H, W, C]."""
    listed = []
    for name, images in arrays.items():
        label, pixels = printable(str(name)), np.asarray(images)
        require(
            pixels.dtype == np.uint8 and pixels.ndim in (3, 4) and (pixels.ndim == 3 or pixels.shape[3] in (1, 3)),
            f"the images of '{label}' must be uint8 [n, H, W] or [n, H, W, C] with 1 or 3 channels, not "
            f"{pixels.dtype} {list(pixels.shape)}",
        )
        for row, image in enumerate(pixels if pixels.ndim == 4 else pixels[..., None]):
            listed.append(ListedImage(f"{label}[{row}]", label, partial(fit_array, image)))
    require(bool(listed), "there are no images in this mapping; give arrays by class name")
    return listed


def _is_dataset(value: Any) -> bool:
    return isinstance(value, torch.utils.data.Dataset) or hasattr(value, "features")


def _list_dataset(dataset: Any, labelled: bool) -> list[ListedImage]:
    """List a data set of torchvision, with items (image, label), or of Hugging Face, with columns."""
    is_array = isinstance(dataset, np.ndarray | Tensor)
    require(
        hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__") and not is_array,
        f"images are a path, a mapping of class names to arrays, or a data set, not {type(dataset).__name__}",
    )
    require(len(dataset) > 0, "this data set has no images")
    if isinstance(dataset, torch.utils.data.Subset) and hasattr(dataset.dataset, "targets"):
        whole = _list_dataset(dataset.dataset, labelled)
        return [whole[row] for row in dataset.indices]
    features = getattr(dataset, "features", None)
    image = _column(features, "Image", "image") if features else 0
    labels = _labels(dataset, features) if labelled else [(None, 0)] * len(dataset)
    files = getattr(dataset, "samples", None)  # of a torchvision folder
    names = [printable(files[row][0]) if files else f"image {row}" for row in range(len(dataset))]
    return [
        ListedImage(name, label, partial(_read_item, dataset, row, image, name), number)
        for row, (name, (label, number)) in enumerate(zip(names, labels, strict=True))
    ]


def _column(features: Mapping[str, Any], kind: str, name: str) -> str:
    """The column of a Hugging Face data set that has a name, else the only one of a kind."""
    columns = [column for column, feature in features.items() if type(feature).__name__ == kind]
    columns = [name] if name in features else columns
    have = f"columns of this data set: {', '.join(features)}"
    require(len(columns) == 1, f"{have}; rename the right one to '{name}' with rename_column")
    return columns[0]


def _labels(dataset: Any, features: Mapping[str, Any] | None) -> Sequence[tuple[str | int | None, int]]:
    """The class of each item and its number, without decoding the images where the data set has the labels apart."""
    targets = getattr(dataset, "targets", None)
    if features:
        column = _column(features, "ClassLabel", "label")
        values, names = dataset[column], getattr(features[column], "names", None)
    elif targets is not None and getattr(dataset, "target_transform", None) is None:
        values, names = targets, _class_names(dataset)
    else:
        values, names = map(partial(_read_label, dataset), range(len(dataset))), _class_names(dataset)
    labels = list[tuple[str | int, int]]()
    for row, value in enumerate(values):
        label = value.item() if hasattr(value, "item") else value
        number = label if isinstance(label, int) else 0
        if names and isinstance(label, int):
            require(0 <= label < len(names), f"image {row} of this data set has no class, but the label {label}")
            label = names[label]
        labels.append((label if isinstance(label, int) else printable(label), number))
    return labels


def _class_names(dataset: Any) -> list[str] | None:
    """The names that a torchvision data set gives to its classes, or the one that it is a subset of.

    None if there is a `target_transform`: the names are those of the labels before it.
    """
    if getattr(dataset, "target_transform", None) is not None:
        return None
    names = getattr(dataset, "classes", None)
    if names:
        return [name if isinstance(name, str) else str(name[0]) for name in names]  # ImageNet has synonyms
    return _class_names(dataset.dataset) if hasattr(dataset, "dataset") else None


def _read_label(dataset: Any, row: int) -> Any:
    with reading(Path(f"image {row}")):
        return dataset[row][1]


def _read_item(dataset: Any, row: int, column: Any, name: str, shape: Shape | None) -> Array:
    with reading(Path(name)):
        picture = dataset[row][column]
        if not hasattr(picture, "convert"):
            raise FlashbackError("its images are not PIL images; leave out the transform or format of the data set")
        return fit_upright(picture.copy(), shape)
