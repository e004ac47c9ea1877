"""Task sizes: how many classes each task adds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from numbers import Integral

from flashback.errors import FlashbackError, abbreviate

Sizes = Sequence[int] | int | str
TERM = re.compile(r"(?:(?P<count>\d{1,5})\s*x\s*)?(?P<size>\d{1,5})")  # 5x10: five tasks of ten; 50: one of fifty
MOST_TASKS = 10_000


def read_sizes(sizes: Sizes) -> tuple[int, ...] | int:
    """Parse a list of sizes, a text such as 50+5x10, or a number, which stands for equal tasks."""
    if isinstance(sizes, str):
        return _parse(sizes)
    if not all(_is_integer(size) for size in (sizes if isinstance(sizes, Sequence) else [sizes])):
        raise _invalid(sizes)
    return tuple(int(size) for size in sizes) if isinstance(sizes, Sequence) else int(sizes)


def _parse(text: str) -> tuple[int, ...] | int:
    terms = [TERM.fullmatch(term.strip()) for term in text.split("+")]
    counts = [(int(term["count"] or 1), int(term["size"])) for term in terms if term is not None]
    if len(counts) < len(terms) or not 1 <= sum(count for count, _ in counts) <= MOST_TASKS:
        raise _invalid(text)
    if text.strip().isdecimal():
        return counts[0][1]
    return tuple(size for count, size in counts for _ in range(count))


def _is_integer(size: object) -> bool:
    return isinstance(size, Integral) and not isinstance(size, bool)


def _invalid(sizes: object) -> FlashbackError:
    is_list = isinstance(sizes, str) and re.fullmatch(r"\d+(\s*,\s*\d+)+", sizes.strip())
    return FlashbackError(
        "the task sizes (benchmark.sizes) are a list such as [4, 3, 3], a number such as 2 for equal tasks of two "
        f"classes, or a text such as 5x2 or 50+5x10, not {abbreviate(sizes)}" + f"; write [{sizes}]" * bool(is_list)
    )


def task_sizes(sizes: Sizes, classes: int) -> tuple[int, ...]:
    """The size of each task of a dataset with so many classes."""
    parsed = read_sizes(sizes)
    if isinstance(parsed, tuple):
        return parsed
    if parsed < 1 or classes % parsed:
        divisors = ", ".join(str(size) for size in range(1, classes + 1) if classes % size == 0)
        raise FlashbackError(
            f"{classes} classes cannot be split into equal tasks of {parsed}; give a size among "
            f"{divisors}{_unequal_example(parsed, classes)}"
        )
    return (parsed,) * (classes // parsed)


def _unequal_example(size: int, classes: int) -> str:
    if not 1 <= size < classes:
        return ""
    count, rest = divmod(classes, size)
    return f", or unequal ones such as {f'{count}x{size}' if count > 1 else size}+{rest}"


def task_ranges(sizes: Sizes, classes: int) -> list[range]:
    """The contiguous range of classes of each task."""
    sizes = task_sizes(sizes, classes)
    if not sizes or min(sizes) < 1 or sum(sizes) != classes:
        raise FlashbackError(
            f"the task sizes {list(sizes)} sum to {sum(sizes)}, but the dataset has {classes} classes; "
            "give positive sizes that sum to the number of classes"
        )
    return [range(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]
