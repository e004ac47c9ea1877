"""What the paper prints for both arms of a host, to stand beside what is found."""

from __future__ import annotations

from evidence.gathered import AA
from flashback.records.terms import ARMS, FLASHBACK, HOST
from flashback.reports.pairings import Pairing
from flashback.reports.printed import Printed
from flashback.reports.words import signed


def printed_accuracy(pairing: Pairing, setting: str) -> Printed | None:
    """The average accuracies that the paper prints for both arms."""
    both = [printed for printed in pairing.printed if len(printed.value) == len(ARMS)]
    return next((printed for printed in both if (printed.setting, printed.metric) == (setting, AA)), None)


def printed_gain(printed: Printed) -> float:
    return printed.value[FLASHBACK] - (printed.value[HOST] if printed.rerun is None else printed.rerun)


def printed_change(printed: Printed) -> str:
    return signed(printed_gain(printed)) + " over a quoted value" * is_quoted(printed)


def is_quoted(printed: Printed) -> bool:
    """Whether the printed host is a value of another publication, with no run of the paper's own beside it."""
    return HOST in printed.quoted and printed.rerun is None
