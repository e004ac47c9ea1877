"""Class orders and task sizes, checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from numbers import Integral

import numpy as np

from flashback.errors import FlashbackError, abbreviate

Order = str | int | Sequence[int]
RUN_SEED = "seed"  # another order for every seed of a comparison, the same for both arms
Sizes = Sequence[int] | int | str
SUMMAND = re.compile(r"(?:(?P<count>\d{1,5})\s*x\s*)?(?P<size>\d{1,5})")  # 5x10: five tasks of ten; 50: one of fifty
MOST_TASKS = 10_000


def class_order(order: Order, classes: int, seed: int = 0) -> tuple[int, ...]:
    """The original labels in learning order: `identity`, what a number such as 1993 draws, or a permutation.

    `seed` is what the seed of the run draws: at seed 3 the order of the number 3.
    """
    if isinstance(order, str | int):
        drawn_with = seed if order == RUN_SEED else order
        return tuple(range(classes)) if order == "identity" else _seeded(drawn_with, classes)
    if len(order) != classes or set(order) != set(range(classes)):
        raise FlashbackError(
            f"the class order has {len(order)} entries but is no permutation of the labels 0 to {classes - 1}; "
            "name each label exactly once"
        )
    return tuple(int(label) for label in order)


def _seeded(seed: str | int, classes: int) -> tuple[int, ...]:
    """numpy's legacy generator: seed 1993 gives the order that iCaRL, LUCIR and their successors report on."""
    try:
        generator = np.random.RandomState(int(seed))
    except ValueError:
        raise FlashbackError(
            f"the class order '{seed}' is unknown; give 'identity', a seed from 0 to 4294967295 such as 1993, "
            "'seed' for that of the run, or a list of labels"
        ) from None
    return tuple(generator.permutation(classes).tolist())


def imagenet100_classes() -> list[int]:
    """The positions of ImageNet-100 among the 1000 sorted WordNet ids: LUCIR's draw with seed 1993."""
    return sorted(_seeded(1993, 1000)[:100])


def read_sizes(sizes: Sizes) -> tuple[int, ...] | int:
    """How many classes each task brings: as a list says, or a text such as 50+5x10; a number is that of equal tasks."""
    if isinstance(sizes, str):
        return _read_text(sizes)
    if not all(_is_whole(size) for size in (sizes if isinstance(sizes, Sequence) else [sizes])):
        raise _wrong_sizes(sizes)
    return tuple(int(size) for size in sizes) if isinstance(sizes, Sequence) else int(sizes)


def _read_text(text: str) -> tuple[int, ...] | int:
    """`5x2` is five tasks of two classes, `50 + 5x10` one of 50 and five of ten."""
    parts = [SUMMAND.fullmatch(part.strip()) for part in text.split("+")]
    counted = [(int(part["count"] or 1), int(part["size"])) for part in parts if part is not None]
    if len(counted) < len(parts) or not 1 <= sum(count for count, _ in counted) <= MOST_TASKS:
        raise _wrong_sizes(text)
    if text.strip().isdecimal():
        return counted[0][1]
    return tuple(size for count, size in counted for _ in range(count))


def _is_whole(size: object) -> bool:
    return isinstance(size, Integral) and not isinstance(size, bool)


def _wrong_sizes(sizes: object) -> FlashbackError:
    listed = isinstance(sizes, str) and re.fullmatch(r"\d+(\s*,\s*\d+)+", sizes.strip())
    instead = f"; write [{sizes}]" if listed else ""
    return FlashbackError(
        "the task sizes (benchmark.sizes) are a list such as [4, 3, 3], a number such as 2 for equal tasks of two "
        f"classes, or a text such as 5x2 or 50+5x10, not {abbreviate(sizes)}{instead}"
    )


def task_sizes(sizes: Sizes, classes: int) -> tuple[int, ...]:
    """The size of every task, once it is known how many classes there are to make equal tasks of."""
    read = read_sizes(sizes)
    if isinstance(read, tuple):
        return read
    if read < 1 or classes % read:
        fitting = ", ".join(str(size) for size in range(1, classes + 1) if classes % size == 0)
        raise FlashbackError(
            f"{classes} classes make no equal tasks of {read}; give a size among {fitting}{_unequal(read, classes)}"
        )
    return (read,) * (classes // read)


def _unequal(size: int, classes: int) -> str:
    """The sizes that come nearest to equal ones, as a text."""
    if not 1 <= size < classes:
        return ""
    whole, rest = divmod(classes, size)
    return f", or unequal ones such as {f'{whole}x{size}' if whole > 1 else size}+{rest}"


def task_ranges(sizes: Sizes, classes: int) -> list[range]:
    """The contiguous class range of each task."""
    sizes = task_sizes(sizes, classes)
    if not sizes or min(sizes) < 1 or sum(sizes) != classes:
        raise FlashbackError(
            f"the task sizes {list(sizes)} sum to {sum(sizes)}, but the dataset has {classes} classes; "
            "give positive sizes that sum to the number of classes"
        )
    ends = np.cumsum(sizes).tolist()
    return [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]
