"""What the evidence says, in plain words: sentences that rules make from the records, whichever way they point."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from flashback.evidence.gathered import (
    AA,
    CONSTANT,
    FORGETTING,
    LEARNING,
    NEAR,
    Anchored,
    Evidence,
    Switched,
    Variant,
    alpha,
)
from flashback.evidence.planned import Study, deciding
from flashback.metrics import PairedTest, mean, verdict
from flashback.metrics.statistics import holm
from flashback.records import differing_keys
from flashback.records.terms import ARMS, CLASS_INCREMENTAL, FLASHBACK, HOST, SETTINGS, TASK_INCREMENTAL
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


def conclusions(evidence: Evidence) -> dict[str, str]:
    """What is found, by what it is about, the answer first. Nothing is said of a section without runs."""
    findings = [
        *(("Flashback", text) for text in about_flashback(evidence)),
        *about_differences(evidence),
        *(("Forgetting and new tasks", text) for text in about_balance(evidence)),
        *(("Forgetting and new tasks", text) for text in about_fewer_epochs(evidence)),
        *(("Quoted hosts", text) for text in about_quoted_hosts(evidence)),
        *about_shorter_training(evidence),
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
    unequal = [pairing.name for pairing in pairings if pairing.comparison.equal_budget is False]
    if tests:
        equal = "With equal settings, steps and images it" if not unequal else "It"
        yield (
            f"{equal} changes average accuracy significantly for {enumerated(sure)} (paired tests by seed at the 5 % "
            f"level, with Holm's correction for {plural(tests, 'test')}). So few seeds miss differences of a point and "
            "more."
        )
    if refuted := list(without_the_printed_gain(pairings)):
        yield f"The 95 % interval, uncorrected, does not reach the printed gain for {'; '.join(refuted)}."
    if idle := list(at_the_floor(study)):
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


def without_the_printed_gain(pairings: Sequence[Pairing]) -> Iterator[str]:
    """Where what the paper prints lies outside of what was found; two seeds rule nothing out."""
    for setting in SETTINGS:
        for pairing in pairings:
            test, printed = pairing.row(setting).test, printed_accuracy(pairing, setting)
            if printed is None or test.low is None or test.high is None or test.pairs < FEWEST:
                continue
            if not test.low <= printed_gain(printed) <= test.high:
                found = f"{signed(printed_gain(printed))}, found {interval(test)}"
                yield f"{pairing.name} {SETTING_TITLES[setting]} ({found})"


def at_the_floor(study: Study) -> Iterator[str]:
    """The hosts that remember no more than one that only learns: what flashback does to them cannot be seen."""
    finetune = study.pairing(FLOOR)
    if finetune is None:
        return
    for setting in SETTINGS:
        least = finetune.row(setting).mean[HOST]
        for pairing in study.compared:
            value = pairing.row(setting).mean[HOST]
            if value is not None and least is not None and value < least + 1.0:
                yield f"{pairing.name} {SETTING_TITLES[setting]} ({number(value)}; {FLOOR} {number(least)})"


def median_difference(pairings: Sequence[Pairing]) -> float:
    rows = [pairing.row(setting) for pairing in pairings for setting in SETTINGS]
    return median(row.test.difference for row in rows if row.test.difference is not None)


def significant_differences(evidence: Evidence) -> tuple[list[str], int]:
    """Where average accuracy differs, all such tests of the page taken together, and how many they are."""
    tests = {
        f"{name} {SETTING_TITLES[setting]}": (row.test.p, row.test.difference)
        for name, pairing in compared(evidence).items()
        for setting in SETTINGS
        if (row := pairing.row(setting)).test.p is not None
    }
    adjusted = holm([p for p, _ in tests.values() if p is not None])
    sure = [name for name, p in zip(tests, adjusted, strict=True) if p < SIGNIFICANT]
    return [f"{name} ({signed(tests[name][1])})" for name in sure], len(tests)


def compared(evidence: Evidence) -> dict[str, Pairing]:
    """All comparisons of both arms in full, at the recipe's weight and at a tuned one."""
    usual = {pairing.name: pairing for pairing in evidence.controlled.compared}
    return usual | {f"{host} with the weight tuned": pairing for host, pairing in evidence.newly_tuned.items()}


def enumerated(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


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


def about_quoted_hosts(evidence: Evidence) -> Iterator[str]:
    """A printed gain over a host that was not run for it says as much about the host."""
    quoted = []
    for pairing in evidence.controlled.compared:
        printed = printed_accuracy(pairing, CLASS_INCREMENTAL)
        if printed is not None and printed.quoted and printed.rerun is None:
            ours = number(pairing.row(CLASS_INCREMENTAL).mean[HOST])
            quoted.append(f"{pairing.name} {number(printed.value[HOST])}, here {ours}")
    if quoted:
        yield (
            "Some printed class-incremental gains are over values of other publications, not over a run of the host: "
            f"{'; '.join(quoted)}."
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
        for metric, name in BALANCE.items():
            steps = (shorter.by_training(CLASS_INCREMENTAL, metric), shorter.by_knowledge(CLASS_INCREMENTAL, metric))
            parts.append(f"{name} {' and then '.join(map(tested, steps))}")
        yield (
            f"{shorter.host}, what of it is plastic knowledge",
            "Fewer epochs alone, as phase 2 has them, and then plastic knowledge on top of them change, "
            f"class-incremental, {', '.join(parts)}; {plural(len(shorter.seeds), 'seed')}, uncorrected.",
        )


def about_differences(evidence: Evidence) -> Iterator[Finding]:
    """What the authors change between the arms, in both settings, beside the gain that the paper prints."""
    host = evidence.differences.hosts[0]
    sentences = [text for setting in SETTINGS for text in differences_in_words(evidence, setting)]
    base, *later = evidence.variants[: len(evidence.differences.jobs)]
    absent = [" and ".join(variant.change.since(base.change)) for variant in later if not variant.runs]
    if sentences:
        sentences += [f"Not run yet: {'; '.join(absent)}."] * bool(absent)
        lead = (
            "The paper has one course of learning rates in both arms; the authors' scripts lower the rate in the arm "
            "with flashback alone. Here their differences are switched on one at a time."
        )
        yield f"{host}, where the printed gain comes from", " ".join([lead, *sentences])


def differences_in_words(evidence: Evidence, setting: str) -> Iterator[str]:
    base, *later = evidence.variants[: len(evidence.differences.jobs)]
    before, made = base.value(setting), [variant for variant in later if variant.runs]
    if before is None or not made:
        return
    # More or fewer epochs together with something else stand in the table alone.
    single = [one for one in made if len(one.change.since(base.change)) == 1 or one.change.same_length(base.change)]
    said = [variant_in_words(variant, base, setting) for variant in single]
    start = f"{number(before)}, {plural(len(evidence.differences.seeds), 'seed')}"
    yield f"{SETTING_TITLES[setting].capitalize()}, from their host arm ({start}): {'; '.join(said)}."
    own = evidence.controlled.pairing(evidence.differences.hosts[0])
    cell = printed_accuracy(own, setting) if own else None
    if own and cell:
        yield f"The paper prints, for flashback, {from_to(cell)}."
    alike = list(flashback_at_equal_rates([base, *made], setting))
    row = own.row(setting) if own else None
    if row and row.test.difference is not None:
        alike.append(f"{signed(row.test.difference)} in the controlled arms ({certainty(row)})")
    if alike:
        yield f"With the same rates and epochs in both arms flashback changes it by {', '.join(alike)}."


def flashback_at_equal_rates(variants: Sequence[Variant], setting: str) -> Iterator[str]:
    """What flashback does where nothing else differs between two of the arms."""
    for after in (variant for variant in variants if variant.change.flashback):
        for before in (variant for variant in variants if not variant.change.flashback):
            if after.change.since(before.change) == ["flashback"]:
                rate = "is constant" if after.change.rate == CONSTANT else after.change.rate
                yield f"{signed(after.difference(before, setting))} where the rate {rate}"


def variant_in_words(variant: Variant, base: Variant, setting: str) -> str:
    without = "" if variant.change.flashback else ", without flashback,"
    gain = signed(variant.difference(base, setting))
    return f"{' and '.join(variant.change.since(base.change))}{without} {gain} to {number(variant.value(setting))}"


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
        others = [
            f"{BALANCE[metric]} by {tested(pairing.row(CLASS_INCREMENTAL, metric).test)}" for metric in DIRECTIONS
        ]
        yield (
            about,
            f"With alpha_p {weight:g}, chosen on validation images, average accuracy changes by {changed}; "
            f"{', '.join(others)}. The host was not tuned likewise.",
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
    for found in (found for found in anchored if not found.near and found.nearer):
        yield nearer_in_words(found)
    if unverified := [found for found in anchored if found.anchor.unverified]:
        yield f"Beside published values whose maintainers have not verified them: {listed(unverified)}."
    moved = {found.pairing.name: found for found in anchored if found.pairing.name in evidence.retrained}
    if moved:
        yield furthest_moved(moved, evidence.retrained)
    if anchored and (unanchored := evidence.unanchored):
        yield f"No independent value to be held against: {', '.join(map(beside_the_paper, unanchored))}."


def nearer_in_words(found: Anchored) -> str:
    """Task-incremental accuracy too, where the paper prints its own: the independent publication has none."""
    printed = printed_accuracy(found.pairing, TASK_INCREMENTAL)
    changed = []
    for one in found.nearer:
        beside = f", task-incremental {number(one.task_incremental)}" if printed else ""
        away = signed(found.off_by(one.accuracy))
        changed.append(f"{one.words} {number(one.accuracy)} ({away}), forgetting {number(one.forgetting)}{beside}")
    published = f"published: {number(found.anchor.average_accuracy)}, forgetting {number(found.anchor.forgetting)}"
    theirs = f"; the paper, task-incremental: {number(printed.value[HOST])}" if printed else ""
    return f"{found.pairing.name} comes nearer with one thing changed: {'; '.join(changed)} ({published}{theirs})."


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


def below_the_host(study: Study, setting: str) -> str:
    tests = [pairing.row(setting).test for pairing in study.compared]
    known = [test.difference for test in tests if test.difference is not None]
    return f"With flashback, below the host alone: {sum(difference < 0 for difference in known)} of {len(known)} hosts."


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
