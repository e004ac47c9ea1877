"""Class orders: in which order the classes of a dataset are learned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from flashback.errors import FlashbackError, unknown

Order = str | int | Sequence[int | str]
RUN_SEED = "seed"  # drawn with the seed of the run: another order for each seed, the same for both arms


def class_order(order: Order, classes: int, seed: int = 0, class_names: Sequence[str] | None = None) -> tuple[int, ...]:
    """Return the original labels in the order in which they are learned.

    Args:
        order: "identity"; a number such as 1993, which seeds a permutation; "seed", which uses `seed` as that number;
            or a list that names each class once, by label or by class name.
        classes: The number of classes of the dataset.
        seed: The seed of the run.
        class_names: The name of each label, for lists of names.

    Raises:
        FlashbackError: If the order is unknown or is not a permutation of the classes.
    """
    if isinstance(order, str | int):
        number = seed if order == RUN_SEED else order
        return tuple(range(classes)) if order == "identity" else _permutation(number, classes)
    names = [str(label) for label in range(classes)] if class_names is None else class_names
    labels = [_label_of(entry, names) if isinstance(entry, str) else entry for entry in order]
    if repeated := [label for label, count in Counter(labels).items() if count > 1]:
        raise FlashbackError(f"the class order names {_describe(repeated[0], names)} twice; name each class once")
    if outside := sorted(set(labels) - set(range(classes))):
        raise FlashbackError(f"the class order has the label {outside[0]}; labels go from 0 to {classes - 1}")
    if missing := sorted(set(range(classes)) - set(labels)):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise FlashbackError(
            f"the class order has {len(labels)} of {classes} classes; it lacks {_describe(missing[0], names)}{more}"
        )
    return tuple(int(label) for label in labels)


def has_names(order: object) -> bool:
    """Whether an order is a list with class names in it."""
    return isinstance(order, Sequence) and not isinstance(order, str) and any(isinstance(x, str) for x in order)


def _label_of(name: str, names: Sequence[str]) -> int:
    labels = [label for label, known in enumerate(names) if known == name]
    if not labels:
        raise unknown("class in benchmark.order", name, names)
    if len(labels) > 1:
        raise FlashbackError(f"labels {labels[0]} and {labels[1]} are both named '{name}'; order the classes by label")
    return labels[0]


def _describe(label: int, names: Sequence[str]) -> str:
    named = 0 <= label < len(names) and names[label] != str(label)
    return f"'{names[label]}' (label {label})" if named else f"label {label}"


def _permutation(seed: str | int, classes: int) -> tuple[int, ...]:
    """numpy's legacy generator: seed 1993 gives the order on which iCaRL, LUCIR and their successors report."""
    try:
        generator = np.random.RandomState(int(seed))
    except ValueError:
        raise FlashbackError(
            f"the class order '{seed}' is unknown; give 'identity', a seed from 0 to 4294967295 such as 1993, "
            "'seed' for that of the run, or a list of labels or class names"
        ) from None
    return tuple(generator.permutation(classes).tolist())


def imagenet100_classes() -> list[int]:
    """Positions of the ImageNet-100 classes among the 1000 sorted WordNet ids: LUCIR's draw with seed 1993."""
    return sorted(_permutation(1993, 1000)[:100])
