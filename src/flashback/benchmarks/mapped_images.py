"""One tensor over images in several memory-mapped files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
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
            if func in OPERATIONS_ON_ROWS:
                names = [argument.name for argument in func._schema.arguments[1:]]
                options = {**dict(zip(names, args[1:], strict=False)), **(kwargs or {})}
                if options.get("dim") == -first.ndim:
                    options["dim"] = 0
                with suppress(IndexError):  # several indices: it needs all images
                    if options.get("dim", 0) == 0:
                        return _take(first, func(torch.arange(len(first)), **options), lazy=func in VIEWS)
        args, kwargs = tree_map_only(MappedImages, MappedImages.read, (args, dict(kwargs or {})))
        return func(*args, **kwargs)

    def read(self) -> Tensor:
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


def _take(x: MappedImages, rows: Any, lazy: bool) -> Any:
    """The images of row numbers in a tensor, or in each of several: mapped if `lazy`, else in memory."""
    if not isinstance(rows, Tensor):
        return [_take(x, part, lazy) for part in rows]
    numbers = rows.flatten().tolist()
    if lazy:
        return MappedImages([x.pictures[number] for number in numbers], x.shape[1:])
    return _read(x, numbers).view(*rows.shape, *x.shape[1:])


# Operations along the first dimension read only the images whose row numbers they select; views stay mapped.
VIEWS = {aten.slice.Tensor, aten.split.Tensor, aten.detach.default}
OPERATIONS_ON_ROWS = VIEWS | {aten.select.int, aten.index.Tensor, aten.index_select.default, aten.unbind.int}
