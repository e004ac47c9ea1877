"""Numbers as people read them: one way for tables, sentences and charts, so that one number has one text."""

from __future__ import annotations

ABSENT = "–"


def number(value: float | None, form: str = ".2f") -> str:
    """The same text on every machine: what sums leave in the last bits decides no rounding, and zero has no sign."""
    if value is None:
        return ABSENT
    return format(round(float(value), 9), f"+z{form[1:]}" if form.startswith("+") else f"z{form}")


def signed(difference: float | None) -> str:
    return number(difference, "+.2f")


def probability(p: float | None, equals: str = "") -> str:
    """With `equals` before a value that is told as it is."""
    return ABSENT if p is None else "< 0.0001" if p < 1e-4 else f"{equals}{p:.2g}"
