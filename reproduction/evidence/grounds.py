"""What the answer rests on, in plain words: hosts held against publications, settings, precision, representations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from evidence.gathered import AA, NEAR, Anchored, Evidence, Switched
from evidence.planned import Study
from evidence.theirs import printed_accuracy
from flashback.metrics import PairedTest, mean
from flashback.records.terms import ARMS, CLASS_INCREMENTAL, FLASHBACK, HOST, SETTINGS
from flashback.reports.pairings import Pairing
from flashback.reports.reading import Similarity
from flashback.reports.words import (
    SETTING_TITLES,
    SIGNIFICANT,
    enumerated,
    interval,
    number,
    plural,
    probability,
    signed,
)


def about_anchors(evidence: Evidence) -> Iterator[str]:
    anchored = evidence.anchored
    judged = [found for found in anchored if not found.anchor.unverified]
    near, far = ([found for found in judged if found.near is wanted] for wanted in (True, False))
    if near:
        yield f"Within {NEAR:g} points of the published value: {listed(near)}."
    if far:
        yield f"Further than {NEAR:g} points from it: {listed(far)}."
    if unverified := [found for found in anchored if found.anchor.unverified]:
        yield f"Hosts that the maintainers of the published code list as not verified: {listed(unverified)}."
    changed = [switched_in_words(found) for found in anchored if not found.near and found.switched]
    if changed:
        yield f"With one thing changed, which comes near but need not be the reason: {'; '.join(changed)}."


def switched_in_words(found: Anchored) -> str:
    tries = []
    for one in found.by_distance:
        away = signed(found.off_by(one.accuracy))
        tries.append(f"{one.words} {number(one.accuracy)} ({away}), forgetting {number(one.forgetting)}")
    published = f"published: {number(found.anchor.average_accuracy)}, {number(found.anchor.forgetting)}"
    return f"{found.pairing.name}, {', or '.join(tries)} ({published})"


def about_settings(evidence: Evidence) -> Iterator[str]:
    """How far settings move a host, and what can be held against nothing."""
    moved = {found.pairing.name: found for found in evidence.anchored if found.pairing.name in evidence.retrained}
    if moved:
        yield furthest_moved(moved, evidence.retrained)
    if evidence.anchored and (unanchored := evidence.unanchored):
        yield f"No independent value to be held against: {', '.join(map(beside_the_paper, unanchored))}."


def furthest_moved(anchored: Mapping[str, Anchored], retrained: Mapping[str, Switched]) -> str:
    by = {host: retrained[host].accuracy - found.here(AA) for host, found in anchored.items()}
    host = max(by, key=lambda name: abs(by[name]))
    return (
        f"Settings alone move {host} by {signed(by[host])}, from {number(anchored[host].here(AA))} at the "
        f"publication's to {number(retrained[host].accuracy)} at the controlled ones: values need their settings."
    )


def listed(anchored: Sequence[Anchored]) -> str:
    return ", ".join(
        f"{found.pairing.name} {number(found.here(AA))} ({signed(found.difference)})" for found in anchored
    )


def beside_the_paper(pairing: Pairing) -> str:
    printed = printed_accuracy(pairing, CLASS_INCREMENTAL)
    theirs = f" (the paper prints {number(printed.value[HOST])})" if printed else ""
    return f"{pairing.name} {number(pairing.row(CLASS_INCREMENTAL).mean[HOST])}{theirs}"


def about_precision(evidence: Evidence) -> Iterator[str]:
    tests = {
        f"{found.host} in {' and '.join(found.runs)}, {SETTING_TITLES[setting]}": found.test(setting)
        for found in evidence.precisions
        for setting in SETTINGS
    }
    alike = {name: test for name, test in tests.items() if test.p is not None and test.p >= SIGNIFICANT}
    if alike:
        widest = max(alike.values(), key=lambda test: (test.high or 0) - (test.low or 0))
        yield (
            f"Between {' and '.join(evidence.precisions[0].runs)} no difference was found in {len(alike)} of "
            f"{plural(len(tests), 'comparison')} of average accuracy; the widest interval is {interval(widest)} "
            f"({plural(widest.pairs, 'seed')})."
        )
    yield from (f"{name}: {precision_in_words(test)}." for name, test in tests.items() if name not in alike)


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
                f"on {images} images flashback is nearer to joint training in {nearer} of "
                f"{plural(len(differences), 'layer')} (mean change {number(mean(differences), '+.4f')})"
            )
    return f"{'; '.join(parts) or 'only one arm is here'}"


def about_representations(evidence: Evidence) -> Iterator[str]:
    found = [f"{one.title}: {similarity_in_words(one)}" for one in evidence.report.similarities]
    if found:
        yield f"{'. '.join(found)}. One seed tells no difference from chance."
