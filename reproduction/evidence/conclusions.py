"""What the evidence says, in plain words: sentences that rules make from the records, whichever way they point."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import median

from evidence.gathered import (
    AA,
    FORGETTING,
    LEARNING,
    Evidence,
    alpha,
    on_old_tasks,
)
from evidence.grounds import about_anchors, about_precision, about_representations, about_settings
from evidence.planned import Study, deciding
from evidence.theirs import is_quoted, printed_accuracy, printed_change, printed_gain
from flashback.metrics import PairedTest, paired_test, verdict
from flashback.metrics.statistics import holm
from flashback.records import differing_keys
from flashback.records.terms import CLASS_INCREMENTAL, FLASHBACK, HOST, SETTINGS
from flashback.reports.pairings import Pairing, Report
from flashback.reports.words import (
    SETTING_TITLES,
    SIGNIFICANT,
    direction,
    enumerated,
    interval,
    number,
    plural,
    probability,
    signed,
    tested,
)
from flashback.studies.comparison import Row

Finding = tuple[str, str]  # what it is about, and a sentence
BALANCE = {AA: "average accuracy", FORGETTING: "forgetting", LEARNING: "new-task accuracy"}
DIRECTIONS = {
    FORGETTING: {"better": "forgets less", "worse": "forgets more"},
    LEARNING: {"better": "learns new tasks better", "worse": "learns new tasks worse"},
}

FLOOR = "finetune"
FEWEST = 3  # seeds, for an interval that says something
FAR = 5.0  # points from the paper's own run that want an explanation
MOST = 0.75  # of a printed gain


def conclusions(evidence: Evidence) -> dict[str, str]:
    """What is found, by what it is about. Nothing is said of a section without runs."""
    findings = [
        *(("Average accuracy", text) for text in about_flashback(evidence)),
        *(("Printed gains", text) for text in about_printed_gains(evidence)),
        *about_differences(evidence),
        *(("Forgetting and new tasks", text) for text in about_balance(evidence)),
        *(("The weight tuned", text) for text in about_tuning(evidence)),
        *(("The hosts alone", text) for text in about_anchors(evidence)),
        *(("Settings", text) for text in about_settings(evidence)),
        *(("Precision", text) for text in about_precision(evidence)),
        *(("Representations", text) for text in about_representations(evidence)),
    ]
    found: dict[str, list[str]] = {}
    for about, sentence in findings:
        found.setdefault(about, []).append(sentence)
    return {about: " ".join(sentences) for about, sentences in found.items()}


def in_short(evidence: Evidence) -> str:
    """The answer before the numbers."""
    pairings, said = evidence.controlled.compared, []
    sure, tests = significant_differences(evidence)
    if tests:
        seeds = sorted({pairing.row(CLASS_INCREMENTAL).test.pairs for pairing in pairings})
        where = ", ".join(sure) or f"none of {plural(len(pairings), 'host')}"
        said.append(
            f"With the same settings and steps flashback changes average accuracy detectably for {where} "
            f"({' or '.join(map(str, seeds))} seeds)."
        )
    traded = [pairing.name for pairing in pairings if trades(pairing)]
    if traded:
        ending = "" if len(traded) > 1 else "s"
        said.append(f"{' and '.join(traded)} forget{ending} less and learn{ending} new tasks worse.")
    for host, gain in gains_without_flashback(evidence):
        said.append(
            f"The gain that the paper prints for {host} ({gain}) appears without flashback, once the learning rate of "
            "the host falls as the authors let it fall only with flashback "
            f"({plural(len(evidence.differences.seeds), 'seed')})."
        )
    return " ".join(said)


def trades(pairing: Pairing) -> bool:
    """Whether it forgets less and learns new tasks worse, each by an uncorrected test."""
    tests = {metric: pairing.row(CLASS_INCREMENTAL, metric).test for metric in DIRECTIONS}
    ways = {metric: direction(metric, test.difference) for metric, test in tests.items()}
    certain = all(test.p is not None and test.p < SIGNIFICANT for test in tests.values())
    return certain and ways == {FORGETTING: "better", LEARNING: "worse"}


# ---------------------------------------------------------------- does flashback help?


def about_flashback(evidence: Evidence) -> Iterator[str]:
    """All hosts together."""
    study, pairings = evidence.controlled, evidence.controlled.compared
    if not pairings:
        return
    if study.done < len(study.jobs):
        yield f"{study.done} of {len(study.jobs)} planned runs are here."
    unequal = [pairing.name for pairing in pairings if pairing.comparison.equal_budget is False]
    yield from about_tests(evidence, "It" if unequal else "With equal settings, steps and images it")
    if idle := list(map(floor_in_words, at_the_floor(study))):
        yield f"Hardly above finetune, so that there is nothing to tell: {', '.join(idle)}."
    if unequal:
        yield f"Unequal budget, so these answer another question: {', '.join(unequal)}."
    for benchmark in dict.fromkeys(pairing.any_run.benchmark for pairing in pairings):
        test = Report(list(pairings), [], {}).over_methods(benchmark)
        if test is not None:
            yield (
                f"Tested as in the paper, over these hosts and both settings: {verdict(test)} Their median is "
                f"{signed(median_difference(pairings))}. Both settings are read off the same runs, so the pairs are "
                "not independent."
            )


def about_tests(evidence: Evidence, subject: str) -> Iterator[str]:
    sure, tests = significant_differences(evidence)
    if not tests:
        return
    of_tuned = len(SETTINGS) * len(evidence.newly_tuned)
    among = f", {of_tuned} of them with tuned weights" if of_tuned else ""
    yield (
        f"{subject} changes average accuracy significantly for {enumerated(sure)} (paired tests by seed at the 5 % "
        f"level, with Holm's correction for {plural(tests, 'test')}{among})."
    )
    found = [test.p for test in accuracy_tests(evidence).values() if test.p is not None]
    below = sum(p < SIGNIFICANT for p in found)
    yield (
        f"Before the correction {below or 'none'} of them {'is' if below < 2 else 'are'} below 5 % (smallest p "
        f"{probability(min(found))}). With so few seeds only differences of several points can stand after it: read "
        "the intervals."
    )


def about_printed_gains(evidence: Evidence) -> Iterator[str]:
    pairings = evidence.controlled.compared
    idle = [(pairing.name, setting) for pairing, setting, *_ in at_the_floor(evidence.controlled)]
    if refuted := list(without_the_printed_gain(pairings, idle)):
        yield (
            f"The 95 % interval, uncorrected, does not reach the printed gain for {'; '.join(refuted)}. The paper "
            "prints no deviations of these, so near misses mean little."
        )
    if far := list(far_from_the_papers_run(pairings)):
        yield (
            f"Hosts alone that end further than {FAR:g} points from the paper's own run: {'; '.join(far)}. What parts "
            "them has not been found."
        )


def without_the_printed_gain(pairings: Sequence[Pairing], idle: Collection[tuple[str, str]]) -> Iterator[str]:
    """Where what the paper prints lies outside of what was found; two seeds rule nothing out."""
    for setting in SETTINGS:
        for pairing in pairings:
            test, printed = pairing.row(setting).test, printed_accuracy(pairing, setting)
            if printed is None or test.low is None or test.high is None or test.pairs < FEWEST:
                continue
            if (pairing.name, setting) not in idle and not test.low <= printed_gain(printed) <= test.high:
                yield f"{pairing.name} {SETTING_TITLES[setting]} ({printed_change(printed)}, found {interval(test)})"


def far_from_the_papers_run(pairings: Sequence[Pairing]) -> Iterator[str]:
    for setting in SETTINGS:
        for pairing in pairings:
            printed, here = printed_accuracy(pairing, setting), pairing.row(setting).mean[HOST]
            if printed is None or here is None or is_quoted(printed):
                continue
            theirs = printed.value[HOST] if printed.rerun is None else printed.rerun
            if abs(here - theirs) > FAR:
                yield f"{pairing.name} {SETTING_TITLES[setting]} {number(theirs)}, here {number(here)}"


def at_the_floor(study: Study) -> Iterator[tuple[Pairing, str, float, float]]:
    """The hosts that remember no more than one that only learns: what flashback does to them cannot be seen."""
    finetune = study.pairing(FLOOR)
    if finetune is None:
        return
    for setting in SETTINGS:
        least = finetune.row(setting).mean[HOST]
        for pairing in study.compared:
            value = pairing.row(setting).mean[HOST]
            if value is not None and least is not None and value < least + 1.0:
                yield pairing, setting, value, least


def floor_in_words(found: tuple[Pairing, str, float, float]) -> str:
    pairing, setting, value, least = found
    return f"{pairing.name} {SETTING_TITLES[setting]} ({number(value)}; {FLOOR} {number(least)})"


def median_difference(pairings: Sequence[Pairing]) -> float:
    rows = [pairing.row(setting) for pairing in pairings for setting in SETTINGS]
    return median(row.test.difference for row in rows if row.test.difference is not None)


def significant_differences(evidence: Evidence) -> tuple[list[str], int]:
    """Where average accuracy differs, all such tests of the page taken together, and how many they are."""
    tests = {name: test for name, test in accuracy_tests(evidence).items() if test.p is not None}
    adjusted = holm([test.p for test in tests.values() if test.p is not None])
    sure = [name for name, p in zip(tests, adjusted, strict=True) if p < SIGNIFICANT]
    return [f"{name} ({signed(tests[name].difference)})" for name in sure], len(tests)


def accuracy_tests(evidence: Evidence) -> dict[str, PairedTest]:
    return {
        f"{name} {SETTING_TITLES[setting]}": pairing.row(setting).test
        for name, pairing in compared(evidence).items()
        for setting in SETTINGS
    }


def compared(evidence: Evidence) -> dict[str, Pairing]:
    """All comparisons of both arms in full, at the recipe's weight and at a tuned one."""
    usual = {pairing.name: pairing for pairing in evidence.controlled.compared}
    return usual | {f"{host} with the weight tuned": pairing for host, pairing in evidence.newly_tuned.items()}


# ---------------------------------------------------------------- host by host


Effect = tuple[str, str, str]  # setting, metric, host


def about_balance(evidence: Evidence) -> Iterator[str]:
    """What flashback does to the two sides of the balance, where a test tells a direction."""
    tests = {
        (setting, metric, name): (test.p, signed(test.difference), direction(metric, test.difference))
        for setting in SETTINGS
        for metric in DIRECTIONS
        for name, pairing in compared(evidence).items()
        if (test := pairing.row(setting, metric).test).p is not None and test.difference is not None
    }
    adjusted = dict(zip(tests, holm([p for p, *_ in tests.values() if p is not None]), strict=True))
    # By whether it stands after the correction.
    moved: dict[bool, dict[Effect, tuple[str, str]]] = {True: {}, False: {}}
    for effect, (p, difference, way) in tests.items():
        if p is not None and p < SIGNIFICANT and way in DIRECTIONS[effect[1]]:
            moved[adjusted[effect] < SIGNIFICANT][effect] = f"{DIRECTIONS[effect[1]][way]} with", difference
    for sure, effects in moved.items():
        if effects:
            level = f"After Holm's correction for {plural(len(tests), 'test')}" if sure else "Before such a correction"
            yield f"{level}: {effects_in_words(effects)}."
    if any(moved.values()):
        yield from about_old_tasks(evidence, {host for effects in moved.values() for _, _, host in effects})
    yield from about_fewer_epochs(evidence)
    yield from about_shorter_training(evidence)


def about_old_tasks(evidence: Evidence, moved: Collection[str]) -> Iterator[str]:
    """Forgetting is a fall from where a task was learned to: whether more is left in the end is another question."""
    left = [
        f"{name} {tested(on_old_tasks(pairing, CLASS_INCREMENTAL))}"
        for name, pairing in compared(evidence).items()
        if name in moved
    ]
    yield (
        "Forgetting is a fall from how well a task was learned at first, so a task learned worse is forgotten less. On "
        f"old tasks, at the end, class-incremental accuracy changes: {', '.join(left)}."
    )


def effects_in_words(effects: Mapping[Effect, tuple[str, str]]) -> str:
    """By setting and direction, the hosts with their differences."""
    grouped: dict[str, dict[str, list[str]]] = {}
    for (setting, _, host), (words, difference) in effects.items():
        grouped.setdefault(setting, {}).setdefault(words, []).append(f"{host} ({difference})")
    said = {
        setting: ", ".join(f"it {words} {', '.join(hosts)}" for words, hosts in found.items())
        for setting, found in grouped.items()
    }
    return "; ".join(f"{SETTING_TITLES[setting]} {words}" for setting, words in said.items())


def about_fewer_epochs(evidence: Evidence) -> Iterator[str]:
    """Until phase 2 has been run alone, an anchor that is the controlled host with fewer epochs gives a hint."""
    compared = {pairing.name: pairing for pairing in evidence.controlled.compared}
    found = []
    for anchored in () if evidence.shorter else evidence.anchored:
        name, own = anchored.pairing.name, compared.get(anchored.pairing.name)
        fewer, more = (deciding(one.any_run.settings) if one else {} for one in (anchored.pairing, own))
        if differing_keys(fewer, more) == ["training.epochs"]:
            before = f"{number(anchored.here(FORGETTING))} with {fewer['training.epochs']} epochs a task"
            after = f"{number(evidence.retrained[name].forgetting)} with {more['training.epochs']}"
            found.append(f"{name} {before}, {after}")
    if found:
        yield f"Fewer epochs may do the same, as phase 2 has them; alone, hosts forget: {'; '.join(found)}."


def about_shorter_training(evidence: Evidence) -> Iterator[str]:
    """Flashback trains on from the old state for fewer epochs: what of its effect is that, what the knowledge?"""
    for shorter in evidence.shorter:
        parts = []
        for metric, name in BALANCE.items():
            steps = (shorter.by_training(CLASS_INCREMENTAL, metric), shorter.by_knowledge(CLASS_INCREMENTAL, metric))
            parts.append(f"{name} {' and then '.join(map(tested, steps))}")
        yield (
            f"With {shorter.host} fewer epochs alone, as phase 2 has them, and then plastic knowledge on top of them "
            f"change, class-incremental, {', '.join(parts)}; {plural(len(shorter.seeds), 'seed')}, uncorrected."
        )


def certainty(row: Row) -> str:
    """How far to trust a difference: an interval from three seeds on, before that each seed speaks for itself."""
    if row.test.pairs == 1:
        return "one seed"
    if row.test.low is None:
        return f"the same at {plural(row.test.pairs, 'seed')}"
    if row.test.pairs == 2:
        return f"two seeds, {' and '.join(signed(flashback - host) for host, flashback in row.pairs)}"
    return f"95 % interval {interval(row.test)}, {plural(row.test.pairs, 'seed')}"


# ---------------------------------------------------------------- where it comes from


def about_differences(evidence: Evidence) -> Iterator[Finding]:
    """What the authors change between the arms, in both settings, beside the gain that the paper prints."""
    host = evidence.differences.hosts[0]
    for setting in SETTINGS:
        sentences = list(differences_in_words(evidence, setting))
        if sentences:
            yield f"{host}, where the printed gain comes from, {SETTING_TITLES[setting]}", " ".join(sentences)


def differences_in_words(evidence: Evidence, setting: str) -> Iterator[str]:
    arms = evidence.authors_arms
    base, host, short = arms.host.value(setting), arms.falling.value(setting), arms.shorter.value(setting)
    constant, both = arms.flashback.value(setting), arms.both.value(setting)
    if base is None or host is None:
        return
    yield (
        "The learning rate falls only in the authors' arm with flashback. Where it falls so in the host alone too, "
        f"that goes from {number(base)} to {number(host)} ({signed(host - base)})."
    )
    if both is not None:
        shorter = f", over the host with the epochs of phase 2 by {signed(both - short)}" if short is not None else ""
        yield f"Flashback on top of that changes it by {signed(both - host)}, to {number(both)}{shorter}."
    if constant is not None:
        change = f"{signed(constant - base)}, to {number(constant)}"
        yield f"At a constant rate flashback changes it by {change}, fewer epochs having a part in that."
    noise = evidence.noise(evidence.differences.hosts[0], setting)
    apart = f"; the difference of two runs has a deviation of about {number(noise)}" if noise is not None else ""
    yield f"{plural(len(evidence.differences.seeds), 'seed')} each{apart}."
    yield from beside_the_differences(evidence, setting)


def beside_the_differences(evidence: Evidence, setting: str) -> Iterator[str]:
    own = evidence.controlled.pairing(evidence.differences.hosts[0])
    if own is None:
        return
    if cell := printed_accuracy(own, setting):
        yield f"The paper prints {cell.text(HOST)} and {cell.text(FLASHBACK)}."
    row = own.row(setting)
    if row.test.difference is not None:
        change = f"{signed(row.test.difference)} ({certainty(row)})"
        yield f"In the controlled arms, in both of which the rate falls: {change}."


def gains_without_flashback(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Where the host alone, its rate falling, gains most of what the paper prints for flashback."""
    host = evidence.differences.hosts[0]
    base, falling = (
        arm.value(CLASS_INCREMENTAL) for arm in (evidence.authors_arms.host, evidence.authors_arms.falling)
    )
    own = evidence.controlled.pairing(host)
    printed = printed_accuracy(own, CLASS_INCREMENTAL) if own else None
    if base is not None and falling is not None and printed and falling - base >= MOST * printed_gain(printed) > 0:
        yield host, f"{signed(printed_gain(printed))}; {signed(falling - base)} here"


def about_tuning(evidence: Evidence) -> Iterator[str]:
    for host, pairing in evidence.tuned.items():
        weight = alpha(pairing.of(FLASHBACK)[0])
        if host not in evidence.newly_tuned:
            yield f"For {host} the weight chosen on validation images is the recipe's own, {weight:g}."
            continue
        row, others = pairing.row(CLASS_INCREMENTAL), [metric for metric in BALANCE if metric != AA]
        changes = [f"{BALANCE[metric]} by {tested(pairing.row(CLASS_INCREMENTAL, metric).test)}" for metric in others]
        yield (
            f"For {host} it is {weight:g} (recipe: {evidence.usual_weight(host):g}): class-incremental, over the host, "
            f"average accuracy changes by {signed(row.test.difference)} ({certainty(row)}), {', '.join(changes)}."
        )
        own = evidence.controlled.pairing(host)
        if own:
            test = between(own, pairing)
            yield f"From the recipe's weight to that, average accuracy changes by {tested(test)}."
    if evidence.newly_tuned:
        yield "The host was not tuned likewise, and no weight of 0 was tried."


def between(usual: Pairing, tuned: Pairing) -> PairedTest:
    """Of the two arms with flashback, by their seeds."""
    before, after = (pairing.row(CLASS_INCREMENTAL).values[FLASHBACK] for pairing in (usual, tuned))
    return paired_test(before, after)
