"""One tensor over images in several memory-mapped files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from flashback.benchmarks.tasks import Array
from flashback.errors import FlashbackError

aten = torch.ops.aten
READ_ONLY = "the images of a folder are mapped from files and read-only; change a copy of them, x.clone()"


class MappedImages(Tensor):
    """A read-only tensor of images, uint8 [n, C, H, W], that reads an image only when it is used.

    Slices along the first dimension are such tensors too; indexing with rows and all other operations give ordinary
    tensors in memory.
    """

    pictures: Sequence[Array]  # each [C, H, W], a view into its file
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # results are ordinary

    @staticmethod
    def __new__(cls, pictures: Sequence[Array], image: Sequence[int]) -> MappedImages:
        shape = (len(pictures), *image)
        with torch.inference_mode(False):  # a slice is an ordinary tensor even when taken in inference mode
            self: MappedImages = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.uint8)
        self.pictures = pictures
        return self

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        first = args[0]
        if isinstance(first, MappedImages):
            if func._schema.is_mutable:
                raise FlashbackError(READ_ONLY)
            if func in PARTS and (part := PARTS[func](first, *args[1:])) is not None:
                return part
        args, kwargs = tree_map_only(MappedImages, MappedImages.read, (args, dict(kwargs or {})))
        return func(*args, **kwargs)

    def read(self) -> Tensor:
        """Read all images into memory."""
        return _read(self, range(len(self)))

    def numpy(self, *, force: bool = False) -> Array:
        return self.read().numpy(force=force)

    def tolist(self) -> list[Any]:
        return self.read().tolist()

    def __setitem__(self, rows: Any, values: Any) -> None:
        raise FlashbackError(READ_ONLY)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"MappedImages({list(self.shape)})"

    def __deepcopy__(self, memo: Any) -> MappedImages:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.read().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def _read(x: MappedImages, rows: Sequence[int]) -> Tensor:
    images = np.empty((len(rows), *x.shape[1:]), np.uint8)
    for place, row in enumerate(rows):
        images[place] = x.pictures[row]
    with torch.inference_mode(False):
        return torch.from_numpy(images)


def _slice(
    x: MappedImages, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> MappedImages | None:
    return MappedImages(x.pictures[start:end:step], x.shape[1:]) if dim == 0 else None


def _split(x: MappedImages, size: int, dim: int = 0) -> list[MappedImages] | None:
    starts = range(0, len(x), size) if dim == 0 and size > 0 else ()
    return [MappedImages(x.pictures[start : start + size], x.shape[1:]) for start in starts] or None


def _select(x: MappedImages, dim: int, row: int) -> Tensor | None:
    return _read(x, [row])[0] if dim == 0 else None


def _index(x: MappedImages, indices: Sequence[Tensor | None]) -> Tensor | None:
    """Handle x[rows] with row numbers or a mask; any other indexing reads all images."""
    rows, *others = indices
    if rows is None or rows.dim() != 1 or others:
        return None
    if rows.dtype == torch.bool and len(rows) == len(x):
        rows = rows.nonzero().flatten()
    return None if rows.dtype in (torch.bool, torch.uint8) else _read(x, rows.tolist())


def _index_select(x: MappedImages, dim: int, rows: Tensor) -> Tensor | None:
    return _read(x, rows.tolist()) if dim == 0 and rows.dim() == 1 else None


# Operations that need only some images; they return None if they need all of them after all.
PARTS: dict[Any, Callable[..., Any]] = {
    aten.slice.Tensor: _slice,
    aten.split.Tensor: _split,
    aten.select.int: _select,
    aten.index.Tensor: _index,
    aten.index_select.default: _index_select,
    aten.unbind.int: lambda x, dim=0: [_read(x, [row])[0] for row in range(len(x))] if dim == 0 else None,
    aten.detach.default: lambda x: MappedImages(x.pictures, x.shape[1:]),
}
