"""Format numbers in one way for tables, sentences and charts."""

from __future__ import annotations

ABSENT = "–"


def number(value: float | None, form: str = ".2f") -> str:
    """Format a number so that rounding errors in the last bits never show, and zero has no sign."""
    if value is None:
        return ABSENT
    return format(round(float(value), 9), f"+z{form[1:]}" if form.startswith("+") else f"z{form}")


def signed(difference: float | None) -> str:
    return number(difference, "+.2f")


def probability(p: float | None, equals: str = "") -> str:
    """Format a p-value; `equals` goes before a value that is not a bound."""
    return ABSENT if p is None else "< 0.0001" if p < 1e-4 else f"{equals}{p:.2g}"
