"""The page of evidence: what the records of this project's own sweeps say, section by section.

Every number comes from a record or from a publication (printed.yaml); what is not there yet is named, with the command
that makes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from evidence.conclusions import FEWEST, conclusions, in_short
from evidence.figure import PICTURE, write_picture
from evidence.gathered import (
    AA,
    FORGETTING,
    LEARNING,
    NEAR,
    SHORTER,
    Evidence,
    Precisions,
    Shorter,
    Variant,
    accuracy,
    alpha,
    known,
    on_first_task,
    on_old_tasks,
)
from evidence.grounds import above_the_floor, precision_in_words, similarity_in_words
from evidence.planned import Study, name_of
from evidence.theirs import printed_accuracy, printed_change, printed_gain
from flashback.benchmarks import BENCHMARKS
from flashback.files import write_atomically
from flashback.metrics import deviation, mean
from flashback.recipes import config_from_dict
from flashback.records.terms import ARMS, CLASS_INCREMENTAL, FLASHBACK, HOST, SETTINGS
from flashback.reports.markdown import plain, table_lines
from flashback.reports.pairings import Pairing, Report, resumed_otherwise
from flashback.reports.printed import (
    hosts_with_similarity,
    implied_new_task_accuracies,
    inconsistencies,
    notes_on,
)
from flashback.reports.reading import Run, Similarity
from flashback.reports.sections import remarks
from flashback.reports.tables import change, markdown_table
from flashback.reports.words import (
    ABSENT,
    ARM_TITLES,
    SETTING_TITLES,
    TITLES,
    interval,
    number,
    plural,
    probability,
    seeds_with_value,
    signed,
    spread,
    tested,
)
from flashback.studies.comparison import Row
from flashback.training.environment import select_precision

EFFECTS = (AA, FORGETTING, LEARNING, "new_task_accuracy", "stability_plasticity_ratio")
FEW_METRICS = (AA, FORGETTING, LEARNING)
SHARED = "Runs may have shared the device: seconds compare neither arms nor hosts. [Speed](speed.md) has the costs."
NOT_VERIFIED = (
    "Not verified: those who maintain the publication's public code list this host as not verified, so its value is "
    "shown, not judged by."
)
NOT_RUN = "<!-- not run: needs CIFAR-100 and a GPU -->"
SWITCHES = (
    "With `host.columns all` the outputs of classes to come take part in the losses, as classes that are absent: the "
    "first iCaRL and public code of iCaRL and LUCIR have it so, but not the LwF.MC that the published value is of. As "
    "the binary losses of iCaRL and LwF.MC are means over outputs, each then takes smaller steps: see the accuracy on "
    "the first task. With `host.normalise true` features have unit length where exemplars and class means are "
    "chosen. A value that comes near need not be the reason."
)
ANCHOR_HEAD = (
    *("AA, published", "AA, here", "difference", "F, published", "F, here"),
    *("first task, here", "seeds"),
)
REFERENCE = "joint"  # representations are compared with those of this host
Lines = list[str]


# ---------------------------------------------------------------- the page


def evidence_page(report: Report) -> str:
    """Markdown, the same for the same records."""
    evidence = Evidence(report)
    sections = {
        "What this says": what_it_says,
        "Does flashback help at equal cost?": controlled,
        "What flashback does to forgetting and to new tasks": effects,
        "Plastic knowledge, or fewer epochs?": shorter_training,
        "Where the printed gain comes from": differences,
        "With the weight tuned": tuned,
        "Are the hosts right?": anchors,
        "Does the precision matter?": precision,
        "How near the representations stay to joint training": similarity,
        "Short runs of every host": short,
        "Other records": others,
        "Left out": left_out,
    }
    lines = ["# Evidence on Split CIFAR-100", "", *introduction(evidence)]
    for title, write in sections.items():
        content = write(evidence)
        if content:
            lines += ["", f"## {title}", "", *content]
    return "\n".join(lines) + "\n"


def write_evidence(report: Report, path: Path) -> list[Path]:
    """The page, and its picture beside it; also without any run: it says what is still to be made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, evidence_page(report))
    picture = write_picture(Evidence(report), path.parent)
    return [path, picture] if picture else [path]


def introduction(evidence: Evidence) -> Lines:
    runs = evidence.report.runs
    lines = [
        "Written from the run records in `results/` by `make evidence`; no result on this page was typed by hand. "
        "Values are percent, mean ± sample deviation over seeds. A difference is flashback minus host, with p of "
        "the two-sided paired t-test by seed in brackets, uncorrected for the number of tests; one seed allows no "
        "test, and seeds that differ alike, by the same amount, have no p. Arrows say which way is better. [Metrics "
        "and tests](metrics.md) has the definitions.",
    ]
    if runs:
        made = [f"{title} {', '.join(found)}" for title, found in surroundings(runs).items() if found]
        lines += ["", f"{', '.join([plural(len(runs), 'run'), *made])}."]
        lines += bullets(resumed_otherwise(runs))
    return lines


def surroundings(runs: Sequence[Run]) -> dict[str, list[str]]:
    facts = [run.record.run for run in runs]
    versions = [fact.get("versions") or {} for fact in facts]
    found = {
        "on": [fact.get("device") for fact in facts],
        "in": [fact.get("precision") for fact in facts],
        "with torch": [version.get("torch") for version in versions],
    }
    return {title: sorted({str(value) for value in values if value}) for title, values in found.items()}


def what_it_says(evidence: Evidence) -> Lines:
    found = [f"- **{plain(about)}.** {plain(sentence)}" for about, sentence in conclusions(evidence).items()]
    short = in_short(evidence)
    lines = [*([f"**In short.** {plain(short)}", ""] if short else []), *answers(evidence), *found]
    return lines or ["Nothing yet: the runs of full length are still to be made."]


def answers(evidence: Evidence) -> Lines:
    """The controlled comparison at a glance."""
    pairings = evidence.controlled.compared
    rows = [answer_cells(pairing, setting) for setting in SETTINGS for pairing in pairings]
    if not rows:
        return []
    changes = ("change by flashback ↑", "95 % interval", "printed change", "forgetting ↓", "new tasks ↑", "old tasks ↑")
    heads = ("host alone", *changes)
    return [
        "Average accuracy, and what flashback does to it, to forgetting, to the accuracy on new tasks when they are "
        "learned, and to that on old tasks at the end:",
        "",
        *table_lines(("host", "setting", "seeds", *heads), rows, texts=2),
        "",
        f"![What flashback changes here, and what the paper prints]({PICTURE})",
        "",
    ]


def answer_cells(pairing: Pairing, setting: str) -> list[str]:
    accuracies, printed = pairing.row(setting), printed_accuracy(pairing, setting)
    test = accuracies.test
    return [
        pairing.name,
        SETTING_TITLES[setting],
        seeds_of(accuracies),
        number(accuracies.mean[HOST]),
        signed(test.difference),
        interval(test) if test.low is not None and test.pairs >= FEWEST else ABSENT,
        printed_change(printed) if printed else ABSENT,
        *(change(pairing.row(setting, metric)) for metric in (FORGETTING, LEARNING)),
        on_old_tasks_cell(pairing, setting),
    ]


def on_old_tasks_cell(pairing: Pairing, setting: str) -> str:
    test = on_old_tasks(pairing, setting)
    alike = " (alike)" if test.pairs > 1 else ""
    return signed(test.difference) + (alike if test.p is None else f" ({probability(test.p)})")


# ---------------------------------------------------------------- the sections


def anchors(evidence: Evidence) -> Lines:
    lines = [
        "Flashback is judged on hosts that have to be right: each alone, at the settings of an independent "
        f"publication, {seeds_in(evidence.anchors)}, class-incremental. Within {NEAR:g} points counts as near.",
        *missing(evidence.anchors),
    ]
    rows = []
    for found in evidence.anchored:
        row = found.pairing.row(CLASS_INCREMENTAL)
        judged = "not verified" if found.anchor.unverified else "yes" if found.near else "no"
        accuracies = [number(found.anchor.average_accuracy), spread(row.mean[HOST], row.deviation[HOST])]
        forgetting = [number(found.anchor.forgetting), number(found.here(FORGETTING))]
        first = on_first_task([run.record for run in found.pairing.of(HOST)])
        values = [*accuracies, signed(found.difference), *forgetting, number(first)]
        rows.append([found.pairing.name, judged, *values, seeds_of(row)])
    head = ("host", f"within {NEAR:g} points", *ANCHOR_HEAD)
    lines += table(head, rows, texts=2)
    lines += ["", NOT_VERIFIED] if any(found.anchor.unverified for found in evidence.anchored) else []
    lines += switches(evidence)
    lines += retrained(evidence)
    noted = (found for found in evidence.anchored if found.anchor.note)
    return lines + bullets(f"{found.pairing.name}: {found.anchor.note}" for found in noted)


def switches(evidence: Evidence) -> Lines:
    """What a difference to the published value may come from, measured."""
    rows = []
    for found in evidence.anchored:
        for one in found.switched:
            away = signed(found.off_by(one.accuracy))
            forgetting = [number(found.anchor.forgetting), number(one.forgetting)]
            accuracies = [number(found.anchor.average_accuracy), number(one.accuracy), away]
            values = [*accuracies, *forgetting, number(one.first_task)]
            rows.append([found.pairing.name, one.words, *values, str(one.seeds)])
    intro = ["", f"The same with one thing changed, as some implementations have it. {SWITCHES}"] if rows else []
    return [*intro, *table(("host", "what is changed", *ANCHOR_HEAD), rows, texts=2), *missing(evidence.switches)]


def retrained(evidence: Evidence) -> Lines:
    """How much the training settings alone move a host."""
    rows = []
    for found in evidence.anchored:
        if one := evidence.retrained.get(found.pairing.name):
            accuracies = [number(found.here(AA)), number(one.accuracy), signed(one.accuracy - found.here(AA))]
            forgetting = [number(found.here(FORGETTING)), number(one.forgetting)]
            rows.append([found.pairing.name, one.words, *accuracies, *forgetting, str(one.seeds)])
    head = ("host", "changed to", "AA, anchor", "AA, controlled", "difference", "F, anchor", "F, controlled", "seeds")
    intro = ["", "How far settings alone move a host, from its anchor to the controlled ones:"]
    return [*(intro if rows else []), *table(head, rows, texts=2)]


def controlled(evidence: Evidence) -> Lines:
    study = evidence.controlled
    lines = [
        f"Network {study.said('host.net')}, {order_of(study)} order, memory {study.said('host.memory_size')} where a "
        f"host has one, {study.said('training.epochs')} epochs a task; with flashback {phase_1(study)} of them are "
        "phase 1. Both arms have the same settings and take the same optimiser steps. For reference, without "
        f"flashback: {', '.join(study.references)}{absent_among(study)}.",
        *missing(study),
    ]
    if not study.runs:
        return lines
    report = Report(study.pairings, [], {})
    for setting in SETTINGS:
        lines += ["", f"### {SETTING_TITLES[setting].capitalize()}", "", "The paper's values beside ours:"]
        lines += printed_table(report, setting)
        lines += ["", "All metrics:", "", *markdown_table(report, setting)]
    lines += ["", "### What a run cost", *cost_table(report)]
    printed = notes_on(cell for pairing in report.pairings for cell in pairing.printed)
    noted = [*report.seed_remarks, *remarks(report), *printed, *inconsistencies(report.benchmarks)]
    return lines + (["", "### Remarks", *bullets(noted)] if noted else [])


def printed_table(report: Report, setting: str) -> Lines:
    rows = []
    for pairing in report.pairings:
        for printed in pairing.printed:
            if printed.setting == setting:
                row = pairing.row(setting, printed.metric)
                theirs = [printed.text(arm) or ABSENT for arm in ARMS]
                ours = [spread(row.mean[arm], row.deviation[arm]) for arm in ARMS]
                what = [pairing.name, TITLES[printed.metric][0], printed.where, seeds_of(row)]
                rows.append([*what, *theirs, *ours, tested(row.test)])
    head = ["host", "metric", "printed in", "seeds"]
    head += [f"{title}, {where}" for where in ("printed", "here") for title in ARM_TITLES.values()]
    return table([*head, "difference, here"], rows, texts=3)


def cost_table(report: Report) -> Lines:
    rows = []
    for pairing in report.pairings:
        for arm, cost in pairing.comparison.cost.items():
            runs, sizes = pairing.of(arm), (cost.bytes.get("stable"), cost.bytes.get("plastic"))
            budget = pairing.comparison.budget if len(pairing.arms) == len(ARMS) else ABSENT
            seconds = spanned([run.record.run["seconds"] for run in runs])
            trained = [whole(cost.steps), whole(cost.images), seconds]
            rows.append([pairing.name, ARM_TITLES[arm], budget, str(len(runs)), *trained, *map(whole, sizes)])
    head = ("host", "arm", "budget", "seeds", "steps", "images", "seconds a run", "stable bytes", "plastic bytes")
    return [*table(head, rows, texts=3), "", f"Means over seeds, of bytes the largest, of seconds the range. {SHARED}"]


def effects(evidence: Evidence) -> Lines:
    """Stability and plasticity apart: the average alone hides which of them moved."""
    pairings = evidence.controlled.compared
    if not pairings:
        return ["Not run yet; it follows from the runs of the section above."]
    lines: Lines = []
    for setting in SETTINGS:
        rows = []
        for pairing in pairings:
            rows.append(effect_cells(pairing.name, [pairing.row(setting, metric) for metric in EFFECTS]))
            for name in pairing.classifiers:
                found = [pairing.by_classifier(name, setting, metric) for metric in EFFECTS]
                rows.append(effect_cells(f"{pairing.name}, by its {name} classifier", found))
        heads = [f"{TITLES[metric][0]}, difference" for metric in EFFECTS]
        lines += [*bold(setting), *table(("host", "seeds", *heads), rows)]
    implied = implied_new_task_accuracies([pairings[0].any_run.benchmark])
    note = ["", "The paper prints no new-task accuracy, but implies one for some hosts:", *bullets(implied)]
    return lines[1:] + (note if implied else [])


def effect_cells(name: str, rows: Sequence[Row]) -> list[str]:
    return [name, seeds_of(rows[0]), *map(change, rows)]


def shorter_training(evidence: Evidence) -> Lines:
    study = evidence.phase2_alone
    lines = [
        "With flashback, phase 2 starts from the old state and has fewer epochs than the host alone. That by itself "
        f"moves the balance, so here {', '.join(study.hosts)} also trains alone for just the epochs of phase 2 "
        f"({study.said('training.epochs')}; the first task as always). From the host to that run, fewer epochs change "
        "something; from that run to flashback, plastic knowledge does.",
        *missing(study),
    ]
    for setting in SETTINGS if evidence.shorter else ():
        rows = [shorter_cells(one, setting, metric) for one in evidence.shorter for metric in FEW_METRICS]
        arms = ("host", "host, epochs of phase 2", "with flashback")
        head = ("method", "metric", "seeds", *arms, "by fewer epochs", "by plastic knowledge")
        lines += [*bold(setting), *table(head, rows, texts=2)]
    return lines + bullets(
        f"{one.host}, seed {seed}: not all made alike ({', '.join(keys)}), so even the first tasks may differ."
        for one in evidence.shorter
        for seed, keys in one.made_otherwise.items()
    )


def shorter_cells(one: Shorter, setting: str, metric: str) -> list[str]:
    values = [known(one.values(kind, setting, metric)) for kind in (HOST, SHORTER, FLASHBACK)]
    means = [spread(mean(own), deviation(own)) for own in values]
    steps = [tested(test) for test in (one.by_training(setting, metric), one.by_knowledge(setting, metric))]
    return [one.host, TITLES[metric][0], str(len(one.seeds)), *means, *steps]


def differences(evidence: Evidence) -> Lines:
    study = evidence.differences
    lines = [
        f"The authors' scripts for {', '.join(study.hosts)} change more than flashback between the arms: only the "
        "arm with flashback lowers its learning rate (and on Split CIFAR-10 it trains longer). Here each change is "
        f"switched on alone, from their host arm, then together; {seeds_in(study)} each. Their flashback arm without "
        "flashback, the host with the epochs of phase 2, tells what plastic knowledge adds. The controlled arms and "
        f"the paper's close the table.{noise(evidence, study.hosts[0])}{absent_among_differences(evidence)}",
        *missing(study),
    ]
    if not study.runs:
        return lines
    base = evidence.variants[0]
    for setting in SETTINGS:
        rows = [variant_cells(variant, base, setting) for variant in evidence.variants if variant.runs]
        rows += printed_rows(evidence, setting)
        names = [TITLES[metric][0] for metric in FEW_METRICS]
        head = (
            "arm",
            "learning rate",
            "epochs, later tasks",
            "seeds",
            *names,
            "AA minus that of the authors' host arm",
        )
        lines += [*bold(setting), *table(head, rows, texts=3)]
    return lines


def variant_cells(variant: Variant, base: Variant, setting: str) -> list[str]:
    change = variant.change
    since = None if variant is base else variant.difference(base, setting)
    words = [ARM_TITLES[FLASHBACK if change.flashback else HOST], change.rate, " + ".join(map(str, change.epochs))]
    values = [number(variant.value(setting, metric)) for metric in FEW_METRICS]
    return [*words, str(len(variant.runs)), *values, signed(since)]


def noise(evidence: Evidence, host: str) -> str:
    """How far seeds alone part two runs, so that a difference of single runs is not read for more than it is."""
    found = {setting: evidence.noise(host, setting) for setting in SETTINGS}
    said = [f"{number(value)} ({SETTING_TITLES[setting]})" for setting, value in found.items() if value is not None]
    if not said:
        return ""
    return f" By seeds alone the difference of two controlled runs has a deviation of about {' and '.join(said)}."


def absent_among_differences(evidence: Evidence) -> str:
    base, *later = evidence.variants[: len(evidence.differences.jobs)]
    absent = [" and ".join(variant.change.since(base.change)) for variant in later if not variant.runs]
    return f" Not run yet: {'; '.join(absent)}." if absent and evidence.differences.runs else ""


def printed_rows(evidence: Evidence, setting: str) -> list[list[str]]:
    """The paper's own arms, to be read beside the table's."""
    pairing = evidence.controlled.pairing(evidence.differences.hosts[0])
    cells = {printed.metric: printed for printed in pairing.printed if printed.setting == setting} if pairing else {}
    if AA not in cells:
        return []
    values = {arm: [cells[name].text(arm) if name in cells else ABSENT for name in FEW_METRICS] for arm in ARMS}
    gains = {HOST: None, FLASHBACK: printed_gain(cells[AA])}
    return [[f"{ARM_TITLES[arm]}, printed", *[ABSENT] * 3, *values[arm], signed(gains[arm])] for arm in ARMS]


def tuned(evidence: Evidence) -> Lines:
    study = evidence.tuning
    weights = len(study.values("flashback.alpha"))
    lines = [
        f"The weight of the plasticity loss chosen on a share of {study.said('benchmark.validation')} of the training "
        f"images, never on test images: {plural(weights, 'weight')}, {plural(len(study.seeds), 'short run')} each "
        f"({length_of(study)}). The best one then trains in full, on all training images, as a third arm. The host "
        "has no such choice, so this arm is not at equal cost. One short run of each weight leaves small leads to "
        "chance.",
        *missing(study),
    ]
    if not evidence.chosen:
        return lines
    trials = sorted(evidence.tuning.runs, key=lambda run: (evidence.tuning.hosts.index(run.host), alpha(run)))
    rows = [
        [run.host, f"{alpha(run):g}", number(accuracy(run)), "chosen" if run is evidence.chosen[run.host] else ""]
        for run in trials
    ]
    lines += table(("host", "alpha_p", "AA on validation images", ""), rows)
    lines += missing_tuned(evidence)
    for setting in SETTINGS:
        if evidence.newly_tuned:
            lines += [*bold(setting), *tuned_table(evidence, setting)]
    return lines + bullets(Report(list(evidence.newly_tuned.values()), [], {}, chosen=FEW_METRICS).seed_remarks)


def tuned_table(evidence: Evidence, setting: str) -> Lines:
    rows = []
    for host, pairing in evidence.newly_tuned.items():
        own = evidence.controlled.pairing(host)
        for metric in FEW_METRICS:
            with_recipe = own.row(setting, metric) if own else None
            with_tuned = pairing.row(setting, metric)
            means = [arm_of(with_tuned, HOST), arm_of(with_recipe, FLASHBACK), arm_of(with_tuned, FLASHBACK)]
            changes = [tested(with_recipe.test) if with_recipe else ABSENT, tested(with_tuned.test)]
            weights = [f"{weight:g}" for weight in (evidence.usual_weight(host), alpha(pairing.of(FLASHBACK)[0]))]
            rows.append([host, TITLES[metric][0], *weights, seeds_of(with_tuned), *means, *changes])
    arms = ("host", "flashback, recipe", "flashback, tuned", "difference, recipe", "difference, tuned")
    return table(("method", "metric", "alpha_p, recipe", "alpha_p, tuned", "seeds", *arms), rows, texts=2)


def missing_tuned(evidence: Evidence) -> Lines:
    """The sweep that trains the chosen weights in full, for hosts whose runs are not all here."""
    parts = []
    for host, trial in evidence.chosen.items():
        planned = {job.seed for job in evidence.controlled.jobs if name_of(job) == host}
        there = evidence.tuned[host].of(FLASHBACK) if host in evidence.tuned else []
        seeds = sorted(planned - {run.seed for run in there})
        if seeds:
            setting = f"settings: {{flashback.alpha: {alpha(trial)}}}"
            parts.append(f"  - {{hosts: [{host}], seeds: [{', '.join(map(str, seeds))}], {setting}}}")
    if not parts:
        return []
    benchmark = evidence.tuning.jobs[0].config["benchmark"]["name"]
    sweep = ["arms: [flashback]", f"benchmarks: [{benchmark}]", "parts:", *parts]
    file = ['```yaml title="tuned.yaml"', "title: Flashback with the weight tuned", *sweep, "```"]
    said = "Runs with the chosen weight are not all here yet:"
    return ["", said, "", NOT_RUN, *file, "", *sweep_command("tuned.yaml", "runs/tuned")]


def precision(evidence: Evidence) -> Lines:
    study = evidence.precision
    lines = [
        f"Long runs train in {precision_on_gpu(evidence.controlled)}. The same short runs ({length_of(study)}, the "
        f"host alone) in {' and '.join(study.values('training.precision'))}, with the same seeds; the difference is "
        "the first minus the second, tested in pairs by seed, uncorrected for the number of tests. Few seeds give a "
        "wide interval: what lies inside it is not ruled out.",
        *missing(study),
    ]
    for setting in SETTINGS:
        if evidence.precisions:
            names = list(evidence.precisions[0].runs)
            head = ("host", "what the test says", "seeds", *names, "difference", "95 % interval", "p")
            rows = [precision_cells(found, setting) for found in evidence.precisions]
            lines += [*bold(setting), *table(head, rows, texts=2)]
    return lines


def precision_cells(found: Precisions, setting: str) -> list[str]:
    test = found.test(setting)
    values = [known(found.values(name, setting)) for name in found.runs]
    means = [spread(mean(one), deviation(one)) for one in values]
    tested = [signed(test.difference), interval(test), probability(test.p)]
    return [found.host, precision_in_words(test), str(test.pairs), *means, *tested]


def similarity(evidence: Evidence) -> Lines:
    found = evidence.report.similarities
    lines = [
        "Linear CKA with a jointly trained network, layer by layer over the last stage, on test images of old tasks "
        "and of the last one; 1 is the same representation.",
    ]
    for one in found:
        said = similarity_in_words(one)
        lines += ["", f"**{plain(one.title)}**", *similarity_table(one), "", f"{plain(said[0].upper() + said[1:])}."]
    absent = [host for host in hosts_with_similarity() if host not in {one.host for one in found}]
    if absent:
        jobs = [*(evidence.controlled.job(absent[0], arm) for arm in ARMS), evidence.controlled.job(REFERENCE, HOST)]
        folders = [f"runs/{evidence.controlled.folder}/{job.name}" for job in jobs]
        lines += ["", f"Not run yet: {', '.join(absent)}. For each, from runs that still have their checkpoints:", ""]
        lines += bash(f"flashback cka {' '.join(folders)} --data ~/data --out results/cka/{absent[0]}")
    return lines


def similarity_table(one: Similarity) -> Lines:
    rows = []
    for k, layer in enumerate(one.layers):
        cells = [layer]
        for values in one.values.values():
            pair = [values[arm][k] if arm in values else None for arm in ARMS]
            cells += [number(value, ".4f") for value in pair]
            cells.append(number(values[FLASHBACK][k] - values[HOST][k] if len(values) == len(ARMS) else None, "+.4f"))
        rows.append(cells)
    head = [f"{images}, {what}" for images in one.values for what in (*ARM_TITLES.values(), "difference")]
    return table(("layer", *head), rows)


def short(evidence: Evidence) -> Lines:
    study = evidence.short
    lines = [
        f"Runs of {length_of(study)} ({phase_1(study)} of them phase 1) and {seeds_in(study)} check that every host "
        "learns on real images and that the arms differ by flashback alone; some hosts have other settings there than "
        "in their recipes. With so few epochs one is much to give to phase 1, and one seed is no test: none of this "
        "says whether flashback helps.",
        *missing(study),
    ]
    rows = [[pairing.name, *short_cells(pairing)] for pairing in study.pairings]
    arms = (*ARM_TITLES.values(), "difference")
    lines += table(("AA of", *(f"{SETTING_TITLES[setting]}, {arm}" for setting in SETTINGS for arm in arms)), rows)
    floor = {SETTING_TITLES[setting]: list(above_the_floor(study, setting)) for setting in SETTINGS}
    return lines + bullets(f"{title.capitalize()}: {text}" for title, found in floor.items() for text in found)


def short_cells(pairing: Pairing) -> list[str]:
    rows = [pairing.row(setting) for setting in SETTINGS]
    return [
        cell for row in rows for cell in (*(number(row.mean.get(arm)) for arm in ARMS), signed(row.test.difference))
    ]


def others(evidence: Evidence) -> Lines:
    rows = []
    for run in evidence.others:
        both = [number(run.record.results[setting][AA]) for setting in SETTINGS]
        rows.append([run.name, run.host, run.benchmark, ARM_TITLES[run.arm], str(run.seed), *both])
    head = ("record", "host", "benchmark", "arm", "seed", *(f"AA, {SETTING_TITLES[setting]}" for setting in SETTINGS))
    return ["Runs that none of the sweeps above asks for.", *table(head, rows, texts=4)] if rows else []


def left_out(evidence: Evidence) -> Lines:
    return bullets(f"{name}: {reason}" for name, reason in evidence.left_out.items())[1:]


# ---------------------------------------------------------------- what was planned, from the settings of the sweeps


def seeds_in(study: Study) -> str:
    return plural(len(study.seeds), "seed")


def length_of(study: Study) -> str:
    return f"{study.said('benchmark.tasks')} tasks, {study.said('training.epochs')} epochs"


def phase_1(study: Study) -> str:
    return study.said("flashback.epochs", [FLASHBACK])


def absent_among(study: Study) -> str:
    """Of the references those without a run, where others have one."""
    absent = [host for host in study.references if study.runs and study.pairing(host) is None]
    return f" (not run yet: {', '.join(absent)})" if absent else ""


def order_of(study: Study) -> str:
    benchmark = study.jobs[0].config["benchmark"]
    return str(benchmark["order"] or BENCHMARKS[benchmark["name"]].order)


def precision_on_gpu(study: Study) -> str:
    return select_precision(config_from_dict(study.jobs[0].config), torch.device("cuda"))


# ---------------------------------------------------------------- small parts


def missing(study: Study) -> Lines:
    """What is still to be run, and the command for it."""
    if study.done == len(study.jobs):
        return []
    there = f"{study.done} of {plural(len(study.jobs), 'planned run')} are here; the others are not run yet."
    said = there if study.done else f"Not run yet ({plural(len(study.jobs), 'run')})."
    place = "results" if study.done else "runs"  # beside the records that are here, the others alone are trained
    return ["", said, "", *sweep_command(study.sweep, f"{place}/{study.folder}")]


def sweep_command(sweep: str, folder: str) -> Lines:
    return bash(f"flashback sweep reproduction/sweeps/{sweep}.yaml --data ~/data --out {folder}")


def bash(command: str) -> Lines:
    return [NOT_RUN, "```bash", command, "```"]


def table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> Lines:
    """A table after an empty line, its first columns texts; nothing without rows."""
    return ["", *table_lines(head, rows, texts)] if rows else []


def bullets(items: Iterable[str]) -> Lines:
    lines = [f"- {plain(item)}" for item in items]
    return ["", *lines] if lines else []


def bold(setting: str) -> Lines:
    return ["", f"**{SETTING_TITLES[setting].capitalize()}**"]


def seeds_of(row: Row) -> str:
    """How many seeds of the arms have a value; two numbers where they differ."""
    counts = [str(seeds_with_value(row, arm)) for arm in ARMS if row.values[arm]]
    return " and ".join(dict.fromkeys(counts))


def arm_of(row: Row | None, arm: str) -> str:
    return ABSENT if row is None else spread(row.mean[arm], row.deviation[arm])


def whole(value: float | None) -> str:
    return number(value, ",.0f")


def spanned(values: Sequence[float]) -> str:
    """From the least to the largest."""
    return " to ".join(dict.fromkeys(whole(value) for value in (min(values), max(values)))) if values else ABSENT
