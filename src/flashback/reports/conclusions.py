"""What the evidence says, in plain words: sentences that rules make from the records, whichever way they point."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from flashback.metrics import PairedTest, mean, verdict
from flashback.metrics.statistics import holm
from flashback.reports.gathered import AA, CLASS_INCREMENTAL, FORGETTING, LEARNING, NEAR, Anchored, Evidence, alpha
from flashback.reports.pairings import Pairing, Report
from flashback.reports.planned import Study
from flashback.reports.reading import Similarity
from flashback.reports.words import (
    SETTING_TITLES,
    SIGNIFICANT,
    direction,
    interval,
    number,
    plural,
    probability,
    signed,
)
from flashback.training.compare import Row
from flashback.training.evaluation import SETTINGS
from flashback.training.jobs import ARMS, FLASHBACK, HOST


def conclusions(evidence: Evidence) -> list[str]:
    """Nothing is said of a section without runs."""
    compared = evidence.controlled.compared
    return [
        *about_hosts(evidence.anchored),
        *about_accuracy(compared),
        *about_balance(compared),
        *about_differences(evidence),
        *about_tuning(evidence),
        *about_precision(evidence),
        *(f"{one.title}: {similarity_in_words(one)}" for one in evidence.report.similarities),
    ]


# ---------------------------------------------------------------- the hosts


def about_hosts(anchored: Sequence[Anchored]) -> Iterator[str]:
    judged = [found for found in anchored if not found.anchor.unverified]
    near, far = ([found for found in judged if found.near is wanted] for wanted in (True, False))
    if near:
        yield f"Within {NEAR:g} points of the published value: {listed(near)}."
    if far:
        yield f"Further than {NEAR:g} points from it: {listed(far)}."
    for found in (found for found in anchored if not found.near and found.nearest):
        yield nearest_in_words(found)
    if unverified := [found for found in anchored if found.anchor.unverified]:
        yield f"Against published values that are not verified: {listed(unverified)}."


def nearest_in_words(found: Anchored) -> str:
    assert found.nearest is not None
    away, forgetting = found.off_by(found.nearest.accuracy), found.anchor.forgetting
    return (
        f"{found.pairing.name} comes nearest to the published value with one thing changed ({found.nearest.words}): "
        f"{number(found.nearest.accuracy)} ({signed(away)}), forgetting {number(found.nearest.forgetting)} "
        f"(published {number(forgetting)})."
    )


def listed(anchored: Sequence[Anchored]) -> str:
    return ", ".join(
        f"{found.pairing.name} {number(found.here(AA))} ({signed(found.difference)})" for found in anchored
    )


# ---------------------------------------------------------------- does flashback help?


def about_accuracy(pairings: Sequence[Pairing]) -> Iterator[str]:
    significant, tests = significant_differences(pairings)
    correction = f"; significantly so, with Holm's correction for {plural(tests, 'test')}, for "
    for setting in SETTINGS if pairings else ():
        rows = {pairing.name: pairing.row(setting) for pairing in pairings}
        for words, sign in (("higher", 1), ("lower", -1)):
            moved = {name: row for name, row in rows.items() if sign * (row.test.difference or 0) > 0}
            sure = correction + enumerated(name for name in moved if (name, setting) in significant) if tests else ""
            yield (
                f"{SETTING_TITLES[setting].capitalize()}, average accuracy is {words} with flashback for "
                f"{len(moved)} of {plural(len(rows), 'host')}{amounts(moved)}{sure}."
            )
        printed = printed_gains(pairings, setting)
        if printed:
            gained = sum(gain > 0 for gain in printed.values())
            yield f"The paper prints a gain for {gained} of the {len(printed)} ({SETTING_TITLES[setting]})."
    yield from about_budget(pairings)
    for benchmark in dict.fromkeys(pairing.any_run.benchmark for pairing in pairings):
        test = Report(list(pairings), [], {}).over_methods(benchmark)
        if test is not None:
            yield f"The paper's own test, over these hosts and both settings, here: {verdict(test)}"


def amounts(rows: dict[str, Row]) -> str:
    each = (f"{name} {signed(row.test.difference)}{only(row.test)}" for name, row in rows.items())
    return f" ({', '.join(each)})" if rows else ""


def only(test: PairedTest) -> str:
    return ", one seed" if test.pairs == 1 else ""


def significant_differences(pairings: Sequence[Pairing]) -> tuple[set[tuple[str, str]], int]:
    """The hosts and settings whose average accuracy differs, all tests taken together, and how many tests that are."""
    tests = {(pairing.name, setting): pairing.row(setting).test.p for pairing in pairings for setting in SETTINGS}
    done = {name: p for name, p in tests.items() if p is not None}
    adjusted = dict(zip(done, holm(list(done.values())), strict=True))
    return {name for name, p in adjusted.items() if p < SIGNIFICANT}, len(done)


def enumerated(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def printed_gains(pairings: Sequence[Pairing], setting: str) -> dict[str, float]:
    return {
        pairing.name: printed.value[FLASHBACK] - (printed.value[HOST] if printed.rerun is None else printed.rerun)
        for pairing in pairings
        for printed in pairing.printed
        if (printed.setting, printed.metric) == (setting, AA) and len(printed.value) == len(ARMS)
    }


def about_budget(pairings: Sequence[Pairing]) -> Iterator[str]:
    unequal = [pairing.name for pairing in pairings if pairing.comparison.equal_budget is False]
    if unequal:
        yield f"Unequal budget, so these answer another question: {', '.join(unequal)}."


# ---------------------------------------------------------------- at what price


def effect_in_words(pairing: Pairing, setting: str) -> str:
    """What flashback does to the two sides of the balance, each by the sign of its mean difference."""
    words = {
        FORGETTING: {"better": "forgets less", "worse": "forgets more", "": "forgets as much"},
        LEARNING: {"better": "learns new tasks better", "worse": "learns new tasks worse", "": "learns as well"},
    }
    found = {metric: pairing.row(setting, metric).test.difference for metric in words}
    return ", ".join(words[metric][direction(metric, round(value or 0, 2))] for metric, value in found.items())


def about_balance(pairings: Sequence[Pairing]) -> Iterator[str]:
    for setting in SETTINGS:
        groups: dict[str, list[str]] = {}
        for pairing in pairings:
            groups.setdefault(effect_in_words(pairing, setting), []).append(pairing.name)
        if groups:
            each = "; ".join(f"{', '.join(names)}: {words}" for words, names in groups.items())
            yield f"{SETTING_TITLES[setting].capitalize()}, with flashback, significant or not – {each}."


# ---------------------------------------------------------------- the other sections


def about_differences(evidence: Evidence) -> Iterator[str]:
    base, *later = evidence.variants[: len(evidence.differences.jobs)]
    before = base.value(CLASS_INCREMENTAL)
    if before is None:
        return
    alone: list[str] = []
    together: list[str] = []
    for variant in later:
        value, switched = variant.value(CLASS_INCREMENTAL), variant.change.since(base.change)
        if value is not None:
            text = f"{' and '.join(switched)} {signed(value - before)}"
            (alone if len(switched) == 1 else together).append(text)
    host = evidence.differences.hosts[0]
    if alone:
        seeds = plural(len(evidence.differences.seeds), "seed")
        yield f"{host}, from the authors' host arm ({number(before)}, {seeds}), switched on alone: {', '.join(alone)}."
    if together:
        gains = printed_gains(evidence.controlled.pairings, CLASS_INCREMENTAL)
        printed = f" The paper prints {signed(gains[host])}." if host in gains else ""
        yield f"Switched on together: {', '.join(together)}.{printed}"


def about_tuning(evidence: Evidence) -> Iterator[str]:
    for host, pairing in evidence.tuned.items():
        test = pairing.row(CLASS_INCREMENTAL).test
        own = evidence.controlled.pairing(host)
        weight = alpha(pairing.of(FLASHBACK)[0])
        if own and own.of(FLASHBACK) and alpha(own.of(FLASHBACK)[0]) == weight:
            yield f"{host}: the weight tuned on validation images is the recipe's own (alpha_p {weight:g})."
            continue
        before = own.row(CLASS_INCREMENTAL).test.difference if own else None
        beside = f" The recipe's weight changes it by {signed(before)}." if before is not None else ""
        yield f"{host}, class-incremental, with the weight tuned (alpha_p {weight:g}): {verdict(test)}{beside}"


def about_precision(evidence: Evidence) -> Iterator[str]:
    """One sentence for every host and setting: a common one would hide the widest interval."""
    for found in evidence.precisions:
        for setting in SETTINGS:
            about = f"{found.host} in {' and '.join(found.runs)}, {SETTING_TITLES[setting]} average accuracy"
            yield f"{about}: {precision_in_words(found.test(setting))}."


def precision_in_words(test: PairedTest) -> str:
    if test.p is None:
        return "no test is possible"
    if test.p < SIGNIFICANT:
        return f"they differ by {signed(test.difference)} (p {probability(test.p)})"
    return (
        f"no difference was found; differences from {interval(test)} are not ruled out ({plural(test.pairs, 'seed')})"
    )


def above_the_floor(study: Study, setting: str) -> Iterator[str]:
    """Which hosts remember more than one that only has the arm without flashback: it keeps no knowledge."""
    accuracies = {pairing.name: pairing.row(setting).mean[HOST] for pairing in study.pairings}
    for floor in study.references:
        least = accuracies.pop(floor, None)
        if least is not None:
            above = [host for host, value in accuracies.items() if value is not None and value > least]
            others = [host for host in accuracies if host not in above]
            yield f"Alone, above {floor} ({number(least)}): {enumerated(above)}; not above it: {enumerated(others)}."


def similarity_in_words(similarity: Similarity) -> str:
    parts = []
    for images, values in similarity.values.items():
        if len(values) == len(ARMS):
            differences = [after - before for before, after in zip(values[HOST], values[FLASHBACK], strict=True)]
            nearer = sum(difference > 0 for difference in differences)
            parts.append(
                f"On {images} images flashback is nearer to joint training in {nearer} of "
                f"{plural(len(differences), 'layer')} (mean change {number(mean(differences), '+.4f')})"
            )
    return f"{'. '.join(parts) or 'Only one arm is here'}."
