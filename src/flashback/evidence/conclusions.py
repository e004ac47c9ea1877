"""What the evidence says, in plain words: sentences that rules make from the records, whichever way they point."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from flashback.evidence.gathered import (
    AA,
    CLASS_INCREMENTAL,
    FORGETTING,
    LEARNING,
    NEAR,
    Anchored,
    Evidence,
    Switched,
    alpha,
)
from flashback.evidence.planned import Study
from flashback.metrics import PairedTest, mean, verdict
from flashback.metrics.statistics import holm
from flashback.records.terms import ARMS, FLASHBACK, HOST, SETTINGS
from flashback.reports.pairings import Pairing, Report
from flashback.reports.printed import Printed
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
from flashback.studies.comparison import Row

Finding = tuple[str, str]  # what it is about, and a sentence
DIRECTIONS = {
    FORGETTING: {"better": "forgets less", "worse": "forgets more"},
    LEARNING: {"better": "learns new tasks better", "worse": "learns new tasks worse"},
}


def conclusions(evidence: Evidence) -> dict[str, str]:
    """What is found, by what it is about, the answer first. Nothing is said of a section without runs."""
    findings = [
        *(("Flashback", text) for text in about_flashback(evidence)),
        *(("Forgetting and new tasks", text) for text in about_balance(evidence)),
        *(("Quoted hosts", text) for text in about_quoted_hosts(evidence)),
        *about_shorter_training(evidence),
        *about_differences(evidence),
        *about_tuning(evidence),
        *(("The hosts alone", text) for text in about_anchors(evidence)),
        *(("Precision", text) for text in about_precision(evidence)),
        *((f"Representations, {one.title}", similarity_in_words(one)) for one in evidence.report.similarities),
    ]
    found: dict[str, list[str]] = {}
    for about, sentence in findings:
        found.setdefault(about, []).append(sentence)
    return {about: " ".join(sentences) for about, sentences in found.items()}


# ---------------------------------------------------------------- does flashback help?


def about_flashback(evidence: Evidence) -> Iterator[str]:
    """All hosts together."""
    study, pairings = evidence.controlled, evidence.controlled.compared
    if not pairings:
        return
    if study.done < len(study.jobs):
        yield f"{study.done} of {len(study.jobs)} planned runs are here."
    sure, tests = significant_differences(evidence)
    if tests:
        yield (
            f"At equal cost it changes average accuracy significantly for {enumerated(sure)} (paired tests by seed at "
            f"the 5 % level, with Holm's correction for {plural(tests, 'test')}). So few seeds miss small differences."
        )
    unequal = [pairing.name for pairing in pairings if pairing.comparison.equal_budget is False]
    if unequal:
        yield f"Unequal budget, so these answer another question: {', '.join(unequal)}."
    for benchmark in dict.fromkeys(pairing.any_run.benchmark for pairing in pairings):
        test = Report(list(pairings), [], {}).over_methods(benchmark)
        if test is not None:
            yield (
                f"Tested as in the paper, over these hosts and both settings: {verdict(test)} Both settings are read "
                "off the same runs, so the pairs are not independent."
            )


def significant_differences(evidence: Evidence) -> tuple[list[str], int]:
    """Where average accuracy differs, all such tests of the page taken together, and how many they are."""
    pairings = {pairing.name: pairing for pairing in evidence.controlled.compared}
    pairings |= {f"{host} with the weight tuned": pairing for host, pairing in evidence.newly_tuned.items()}
    tests = {
        f"{name} {SETTING_TITLES[setting]}": (row.test.p, row.test.difference)
        for name, pairing in pairings.items()
        for setting in SETTINGS
        if (row := pairing.row(setting)).test.p is not None
    }
    adjusted = holm([p for p, _ in tests.values() if p is not None])
    sure = [name for name, p in zip(tests, adjusted, strict=True) if p < SIGNIFICANT]
    return [f"{name} ({signed(tests[name][1])})" for name in sure], len(tests)


def enumerated(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


# ---------------------------------------------------------------- host by host


def about_balance(evidence: Evidence) -> Iterator[str]:
    """What flashback does to the two sides of the balance, where a test tells a direction."""
    for setting in SETTINGS:
        said = [
            f"{words} with {', '.join(hosts)}"
            for metric, by_direction in DIRECTIONS.items()
            for way, words in by_direction.items()
            if (hosts := list(moved(evidence, setting, metric, way)))
        ]
        if said:
            yield f"{SETTING_TITLES[setting].capitalize()} it {'; it '.join(said)} (5 % level, uncorrected)."


def moved(evidence: Evidence, setting: str, metric: str, way: str) -> Iterator[str]:
    """The hosts whose metric is found to move this way."""
    for pairing in evidence.controlled.compared:
        test = pairing.row(setting, metric).test
        if test.p is not None and test.p < SIGNIFICANT and direction(metric, test.difference) == way:
            yield f"{pairing.name} ({signed(test.difference)})"


def about_quoted_hosts(evidence: Evidence) -> Iterator[str]:
    """A printed gain over a host that was not run for it says as much about the host."""
    quoted = []
    for pairing in evidence.controlled.compared:
        printed = printed_accuracy(pairing, CLASS_INCREMENTAL)
        if printed is not None and printed.quoted and printed.rerun is None:
            ours = number(pairing.row(CLASS_INCREMENTAL).mean[HOST])
            quoted.append(f"{pairing.name} {number(printed.value[HOST])} (ours alone {ours})")
    if quoted:
        yield f"Printed class-incremental gains over quoted hosts, not run for them: {', '.join(quoted)}."


def certainty(row: Row) -> str:
    """How far to trust a difference: an interval from three seeds on, before that each seed speaks for itself."""
    if row.test.pairs == 1:
        return "one seed"
    if row.test.low is None:
        return f"the same at {plural(row.test.pairs, 'seed')}"
    if row.test.pairs == 2:
        return f"two seeds, {' and '.join(signed(flashback - host) for host, flashback in row.pairs)}"
    return f"95 % interval {interval(row.test)}, {plural(row.test.pairs, 'seed')}"


def printed_accuracy(pairing: Pairing, setting: str) -> Printed | None:
    """The average accuracies that the paper prints for both arms."""
    both = [printed for printed in pairing.printed if len(printed.value) == len(ARMS)]
    return next((printed for printed in both if (printed.setting, printed.metric) == (setting, AA)), None)


def printed_gain(printed: Printed) -> float:
    return printed.value[FLASHBACK] - (printed.value[HOST] if printed.rerun is None else printed.rerun)


# ---------------------------------------------------------------- where it comes from


def about_shorter_training(evidence: Evidence) -> Iterator[Finding]:
    """Flashback trains on from the old state for fewer epochs: what of its effect is that, what the knowledge?"""
    for shorter in evidence.shorter:
        parts = []
        for metric, name in ((AA, "average accuracy"), (FORGETTING, "forgetting"), (LEARNING, "new-task accuracy")):
            steps = (shorter.by_training(CLASS_INCREMENTAL, metric), shorter.by_knowledge(CLASS_INCREMENTAL, metric))
            parts.append(f"{name} {' and then '.join(signed(test.difference) for test in steps)}")
        yield (
            f"{shorter.host}, what of it is plastic knowledge",
            "Fewer epochs alone, as phase 2 has them, and then plastic knowledge on top of them change, "
            f"class-incremental, {', '.join(parts)} ({plural(len(shorter.seeds), 'seed')}).",
        )


def about_differences(evidence: Evidence) -> Iterator[Finding]:
    """What the authors change between the arms, in both settings, beside the gain that the paper prints."""
    host = evidence.differences.hosts[0]
    own = evidence.controlled.pairing(host)
    for setting in SETTINGS:
        sentence = differences_in_words(evidence, setting)
        if sentence is None:
            continue
        cell = printed_accuracy(own, setting) if own else None
        printed = f" The paper prints {signed(printed_gain(cell))} for flashback ({from_to(cell)})." if cell else ""
        yield f"{host}, where the printed gain comes from", sentence + printed


def differences_in_words(evidence: Evidence, setting: str) -> str | None:
    base, *later = evidence.variants[: len(evidence.differences.jobs)]
    before = base.value(setting)
    alone: list[str] = []
    together: list[str] = []
    for variant in later:
        value, switched = variant.value(setting), variant.change.since(base.change)
        if before is not None and value is not None:
            (alone if len(switched) == 1 else together).append(f"{' and '.join(switched)} {signed(value - before)}")
    said = [f"each alone {'; '.join(alone)}"] * bool(alone) + [f"together {'; '.join(together)}"] * bool(together)
    if not said:
        return None
    start = f"{number(before)}, {plural(len(evidence.differences.seeds), 'seed')}"
    return f"{SETTING_TITLES[setting].capitalize()}, from the authors' host arm ({start}): {'. '.join(said)}."


def from_to(printed: Printed) -> str:
    return f"from {printed.text(HOST)} to {printed.text(FLASHBACK)}"


def about_tuning(evidence: Evidence) -> Iterator[Finding]:
    for host, pairing in evidence.tuned.items():
        about = f"{host}, the weight tuned"
        weight = alpha(pairing.of(FLASHBACK)[0])
        if host not in evidence.newly_tuned:
            yield about, f"The weight tuned on validation images is the recipe's own (alpha_p {weight:g})."
            continue
        own = evidence.controlled.pairing(host)
        before = own.row(CLASS_INCREMENTAL).test.difference if own else None
        beside = f", with the recipe's {signed(before)}" if before is not None else ""
        row = pairing.row(CLASS_INCREMENTAL)
        changed = f"{signed(row.test.difference)} class-incremental ({certainty(row)}){beside}"
        yield (
            about,
            f"With alpha_p {weight:g}, chosen on validation images, average accuracy changes by {changed}. The host "
            "was not tuned likewise.",
        )


# ---------------------------------------------------------------- what it rests on


def about_anchors(evidence: Evidence) -> Iterator[str]:
    anchored = evidence.anchored
    judged = [found for found in anchored if not found.anchor.unverified]
    near, far = ([found for found in judged if found.near is wanted] for wanted in (True, False))
    if near:
        yield f"Within {NEAR:g} points of the published value: {listed(near)}."
    if far:
        yield f"Further than {NEAR:g} points from it: {listed(far)}."
    for found in (found for found in anchored if not found.near and found.nearest):
        yield nearest_in_words(found)
    if unverified := [found for found in anchored if found.anchor.unverified]:
        yield f"Beside published values that nobody has verified: {listed(unverified)}."
    moved = {found.pairing.name: found for found in anchored if found.pairing.name in evidence.retrained}
    if moved:
        yield furthest_moved(moved, evidence.retrained)
    if anchored and (unanchored := evidence.unanchored):
        yield f"No independent value to be held against: {', '.join(map(beside_the_paper, unanchored))}."


def nearest_in_words(found: Anchored) -> str:
    assert found.nearest is not None
    away, forgetting = found.off_by(found.nearest.accuracy), found.anchor.forgetting
    return (
        f"{found.pairing.name} comes nearest to the published value with one thing changed ({found.nearest.words}): "
        f"{number(found.nearest.accuracy)} ({signed(away)}), forgetting {number(found.nearest.forgetting)} "
        f"(published {number(forgetting)})."
    )


def furthest_moved(anchored: Mapping[str, Anchored], retrained: Mapping[str, Switched]) -> str:
    by = {host: retrained[host].accuracy - found.here(AA) for host, found in anchored.items()}
    host = max(by, key=lambda name: abs(by[name]))
    return (
        f"Training settings alone move {host} by {signed(by[host])}, from {number(anchored[host].here(AA))} at the "
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
                f"On {images} images flashback is nearer to joint training in {nearer} of "
                f"{plural(len(differences), 'layer')} (mean change {number(mean(differences), '+.4f')})"
            )
    return f"{'. '.join(parts) or 'Only one arm is here'}. One seed tells no difference from chance."
