"""Class orders and task sizes, checked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flashback.errors import FlashbackError

Order = str | int | Sequence[int]


def class_order(order: Order, classes: int) -> tuple[int, ...]:
    """The original labels in learning order: `identity`, a seed such as 1993, or an explicit permutation."""
    if isinstance(order, str | int):
        return tuple(range(classes)) if order == "identity" else _seeded(order, classes)
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
            "or a list of labels"
        ) from None
    return tuple(generator.permutation(classes).tolist())


def imagenet100_classes() -> list[int]:
    """The positions of ImageNet-100 among the 1000 sorted WordNet ids: LUCIR's draw with seed 1993."""
    return sorted(_seeded(1993, 1000)[:100])


def task_ranges(sizes: Sequence[int], classes: int) -> list[range]:
    """The contiguous class range of each task."""
    if not sizes or min(sizes) < 1 or sum(sizes) != classes:
        raise FlashbackError(
            f"the task sizes {list(sizes)} sum to {sum(sizes)}, but the dataset has {classes} classes; "
            "give positive sizes that sum to the number of classes"
        )
    ends = np.cumsum(sizes).tolist()
    return [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]
