"""The page of evidence, from made records of the shipped sweeps: all of them, some of them, none."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from made_runs import SETTINGS, made_config, made_matrix, made_results, write_run, write_similarity

from flashback.cli import main
from flashback.config import FlashbackConfig, set_dotted
from flashback.evidence import evidence_page, write_evidence
from flashback.evidence.figure import draw_evidence
from flashback.evidence.gathered import Change, Evidence
from flashback.evidence.page import anchors, controlled, differences, precision, short, similarity, tuned
from flashback.evidence.planned import is_of
from flashback.metrics import confidence_interval
from flashback.records import differing_keys, dotted
from flashback.records.terms import ARMS, FLASHBACK
from flashback.reports import Report, read_report
from flashback.reports.words import number
from flashback.studies.jobs import Job, RunContext
from flashback.studies.sweeps import plan, read_sweep

SWEEPS = {
    "anchors": "anchors",
    "anchor-switches": "anchor-switches",
    "evidence": "controlled",
    "phase2-alone": "phase2-alone",
    "icarl-differences": "icarl-differences",
    "tuning": "tuning",
    "precision": "precision",
    "short": "short-cifar100",
}
Shift = Callable[[Job], float]


@cache
def jobs_of(sweep: str) -> list[Job]:
    return plan(read_sweep(sweep), Path("out"), RunContext(None, "cpu", None))


def gain(amount: float) -> Shift:
    return lambda job: amount if job.arm == FLASHBACK else 0.0


def write_job(folder: Path, job: Job, shift: float = 0.0, fall: float = 5.0, **run: Any) -> Path:
    tasks = job.config["benchmark"]["tasks"] or 10
    matrices = {setting: made_matrix(tasks, job.seed + k, shift, fall) for k, setting in enumerate(SETTINGS)}
    precision = job.config["training"]["precision"] or "bf16"
    return write_run(folder / job.name, job.config, matrices, **{"precision": precision, **run})


def write_sweep(results: Path, sweep: str, shift: Shift = gain(1.0), keep: Callable[[Job], bool] = bool) -> None:
    for job in filter(keep, jobs_of(sweep)):
        write_job(results / SWEEPS[sweep], job, shift(job))


def page_of(results: Path) -> str:
    results.mkdir(exist_ok=True)
    return evidence_page(read_report([results]))


def section(page: str, title: str) -> str:
    return page.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def row(text: str, *cells: str) -> list[str]:
    """The cells of the first row that begins so."""
    found = next(line for line in text.splitlines() if line.startswith("| " + " | ".join(cells) + " |"))
    return [cell.strip() for cell in found.strip("|").split("|")]


def of_host(name: str) -> Callable[[Job], bool]:
    return lambda job: job.config["host"]["name"] == name


# ---------------------------------------------------------------- what is not there


def test_without_any_record_every_section_says_so_and_how_to_fill_it(tmp_path: Path) -> None:
    page = page_of(tmp_path / "results")
    for sweep, folder in SWEEPS.items():
        assert f"flashback sweep {sweep} --data ~/data --out runs/{folder}" in page
        assert f"Not run yet ({len(jobs_of(sweep))} runs)." in page
    assert "Not run yet: icarl, oewc." in page
    assert "Nothing yet" in section(page, "What this says")
    assert "## Left out" not in page
    assert "## Other records" not in page


def test_part_of_a_sweep_is_shown_and_the_rest_named(tmp_path: Path) -> None:
    write_sweep(tmp_path, "evidence", keep=lambda job: of_host("oewc")(job) and job.seed != 369)
    own = section(page_of(tmp_path), "Does flashback help at equal cost?")
    assert "4 of 31 planned runs are here" in own
    assert "flashback sweep evidence --data ~/data --out results/controlled" in own  # beside those that are here
    assert "without flashback: finetune, joint, der++ (not run yet: finetune, joint, der++)." in own
    assert "only one arm has" not in own
    assert row(own, "oewc", "AA", "Table 1")[3] == "2"
    assert "icarl" not in own.split("### Remarks")[0]


def test_seeds_that_one_arm_lacks_are_named(tmp_path: Path) -> None:
    write_sweep(
        tmp_path,
        "evidence",
        keep=lambda job: of_host("oewc")(job) and (job.seed == 123 or job.arm != FLASHBACK),
    )
    own = section(page_of(tmp_path), "Does flashback help at equal cost?")
    assert "- oewc: Seeds that only one arm has (host: seeds 246, 369) count for" in own.split("### Remarks")[1]


def test_one_arm_alone_gives_no_difference(tmp_path: Path) -> None:
    write_sweep(tmp_path, "evidence", keep=lambda job: of_host("oewc")(job) and job.arm != FLASHBACK)
    page = page_of(tmp_path)
    assert row(page, "oewc", "AA", "Table 1")[-1] == "–"
    assert "oewc | host |" in page
    assert "oewc | difference" not in page
    assert "Not run yet" in section(page, "What flashback does to forgetting and to new tasks")


def test_arms_without_a_common_seed_are_not_compared(tmp_path: Path) -> None:
    write_sweep(
        tmp_path,
        "evidence",
        keep=lambda job: of_host("oewc")(job) and job.seed == (123 if job.arm == FLASHBACK else 246),
    )
    page = page_of(tmp_path)
    assert "Nothing yet" in section(page, "What this says")
    assert "Not run yet" in section(page, "What flashback does to forgetting and to new tasks")
    assert row(page, "oewc", "AA", "Table 1")[-1] == "–"


# ---------------------------------------------------------------- the controlled table


def test_all_metrics_of_both_settings_stand_beside_the_printed_values(tmp_path: Path) -> None:
    write_sweep(tmp_path, "evidence", gain(2.0))
    page = page_of(tmp_path)
    own = section(page, "Does flashback help at equal cost?")
    assert "planned runs are here" not in own
    for metric in ("AA ↑", "AIA ↑", "F ↓", "BWT ↑", "FWT ↑", "SPR ↓", "NTA ↑", "mean NTA ↑"):
        assert own.count(f"| {metric} |") == 2
    for host in ("icarl", "lwf-mc", "oewc", "lucir", "xder"):
        assert own.count(f"| {host} | difference |") == 2
    for host in ("finetune", "joint", "der++"):
        assert f"| {host} | host |" in own
    printed = row(own, "icarl", "AA", "Table 1")
    assert printed[3:6] == ["3", "49.82 (quoted)", "53.20"]
    assert row(own, "xder", "AA", "Table 1")[3] == "2"
    assert row(own, "icarl", "host", "equal budget")[4:7] == ["640", "20,000", "12"]


def test_differences_and_tests_are_those_of_the_records(tmp_path: Path) -> None:
    write_sweep(tmp_path, "evidence", lambda job: job.seed / 100 if job.arm == FLASHBACK else 0.0, of_host("lucir"))
    expected = (1.23 + 2.46 + 3.69) / 3
    found = row(page_of(tmp_path), "lucir", "AA", "Table 1")[-1]
    assert found.startswith(f"{expected:+.2f} (p 0.0")


def test_one_seed_is_called_so(tmp_path: Path) -> None:
    write_sweep(tmp_path, "evidence", gain(1.5), lambda job: of_host("lucir")(job) and job.seed == 123)
    page = page_of(tmp_path)
    assert row(page, "lucir", "AA", "Table 1")[-1] == "+1.50 (one seed)"
    says = section(page, "What this says")
    assert row(says, "lucir", "class-incremental")[2:] == [
        "1",
        "57.46",
        "+1.50",
        "–",
        "+0.98",
        "+0.00",
        "+1.50",
        "+1.50",
    ]
    assert "significant" not in says
    assert "it learns" not in says


@pytest.mark.parametrize("amount", [-2.0, 2.0])
def test_losses_are_told_like_gains(tmp_path: Path, amount: float) -> None:
    hosts = ("oewc", "lucir")
    shifts = {123: 0.95 * amount, 246: 1.0 * amount, 369: 1.05 * amount}
    write_sweep(
        tmp_path,
        "evidence",
        lambda job: shifts[job.seed] if job.arm == FLASHBACK else 0.0,
        lambda job: job.config["host"]["name"] in hosts,
    )
    says = section(page_of(tmp_path), "What this says")
    each = [
        f"{host} {setting} ({amount:+.2f})" for host in hosts for setting in ("class-incremental", "task-incremental")
    ]
    assert f"average accuracy significantly for {', '.join(each)} (paired tests" in says
    assert "Holm's correction for 4 tests" in says
    learns = f"it learns new tasks {'worse' if amount < 0 else 'better'} with"
    both = f"{learns} oewc ({amount:+.2f}), lucir ({amount:+.2f})"
    assert f"After Holm's correction for 4 tests: class-incremental {both}; task-incremental {both}." in says
    assert "Before such a correction" not in says
    seeds, _, changed, within, printed, forgetting, learning, old = row(says, "lucir", "class-incremental")[2:]
    assert (seeds, changed, printed, forgetting) == ("3", f"{amount:+.2f}", "+0.98", "+0.00 (alike)")
    assert within == f"{amount - 0.25:+.2f} to {amount + 0.25:+.2f}"
    assert learning.startswith(f"{amount:+.2f} (0.00")
    assert old == learning  # nothing falls more or less than before
    short = says.split("**In short.** ")[1].split("\n")[0]
    assert short.startswith(
        f"With the same settings and steps flashback changes average accuracy detectably for {each[0]}"
    )
    assert "both settings are read off the same runs" in says.lower()


def test_the_picture_shows_changes_with_their_intervals_beside_the_printed_ones(tmp_path: Path) -> None:
    shifts = {123: 1.0, 246: 2.0, 369: 3.0}
    hosts = lambda job: of_host("oewc")(job) or (of_host("xder")(job) and job.seed == 123)  # noqa: E731
    write_sweep(tmp_path, "evidence", lambda job: shifts[job.seed] if job.arm == FLASHBACK else 0.0, hosts)
    figure = draw_evidence(Evidence(read_report([tmp_path])))
    assert figure is not None
    class_incremental, _ = figure.axes
    drawn = [list(map(float, line.get_xdata())) for line in class_incremental.get_lines() if len(line.get_xdata())]
    low, high = confidence_interval((1.0, 2.0, 3.0)) or (0.0, 0.0)
    zero, interval, change, printed, one_seed, printed_too = drawn
    assert zero == [0, 0]
    assert interval == pytest.approx([low, high])
    assert (change, printed) == ([pytest.approx(2.0)], [pytest.approx(0.55)])
    assert (one_seed, printed_too) == ([pytest.approx(1.0)], [pytest.approx(0.45)])  # one seed has no interval
    assert [label.get_text() for label in class_incremental.get_yticklabels()] == ["oewc", "xder"]


def test_without_both_arms_of_any_host_there_is_no_picture(tmp_path: Path) -> None:
    write_sweep(tmp_path, "anchors")
    assert write_evidence(read_report([tmp_path]), tmp_path / "page" / "evidence.md") == [
        tmp_path / "page" / "evidence.md"
    ]
    assert "![" not in (tmp_path / "page" / "evidence.md").read_text()


def test_two_seeds_speak_for_themselves(tmp_path: Path) -> None:
    shifts = {123: -0.5, 246: 1.5}
    own = lambda job: of_host("oewc")(job) and job.seed in shifts  # noqa: E731
    write_sweep(tmp_path, "evidence", lambda job: shifts[job.seed] if job.arm == FLASHBACK else 0.0, own)
    says = section(page_of(tmp_path), "What this says")
    assert "4 of 31 planned runs are here." in says
    cells = row(says, "oewc", "class-incremental")
    assert (cells[2], *cells[4:]) == ("2", "+0.50", "–", "+0.55", "+0.00 (alike)", "+0.50 (0.7)", "+0.50 (0.7)")


def test_a_gain_over_a_quoted_host_is_named(tmp_path: Path) -> None:
    write_sweep(tmp_path, "evidence", keep=lambda job: of_host("icarl")(job) or of_host("lucir")(job))
    says = section(page_of(tmp_path), "What this says").splitlines()
    (gains,) = (line for line in says if line.startswith("- **Printed gains.**"))
    own_runs = gains.split("further than 5 points from the paper's own run: ")[1]
    assert re.match(
        r"lucir class-incremental 47\.66, here [\d.]+; lucir task-incremental 86\.88, here [\d.]+", own_runs
    )
    assert "icarl class-incremental" not in own_runs  # a quoted value is no run of theirs
    assert row("\n".join(says), "icarl", "class-incremental")[6] == "+3.38 over a quoted value"
    assert row("\n".join(says), "lucir", "class-incremental")[6] == "+0.98"


def test_what_flashback_does_to_forgetting_and_learning_is_told_apart(tmp_path: Path) -> None:
    for job in filter(of_host("icarl"), jobs_of("evidence")):
        with_flashback = job.arm == FLASHBACK
        write_job(tmp_path, job, shift=-3.0 if with_flashback else 0.0, fall=2.0 if with_flashback else 5.0)
    page = page_of(tmp_path)
    own = section(page, "What flashback does to forgetting and to new tasks")
    seeds, average, forgetting, learning, *_ = row(own, "icarl")[1:]
    assert (seeds, average, learning) == (
        "3",
        "+10.50 (alike)",
        "-3.00 (alike)",
    )  # 3 a step less fallen, 4.5 steps on average
    assert forgetting.startswith("-14.9")
    assert "imply a new-task accuracy of 73.3 without and 69.8 with flashback. They are exactly 10.00 apart" in own
    assert "class-incremental it forgets less with icarl (-14.9" in section(page, "What this says")
    assert "learns new tasks" not in section(page, "What this says")  # no test: all equal


def test_both_sides_of_the_balance_are_tested(tmp_path: Path) -> None:
    falls = {123: 3.0, 246: 3.1, 369: 2.9}
    for job in filter(of_host("icarl"), jobs_of("evidence")):
        write_job(tmp_path, job, fall=falls[job.seed] if job.arm == FLASHBACK else 5.0)
    page = page_of(tmp_path)
    says = section(page, "What this says")
    assert "class-incremental it forgets less with icarl (-" in says
    assert row(says, "icarl", "class-incremental")[-2] == "+0.00 (alike)"
    assert row(says, "icarl", "class-incremental")[-1].startswith("+10.00 (0.00")  # two a step, five steps on average
    assert "On old tasks, at the end, class-incremental accuracy changes: icarl +10.00 (p 0.00" in says
    assert "learn new tasks worse" not in says


def test_hosts_that_forget_less_and_learn_worse_are_named_at_once(tmp_path: Path) -> None:
    falls, learned = {123: 3.0, 246: 3.1, 369: 2.9}, {123: -2.0, 246: -2.1, 369: -1.9}
    for job in filter(of_host("icarl"), jobs_of("evidence")):
        flashback = job.arm == FLASHBACK
        write_job(tmp_path, job, learned[job.seed] * flashback, fall=falls[job.seed] if flashback else 5.0)
    assert "icarl forgets less and learns new tasks worse." in section(page_of(tmp_path), "What this says")


def test_an_effect_that_the_correction_takes_away_is_told_so(tmp_path: Path) -> None:
    falls = {123: 4.2, 246: 5.3, 369: 4.4}  # no effect
    learned = {123: 0.5, 246: 1.0, 369: 0.6}
    for job in filter(of_host("icarl"), jobs_of("evidence")):
        flashback = job.arm == FLASHBACK
        write_job(tmp_path, job, learned[job.seed] * flashback, fall=falls[job.seed] if flashback else 5.0)
    says = section(page_of(tmp_path), "What this says")
    assert "After Holm's correction" not in says
    assert "Before such a correction: class-incremental it learns new tasks better with icarl (+0.70)" in says


def test_further_classifiers_show_their_own_effect(tmp_path: Path) -> None:
    for job in filter(of_host("icarl"), jobs_of("evidence")):
        folder = write_job(tmp_path, job)
        results = json.loads((folder / "results.json").read_text())
        worse = made_results(dict.fromkeys(SETTINGS, made_matrix(10, job.seed, -2.0 if job.arm == FLASHBACK else 0.0)))
        results["classifiers"]["other"] = {setting: worse[setting] for setting in SETTINGS}
        (folder / "results.json").write_text(json.dumps(results))
    own = section(page_of(tmp_path), "What flashback does to forgetting and to new tasks")
    assert row(own, "icarl")[2] == "+0.00 (alike)"
    assert row(own, "icarl, by its other classifier")[2] == "-2.00 (alike)"


def test_an_unequal_budget_is_named(tmp_path: Path) -> None:
    for job in filter(of_host("lucir"), jobs_of("evidence")):
        write_job(tmp_path, job, 1.0, steps=740 if job.arm == FLASHBACK else 640)
    page = page_of(tmp_path)
    assert row(page, "lucir", "with flashback", "unequal budget")
    assert "Unequal budget, so these answer another question: lucir." in page
    assert "equal settings, steps" not in page


def test_one_small_p_among_several_tests_is_not_a_finding(tmp_path: Path) -> None:
    """About 0.03 for one host, counted as often as there are tests."""
    shifts = {123: 2.0, 246: 3.5, 369: 2.5}

    def shift(job: Job) -> float:
        found = shifts[job.seed] if of_host("lucir")(job) else (job.seed % 7) - 3
        return found if job.arm == FLASHBACK else 0.0

    write_sweep(tmp_path, "evidence", shift, lambda job: of_host("lucir")(job) or of_host("oewc")(job))
    page = page_of(tmp_path)
    p = float(row(page, "lucir", "AA", "Table 1")[-1].split("p ")[1].strip(")"))
    assert 0.05 / 4 < p < 0.05
    assert "changes average accuracy significantly for none (paired tests" in section(page, "What this says")
    assert "Holm's correction for 4 tests" in section(page, "What this says")


def test_equal_differences_give_neither_p_nor_interval(tmp_path: Path) -> None:
    write_sweep(tmp_path, "evidence", gain(-2.0), of_host("lucir"))
    page = page_of(tmp_path)
    assert row(page, "lucir", "AA", "Table 1")[-1] == "-2.00"
    assert "-2.00 to -2.00" not in page
    assert "significantly" not in section(page, "What this says")


def test_seconds_are_shown_but_not_compared(tmp_path: Path) -> None:
    for job in filter(of_host("lucir"), [*jobs_of("evidence"), *jobs_of("anchors")]):
        write_job(tmp_path, job, seconds=150.0 if job.arm == FLASHBACK else 100.0 + job.seed)
    page = page_of(tmp_path)
    costs = section(page, "Does flashback help at equal cost?").split("### What a run cost")[1]
    assert [row(costs, "lucir", arm)[6] for arm in ("host", "with flashback")] == ["223 to 469", "150"]
    assert "Runs may have shared the device" in costs
    assert "second" not in section(page, "What this says")


# ---------------------------------------------------------------- the other sections


def test_hosts_are_judged_by_their_anchors(tmp_path: Path) -> None:
    for job in jobs_of("anchors"):
        top = {"icarl": 50.5, "xder": 62.0}.get(job.config["host"]["name"], 40.0)
        flat = [[top] * (k + 1) for k in range(10)]
        write_run(tmp_path / job.name, job.config, dict.fromkeys(SETTINGS, flat))
    page = page_of(tmp_path)
    own = section(page, "Are the hosts right?")
    assert row(own, "icarl")[1:5] == ["yes", "49.82", "50.50", "+0.68"]
    assert row(own, "xder")[1:5] == ["no", "59.14", "62.00", "+2.86"]
    assert row(own, "der++")[1] == "no"
    assert row(own, "lucir")[1] == row(own, "lwf-mc")[1] == "not verified"
    assert "Not verified: those who maintain" in own
    says = section(page, "What this says")
    assert "Within 2 points of the published value: icarl 50.50 (+0.68)." in says
    assert "Further than 2 points from it: xder 62.00 (+2.86), der++ 40.00 (-13.63)" in says


def test_what_may_explain_a_difference_to_an_anchor_is_measured(tmp_path: Path) -> None:
    def write(job: Job, value: float) -> Path:
        flat = [[value] * (k + 1) for k in range(10)]
        return write_run(tmp_path / job.name, job.config, dict.fromkeys(SETTINGS, flat))

    icarl = write(next(filter(of_host("icarl"), jobs_of("anchors"))), 53.0)
    results = json.loads((icarl / "results.json").read_text())
    results["classifiers"]["other"] = made_results(dict.fromkeys(SETTINGS, made_matrix(10, 1)))["classifiers"]["linear"]
    (icarl / "results.json").write_text(json.dumps(results))
    write(next(filter(of_host("lucir"), jobs_of("anchors"))), 49.0)
    switched = [job for job in jobs_of("anchor-switches") if job.config["host"]["name"] != "lwf-mc"]
    for job, value in zip(switched, (50.0, 45.0, 52.0), strict=True):
        write(job, value)
    page = page_of(tmp_path)
    own = section(page, "Are the hosts right?")
    assert row(own, "icarl", "host.columns all")[2:5] == ["49.82", "50.00", "+0.18"]
    assert row(own, "icarl", "host.normalise true")[2:5] == ["49.82", "52.00", "+2.18"]
    assert row(own, "lucir", "host.columns all")[2:5] == ["41.73", "45.00", "+3.27"]
    other = row(own, "icarl", "the same run by its other classifier")
    assert other[3] == number(sum(made_matrix(10, 1)[-1]) / 10)
    assert "3 of 4 planned runs are here" in own
    says = section(page, "What this says")
    nearest = "host.columns all 50.00 (+0.18), forgetting 0.00"
    next_one = "host.normalise true 52.00 (+2.18), forgetting 0.00"
    assert f"{nearest}, or {next_one} (published: 49.82, 18.07); lucir, host.columns all 45.00 (+3.27)" in says
    assert says.index("the same run by its other classifier") < says.index(
        nearest
    )  # it forgets much more nearly as much
    assert row(own, "icarl", "host.columns all")[-2:] == ["50.00", "1"]


def test_how_far_training_settings_alone_move_a_host_is_told(tmp_path: Path) -> None:
    def write(job: Job, value: float) -> None:
        flat = [[value] * (k + 1) for k in range(10)]
        write_run(tmp_path / job.name, job.config, dict.fromkeys(SETTINGS, flat))

    for host, value in {"icarl": 50.0, "lwf-mc": 24.0, "der++": 53.0}.items():
        write(next(filter(of_host(host), jobs_of("anchors"))), value)
    alone = [job for job in jobs_of("evidence") if job.arm != FLASHBACK]
    for job in filter(of_host("icarl"), alone):
        write(job, 51.0)
    for job, value in zip(filter(of_host("lwf-mc"), alone), (37.0, 38.0, 42.0), strict=True):
        write(job, value)
    page = page_of(tmp_path)
    own = section(page, "Are the hosts right?").split("How far settings alone move a host")[1]
    changed = "host.penalty 2e-05, training.epochs 60, training.lr 0.3, training.weight\\_decay 0.0"
    assert row(own, "lwf-mc", changed)[2:] == ["24.00", "39.00", "+15.00", "0.00", "0.00", "3"]
    assert row(own, "icarl")[2:5] == ["50.00", "51.00", "+1.00"]
    assert "| der++ |" not in own
    says = section(page, "What this says")
    assert "Settings alone move lwf-mc by +15.00, from 24.00 at the publication's to 39.00 at the" in says


def test_anchors_and_what_is_changed_of_them_are_means_over_the_same_seeds(tmp_path: Path) -> None:
    """By another classifier and with a setting changed, at two seeds."""

    def write(job: Job, seed: int, value: float, by_other: float = 0.0) -> None:
        flat = {name: [[at] * (k + 1) for k in range(10)] for name, at in (("own", value), ("other", by_other))}
        path = write_run(
            tmp_path / job.name / str(seed), job.config | {"seed": seed}, dict.fromkeys(SETTINGS, flat["own"])
        )
        results = json.loads((path / "results.json").read_text())
        results["classifiers"]["other"] = made_results(dict.fromkeys(SETTINGS, flat["other"]))["classifiers"]["linear"]
        (path / "results.json").write_text(json.dumps(results))

    anchor = next(filter(of_host("icarl"), jobs_of("anchors")))
    switch = next(filter(of_host("icarl"), jobs_of("anchor-switches")))
    for seed, values in {123: (53.0, 50.0, 49.0), 246: (57.0, 30.0, 55.0)}.items():
        write(anchor, seed, *values[:2])
        write(switch, seed, values[2])
    page = page_of(tmp_path)
    own = section(page, "Are the hosts right?")
    assert row(own, "icarl", "the same runs by their other classifier")[2:] == [
        "49.82", "40.00", "-9.82", "18.07", "0.00", "40.00", "2",
    ]  # fmt: skip
    assert row(own, "icarl", "host.columns all")[2:7] == ["49.82", "52.00", "+2.18", "18.07", "0.00"]
    assert own.count("| host.columns all |") == 1
    assert "host.columns all 52.00 (+2.18), forgetting 0.00" in page


def test_a_record_without_a_later_setting_has_its_default(tmp_path: Path) -> None:
    job = next(filter(of_host("lwf-mc"), jobs_of("anchors")))
    config = copy.deepcopy(job.config)
    del config["host"]["columns"]
    write_run(tmp_path / "run", config, dict.fromkeys(SETTINGS, made_matrix(10, 1)))
    evidence = Evidence(read_report([tmp_path]))
    assert [run.name for run in evidence.anchors.runs] == ["run"]
    assert evidence.switches.runs == []


def test_fewer_epochs_and_plastic_knowledge_are_told_apart(tmp_path: Path) -> None:
    write_sweep(tmp_path, "evidence", gain(1.0), of_host("icarl"))
    shifts = {123: -1.5, 246: -2.0, 369: -2.5}
    for job in jobs_of("phase2-alone"):
        write_job(tmp_path / "alone", job, shifts[job.seed])
    page = page_of(tmp_path)
    own = section(page, "Plastic knowledge, or fewer epochs?").split("**Task-incremental**")[0]
    cells = row(own, "icarl", "AA")
    assert cells[2] == "3"
    assert [cell.split(" (")[0] for cell in cells[-2:]] == ["-2.00", "+3.00"]
    assert cells[-1].endswith("(p 0.0091)")  # 3.0 with a deviation of 0.5 over three seeds
    says = section(page, "What this says")
    assert "average accuracy -2.00 (p 0.02) and then +3.00 (p 0.0091), forgetting" in says
    assert "; 3 seeds, uncorrected." in says
    assert "## Other records" not in page


def test_runs_with_the_epochs_of_phase_2_are_compared_at_seeds_that_all_have(tmp_path: Path) -> None:
    write_sweep(tmp_path, "evidence", gain(1.0), lambda job: of_host("icarl")(job) and job.seed != 369)
    first, *others = jobs_of("phase2-alone")
    write_job(tmp_path, first, precision="fp32")  # computed otherwise than the arms
    for job in others:
        write_job(tmp_path, job)
    own = section(page_of(tmp_path), "Plastic knowledge, or fewer epochs?")
    assert row(own, "icarl", "AA")[2] == "1"
    assert "(one seed)" in row(own, "icarl", "AA")[-1]


def test_phase_2_alone_is_the_controlled_host_but_for_its_epochs() -> None:
    study = Evidence(Report([], [], {}))
    host, flashback = (study.controlled.job("icarl", arm).config for arm in ARMS)
    alone = study.phase2_alone.job("icarl", ARMS[0]).config
    assert differing_keys(host, alone) == ["training.epochs", "training.first_epochs"]
    assert alone["training"]["first_epochs"] == host["training"]["epochs"]
    assert FlashbackConfig(**flashback["flashback"]).split(60) == (10, alone["training"]["epochs"])


def test_the_differences_between_the_authors_arms_are_switched_on_one_at_a_time(tmp_path: Path) -> None:
    shifts = iter([0.0, 2.0, 0.5, -1.0, 1.25, 1.75, 1.5])
    write_sweep(tmp_path, "icarl-differences", lambda job: next(shifts))
    write_sweep(tmp_path, "evidence", gain(0.0), of_host("icarl"))
    page = page_of(tmp_path)
    own = section(page, "Where the printed gain comes from").split("**Task-incremental**")[0]
    lines = [
        line.strip("| ").split(" | ") for line in own.splitlines() if line.startswith("| host") or "| with" in line
    ]
    table = [(*cells[:3], cells[-1]) for cells in lines]
    assert table == [
        ("host", "constant", "60", "–"),
        ("host", "falls after the first task", "60", "+2.00"),
        ("host", "constant", "70", "+0.50"),
        ("with flashback", "constant", "10 + 50", "-1.00"),
        ("with flashback", "falls after the first task", "10 + 50", "+1.25"),
        ("with flashback", "falls after the first task", "10 + 60", "+1.75"),
        ("host", "falls after the first task", "50", "+1.50"),
        ("host", "falls", "60", "+0.02"),  # over all their seeds
        ("with flashback", "falls", "10 + 50", "+0.02"),
        ("host, printed", "–", "–", "–"),
        ("with flashback, printed", "–", "–", "+3.38"),
    ]
    assert [cells[4:6] for cells in lines[-2:]] == [["49.82 (quoted)", "27.47"], ["53.20", "23.07"]]
    assert "By seeds alone the difference of two controlled runs has a deviation of about" in own
    says = section(page, "What this says")
    first = row(own, "host", "constant", "60")[4]
    assert f"that goes from {first} to {float(first) + 2:.2f} (+2.00)." in says
    on_top = f"Flashback on top of that changes it by -0.75, to {float(first) + 1.25:.2f}"
    assert f"{on_top}, over the host with the epochs of phase 2 by -0.25." in says
    assert f"At a constant rate flashback changes it by -1.00, to {float(first) - 1:.2f}," in says
    assert "1 seed each; the difference of two runs has a deviation of about" in says
    assert "The paper prints 49.82 (quoted) and 53.20." in says
    assert "The paper prints 83.99 and 86.77." in says
    assert "in both of which the rate falls: +0.00 (the same at 3 seeds)." in says
    assert "where the printed gain comes from, task-incremental.**" in says
    assert "appears without flashback" not in says  # two points are not most of 3.38
    assert "Not run yet" not in own


def test_a_printed_gain_that_appears_without_flashback_is_named_at_once(tmp_path: Path) -> None:
    shifts = iter([0.0, 3.0, 0.5, -1.0, 1.25, 1.75, 1.5])
    write_sweep(tmp_path, "icarl-differences", lambda job: next(shifts))
    write_sweep(tmp_path, "evidence", gain(0.0), of_host("icarl"))
    says = section(page_of(tmp_path), "What this says")
    assert "The gain that the paper prints for icarl (+3.38; +3.00 here) appears without flashback, once" in says


def test_differences_that_are_not_run_yet_are_named(tmp_path: Path) -> None:
    done = iter(range(7))
    write_sweep(tmp_path, "icarl-differences", keep=lambda job: next(done) < 3)
    own = section(page_of(tmp_path), "Where the printed gain comes from")
    assert "Not run yet: flashback; flashback and the falling learning rate; " in own


def test_a_printed_gain_outside_of_the_interval_is_named(tmp_path: Path) -> None:
    spread = {123: -0.1, 246: 0.1, 369: 0.0}

    def shift(job: Job) -> float:
        return (spread[job.seed] + 3.3 * of_host("icarl")(job)) * (job.arm == FLASHBACK)

    write_sweep(tmp_path, "evidence", shift, lambda job: job.config["host"]["name"] in ("lwf-mc", "icarl"))
    says = section(page_of(tmp_path), "What this says")
    found = "lwf-mc class-incremental (+4.91 over a quoted value, found -0.25 to +0.25)"
    assert f"does not reach the printed gain for {found}" in says
    assert "icarl class-incremental (+3.38, found" not in says


def test_a_host_that_remembers_no_more_than_finetune_is_named(tmp_path: Path) -> None:
    for job in filter(lambda job: job.config["host"]["name"] in ("finetune", "oewc", "lucir"), jobs_of("evidence")):
        write_job(tmp_path, job, 5.0 if of_host("lucir")(job) else 0.5 if of_host("oewc")(job) else 0.0)
    says = section(page_of(tmp_path), "What this says")
    assert re.search(r"there is nothing to tell: oewc class-incremental \(\S+; finetune \S+\), oewc task-incr", says)
    assert "tell: lucir" not in says


def test_a_shorter_anchor_tells_what_fewer_epochs_do(tmp_path: Path) -> None:
    write_sweep(tmp_path, "anchors", keep=of_host("icarl"))
    write_sweep(tmp_path, "evidence", gain(1.0), of_host("icarl"))
    hint = "Fewer epochs may do the same, as phase 2 has them; alone, hosts forget: icarl"
    assert hint in section(page_of(tmp_path), "What this says")
    write_sweep(tmp_path, "phase2-alone")
    assert hint not in section(page_of(tmp_path), "What this says")  # measured now


def test_a_run_that_went_on_elsewhere_is_named(tmp_path: Path) -> None:
    job = next(job for job in jobs_of("evidence") if of_host("icarl")(job))
    folder = write_job(tmp_path, job)
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(run | {"changed_on_resume": ["source"]}))
    page = page_of(tmp_path)
    assert f"{folder.relative_to(tmp_path)} went on after an interruption in other surroundings (source)." in page


def test_the_best_weight_on_validation_images_is_a_third_arm(tmp_path: Path) -> None:
    write_sweep(tmp_path, "tuning", lambda job: {0.1: 3.0}.get(job.config["flashback"]["alpha"], 0.0))
    write_sweep(tmp_path, "evidence", gain(1.0), of_host("icarl"))
    page = page_of(tmp_path)
    own = section(page, "With the weight tuned")
    assert [line for line in own.splitlines() if line.endswith("chosen |")] == [
        line for line in own.splitlines() if " | 0.1 | " in line
    ]
    assert "  - {hosts: [icarl], seeds: [123, 246, 369], settings: {flashback.alpha: 0.1}}" in own
    assert "flashback sweep tuned.yaml --data ~/data --out runs/tuned" in own

    (tmp_path / "tuned.yaml").write_text(own.split('title="tuned.yaml"\n')[1].split("```")[0])
    jobs = plan(read_sweep(tmp_path / "tuned.yaml"), Path("out"), RunContext(None, "cpu", None))
    assert len(jobs) == 9
    for job in filter(of_host("icarl"), jobs):
        write_job(tmp_path / "tuned", job, 4.0)
    page = page_of(tmp_path)
    cells = row(section(page, "With the weight tuned"), "icarl", "AA")
    assert cells[2:5] == ["0.01", "0.1", "3"]
    assert [cell.split(" (")[0] for cell in cells[-2:]] == ["+1.00", "+4.00"]
    assert "{hosts: [icarl]" not in page
    assert "{hosts: [lucir]" in page
    assert "## Other records" not in page
    assert row(page, "icarl", "AA", "Table 1")[-1].startswith("+1.00")  # the controlled table keeps the recipe's weight
    says = section(page, "What this says")
    assert (
        "For icarl it is 0.1 (recipe: 0.01): class-incremental, over the host, average accuracy changes by +4.00"
        in says
    )
    assert "), forgetting by +0.00, new-task accuracy by +4.00." in says
    assert "From the recipe's weight to that, average accuracy changes by +3.00. The host was not tuned" in says


def test_remarks_beside_the_tuned_arm_are_on_the_metrics_it_shows(tmp_path: Path) -> None:
    write_sweep(tmp_path, "tuning", lambda job: {0.1: 3.0}.get(job.config["flashback"]["alpha"], 0.0), of_host("icarl"))
    write_sweep(tmp_path, "evidence", gain(1.0), of_host("icarl"))
    for job in filter(of_host("icarl"), jobs_of("evidence")):
        if job.arm == FLASHBACK:
            config = copy.deepcopy(job.config)
            config["flashback"]["alpha"] = 0.1
            fall = -4.0 if job.seed == 123 else 4.0  # where nothing is forgotten, there is no SPR
            write_job(tmp_path / "tuned", replace(job, config=config), -25.0, fall)
    page = page_of(tmp_path)
    assert "flashback, tuned" in section(page, "With the weight tuned")
    assert "SPR" not in section(page, "With the weight tuned")


def test_a_chosen_weight_that_is_the_recipes_needs_no_further_runs(tmp_path: Path) -> None:
    write_sweep(
        tmp_path, "tuning", lambda job: {0.01: 3.0}.get(job.config["flashback"]["alpha"], 0.0), of_host("icarl")
    )
    write_sweep(tmp_path, "evidence", gain(1.0), of_host("icarl"))
    page = page_of(tmp_path)
    own = section(page, "With the weight tuned")
    assert "tuned.yaml" not in own
    says = section(page, "What this says")
    assert "For icarl the weight chosen on validation images is the recipe's own, 0.01." in says
    assert "not tuned likewise" not in says
    assert "no test" not in says
    assert "flashback, tuned" not in own  # the same runs, in the controlled table already


@pytest.mark.parametrize(
    ("shifts", "words"),
    [
        ((1.0, -1.0, 0.3), "no difference was found; differences from {interval} are not ruled out (3 seeds)"),
        ((3.0, 3.1, 2.9), "they differ by +3.00 (p 0.00037)"),
        ((0.5, 0.5, 0.5), "no test is possible"),
    ],
)
def test_precisions_are_compared_in_pairs(tmp_path: Path, shifts: tuple[float, ...], words: str) -> None:
    seeds = sorted({job.seed for job in jobs_of("precision")})
    shift = dict(zip(seeds, shifts, strict=True))
    write_sweep(tmp_path, "precision", lambda job: shift[job.seed] * (job.config["training"]["precision"] == "bf16"))
    low, high = confidence_interval(shifts) or (0.0, 0.0)
    page = page_of(tmp_path)
    cells = row(section(page, "Does the precision matter?"), "icarl")
    said = words.format(interval=f"{low:+.2f} to {high:+.2f}")
    assert cells[1] == said
    assert cells[2] == "3"
    assert cells[5] == f"{sum(shifts) / 3:+.2f}"
    assert cells[6] == (f"{low:+.2f} to {high:+.2f}" if high - low > 1e-6 else "–")
    says = section(page, "What this says")
    if "ruled out" in said:
        assert (
            f"no difference was found in 4 of 4 comparisons of average accuracy; the widest interval is {low:+.2f}"
            in says
        )
    else:
        assert f"icarl in bf16 and fp32, class-incremental: {said}" in says


def test_precisions_are_compared_at_the_seeds_that_both_have(tmp_path: Path) -> None:
    """A run in one of them alone is no part of its mean."""
    third = max(job.seed for job in jobs_of("precision"))
    write_sweep(
        tmp_path,
        "precision",
        lambda job: -40.0 if job.seed == third else 1.0 * (job.config["training"]["precision"] == "bf16"),
        lambda job: of_host("icarl")(job) and (job.seed != third or job.config["training"]["precision"] == "bf16"),
    )
    cells = row(section(page_of(tmp_path), "Does the precision matter?"), "icarl")
    means = [float(cell.split(" ±")[0]) for cell in cells[3:5]]
    assert cells[2] == "2"
    assert means[0] - means[1] == pytest.approx(float(cells[5]), abs=0.011) == 1.0


def test_representations_are_tabulated_by_layer(tmp_path: Path) -> None:
    folder = tmp_path / "somewhere"
    folder.mkdir(parents=True)
    write_similarity(folder)
    page = page_of(tmp_path)
    assert row(page, "stage4.0.conv1")[1:] == ["0.6100", "0.6600", "+0.0500", "0.7100", "0.7600", "+0.0500"]
    assert "On old images flashback is nearer to joint training in 4 of 4 layers (mean change +0.0525)" in page
    assert "Not run yet: oewc." in page
    assert "- **Representations.** icarl, seed 123: on old images" in section(page, "What this says")


def test_a_similarity_that_names_no_host_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "cka" / "icarl").mkdir(parents=True)
    (tmp_path / "cka" / "icarl" / "cka.json").write_text('{"layers": ["a"], "old": {"host": [0.1]}, "new": {}}')
    page = page_of(tmp_path)
    assert "Not run yet: icarl, oewc." in page
    assert "cka/icarl/cka.json: does not say of which host and seeds it is" in section(page, "Left out")


def test_short_runs_are_set_against_the_host_that_keeps_nothing(tmp_path: Path) -> None:
    write_sweep(tmp_path, "short", lambda job: {"finetune": 0.0, "ewc": -5.0}.get(job.config["host"]["name"], 3.0))
    own = section(page_of(tmp_path), "Short runs of every host")
    assert own.count("not above it: ewc.") == 2
    cells = row(own, "beef-compress")[1:]
    assert cells[2] == cells[5] == "+0.00"
    assert float(cells[0]) == pytest.approx(float(row(own, "finetune")[1]) + 3.0, abs=0.011)
    assert row(own, "finetune")[2:4] == ["–", "–"]


# ---------------------------------------------------------------- what the page says of the settings

SAYS = [
    (controlled, "controlled", "host.net", "resnet32", "", "Network resnet18", "Network resnet32"),
    (controlled, "controlled", "benchmark.order", "1993", "", "identity order", "1993 order"),
    (controlled, "controlled", "host.memory_size", 500, "", "memory 2000 where", "memory 500 where"),
    (controlled, "controlled", "training.epochs", 90, "", "60 epochs a task", "90 epochs a task"),
    (controlled, "controlled", "flashback.epochs", 7, "oewc", "10 (oewc: 5) of them", "10 (oewc: 7) of them"),
    (controlled, "controlled", "flashback.epochs", 10, "oewc", "10 (oewc: 5) of them", "flashback 10 of them"),
    (controlled, "controlled", "training.epochs", 90, "icarl", "60 epochs", "60 (icarl: 90) epochs"),
    (tuned, "tuning", "benchmark.validation", 0.2, "", "a share of 0.1 of the", "a share of 0.2 of the"),
    (tuned, "tuning", "benchmark.tasks", 7, "", "5 tasks, 20 epochs", "7 tasks, 20 epochs"),
    (tuned, "tuning", "flashback.alpha", 0.5, "", "4 weights, 1 short run each", "1 weight, 1 short run each"),
    (precision, "precision", "training.epochs", 30, "", "(4 tasks, 20 epochs,", "(4 tasks, 30 epochs,"),
    (precision, "precision", "training.precision", "tf32", "", "in bf16 and fp32,", "in tf32,"),
    (precision, "controlled", "training.precision", "fp32", "", "Long runs train in bf16", "Long runs train in fp32"),
    (
        short,
        "short",
        "benchmark.tasks",
        2,
        "",
        "Runs of 3 tasks, 6 (pnc: 3) epochs",
        "Runs of 2 tasks, 6 (pnc: 3) epochs",
    ),
    (short, "short", "flashback.epochs", 4, "", "epochs (1 of them phase 1)", "epochs (4 of them phase 1)"),
]


@pytest.mark.parametrize(("write", "sweep", "key", "value", "host", "before", "after"), SAYS)
def test_the_settings_told_are_those_planned(
    write: Callable[[Evidence], list[str]], sweep: str, key: str, value: Any, host: str, before: str, after: str
) -> None:
    def changed(job: Job) -> Job:
        has_key = key in dotted(job.config) and (not host or of_host(host)(job))
        config = copy.deepcopy(job.config)
        if has_key:
            set_dotted(config, key, value)
        return replace(job, config=config)

    evidence = Evidence(Report([], [], {}))
    assert before in write(evidence)[0]
    study = getattr(evidence, sweep)
    setattr(evidence, sweep, replace(study, jobs=[changed(job) for job in study.jobs]))
    assert before not in write(evidence)[0]
    assert after in write(evidence)[0]


@pytest.mark.parametrize(
    ("write", "sweep", "before", "after"),
    [
        (anchors, "anchors", "1 seed,", "2 seeds,"),
        (differences, "differences", "1 seed each", "2 seeds each"),
        (tuned, "tuning", "1 short run each", "2 short runs each"),
        (short, "short", "and 1 seed check", "and 2 seeds check"),
    ],
)
def test_the_seeds_told_are_those_planned(
    write: Callable[[Evidence], list[str]], sweep: str, before: str, after: str
) -> None:
    evidence = Evidence(Report([], [], {}))
    assert before in write(evidence)[0]
    study = getattr(evidence, sweep)
    setattr(evidence, sweep, replace(study, jobs=[*study.jobs, replace(study.jobs[0], seed=7)]))
    assert after in write(evidence)[0]


def test_the_controlled_arms_have_the_same_settings_and_steps_and_references_have_one_arm() -> None:
    study = Evidence(Report([], [], {})).controlled
    assert f"without flashback: {', '.join(study.references)}." in controlled(Evidence(Report([], [], {})))[0]
    assert study.references == ["finetune", "joint", "der++"]
    for host in set(study.hosts) - set(study.references):
        bare, flashback = (study.job(host, arm).config for arm in ARMS)
        assert differing_keys(bare, flashback, ignored=["flashback"]) == []
        assert FlashbackConfig(**flashback["flashback"]).equal_budget(flashback["training"]["epochs"])


def test_representations_are_compared_for_planned_runs() -> None:
    evidence = Evidence(Report([], [], {}))
    command = next(line for line in similarity(evidence) if line.startswith("flashback cka"))
    planned = {f"runs/controlled/{job.name}" for job in jobs_of("evidence")}
    assert set(command.split()[2:5]) <= planned


# ---------------------------------------------------------------- which record belongs where


def test_records_are_known_by_their_settings_wherever_they_lie(tmp_path: Path) -> None:
    """Not by folder, seed, recipe or how they were computed."""
    job = next(job for job in jobs_of("evidence") if of_host("lucir")(job) and job.arm == FLASHBACK)
    config = copy.deepcopy(job.config) | {"seed": 7, "recipe": "mine.yaml", "fast": True, "compile": True}
    config["checkpoint"]["minutes"] = 30.0
    config["training"].pop("first_epochs")  # as if written before there was such a key
    matrices = {setting: made_matrix(10) for setting in SETTINGS}
    write_run(tmp_path / "somewhere", config, matrices)
    evidence = Evidence(read_report([tmp_path]))
    assert [run.seed for run in evidence.controlled.runs] == [7]
    assert evidence.controlled.done == 0  # that seed was not planned
    assert not evidence.others


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("training", "lr", 0.5), ("training", "epochs", 30), ("benchmark", "tasks", 5), ("flashback", "alpha", 0.5)],
)
def test_a_record_with_another_setting_is_listed_apart(tmp_path: Path, section: str, key: str, value: Any) -> None:
    job = next(job for job in jobs_of("evidence") if of_host("lucir")(job) and job.arm == FLASHBACK)
    config = copy.deepcopy(job.config)
    config[section][key] = value
    matrices = {setting: made_matrix(5) for setting in SETTINGS}
    write_run(tmp_path / "apart", config, matrices)
    page = page_of(tmp_path)
    assert row(page.split("## Other records")[1], "apart")[1] == "lucir"
    assert "Not run yet (31 runs)" in page


def test_settings_of_flashback_do_not_matter_to_the_host_alone(tmp_path: Path) -> None:
    job = next(job for job in jobs_of("evidence") if of_host("lucir")(job) and job.arm != FLASHBACK)
    config = copy.deepcopy(job.config)
    config["flashback"]["alpha"] = 0.5
    write_run(tmp_path / "run", config, {setting: made_matrix(10) for setting in SETTINGS})
    (run,) = read_report([tmp_path]).runs
    assert is_of(run, job)


def test_a_second_record_of_the_same_run_and_a_broken_one_are_named(tmp_path: Path) -> None:
    job = next(filter(of_host("joint"), jobs_of("evidence")))
    write_job(tmp_path / "first", job)
    write_job(tmp_path / "second", job)
    again = copy.deepcopy(job.config) | {"fast": True}
    write_run(tmp_path / "third", again, {setting: made_matrix(10) for setting in SETTINGS}, precision="bf16")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "config.yaml").write_text("seed: 0\n")
    page = page_of(tmp_path)
    left_out = section(page, "Left out")
    assert "repeats first/" in left_out
    assert "torn: not finished" in left_out
    assert "third: computed in bf16, fast; the runs it belongs to were computed in bf16, deterministically" in left_out
    assert "## Other records" not in page


def test_arms_are_paired_where_they_were_computed_alike(tmp_path: Path) -> None:
    """The host in both precisions, flashback in one of them, and then once more with compiled code."""
    own = [job for job in jobs_of("evidence") if of_host("lucir")(job) and job.seed == 123]
    (host,) = (job for job in own if job.arm != FLASHBACK)
    (flashback,) = (job for job in own if job.arm == FLASHBACK)
    write_job(tmp_path / "a", host, 0.0, precision="fp32")
    write_job(tmp_path / "b", replace(host, config=host.config | {"compile": False}), 5.0, precision="bf16")
    write_job(tmp_path / "c", flashback, 6.0, precision="bf16")
    write_job(tmp_path / "d", replace(flashback, config=flashback.config | {"compile": True}), 9.0, precision="bf16")
    page = page_of(tmp_path)
    assert row(page, "lucir", "AA", "Table 1")[-1] == "+1.00 (one seed)"
    left_out = section(page, "Left out")
    assert f"a/{host.name}: computed in fp32, deterministically; the runs it belongs to were" in left_out
    assert f"d/{flashback.name}: repeats c/{flashback.name}: the same settings and seed" in left_out
    assert "## Other records" not in page


def test_arms_computed_otherwise_are_not_paired(tmp_path: Path) -> None:
    for job in jobs_of("evidence"):
        if of_host("lucir")(job) and job.seed == 123:
            write_job(tmp_path, job, precision="fp32" if job.arm == FLASHBACK else "bf16")
    page = page_of(tmp_path)
    assert row(page, "lucir", "AA", "Table 1")[-1] == "–"
    assert "computed in fp32, deterministically; the runs it belongs to were computed in bf16" in page


OTHER_DATA: list[tuple[dict[str, Any], str]] = [
    ({"data_checksum": "other"}, "data_checksum"),
    ({"class_order": [1, 0, *range(2, 20)]}, "class_order"),
    ({"data_checksum": "other", "class_order": [1, 0]}, "class_order and data_checksum"),
]


@pytest.mark.parametrize(("other", "words"), OTHER_DATA)
@pytest.mark.parametrize("seed", [None, 246])
def test_runs_on_other_data_are_left_out_and_named(
    tmp_path: Path, other: dict[str, Any], words: str, seed: int | None
) -> None:
    """One arm of a host, at all of its seeds or at one: what the other hosts of the page learned from decides."""
    write_sweep(tmp_path, "evidence", gain(1.0), of_host("oewc"))
    names = []
    for job in filter(of_host("lucir"), jobs_of("evidence")):
        odd = job.arm == FLASHBACK and seed in (None, job.seed)
        names += [job.name] if odd else []
        write_job(tmp_path, job, 9.0 if odd else 0.0, **(other if odd else {}))
    page = page_of(tmp_path)
    told = [line for line in section(page, "Left out").splitlines() if line]
    assert len(names) == len(told) == (3 if seed is None else 1)
    for name, line in zip(sorted(names), sorted(told), strict=True):
        assert line.startswith(
            f"- {name}: not the {words.replace('_', chr(92) + '_')} that most runs on split-cifar100 ha"
        )
    assert row(page, "lucir", "AA", "Table 1")[-1] == ("–" if seed is None else "+0.00")
    assert row(page, "oewc", "AA", "Table 1")[-1] == "+1.00"
    assert "## Other records" not in page


def test_a_tuned_run_on_other_data_is_no_third_arm(tmp_path: Path) -> None:
    write_sweep(tmp_path, "tuning", lambda job: {0.1: 3.0}.get(job.config["flashback"]["alpha"], 0.0), of_host("icarl"))
    write_sweep(tmp_path, "evidence", gain(1.0), of_host("icarl"))
    job = next(job for job in jobs_of("evidence") if of_host("icarl")(job) and job.arm == FLASHBACK)
    config = job.config | {"flashback": job.config["flashback"] | {"alpha": 0.1}}
    write_job(tmp_path / "tuned", replace(job, config=config), 4.0, data_checksum="other")
    evidence = Evidence(read_report([tmp_path]))
    assert evidence.tuned == {}
    assert list(evidence.left_out) == [f"tuned/{job.name}"]


def test_data_decide_among_runs_on_the_same_benchmark_alone(tmp_path: Path) -> None:
    write_sweep(tmp_path, "evidence", gain(1.0), of_host("oewc"))
    for k, benchmark in enumerate(("split-fashion-mini", "split-cifar10")):
        config, matrices = made_config("icarl", benchmark), {s: made_matrix(3) for s in SETTINGS}
        write_run(tmp_path / benchmark, config, matrices, data_checksum=str(k), class_order=[k])
    page = page_of(tmp_path)
    assert "## Left out" not in page
    assert "split-fashion-mini" in page.split("## Other records")[1]


def test_seeds_without_a_ratio_are_not_counted(tmp_path: Path) -> None:
    for job in filter(of_host("icarl"), jobs_of("evidence")):
        gains = job.arm != FLASHBACK and job.seed == 123
        write_job(tmp_path, job, *((-20.0, -3.0) if gains else (0.0, 5.0)))
    page = page_of(tmp_path)
    own = section(page, "Does flashback help at equal cost?")
    assert row(own, "icarl", "AA", "Table 1")[3] == "3"
    assert row(own, "icarl", "SPR", "Table 10")[3] == "2 and 3"
    assert "- icarl: SPR, class-incremental, has no value at some seeds (host: seed 123)" in own.split("### Remarks")[1]


def test_a_tuned_run_is_paired_with_hosts_computed_alike(tmp_path: Path) -> None:
    write_sweep(tmp_path, "tuning", lambda job: {0.1: 3.0}.get(job.config["flashback"]["alpha"], 0.0), of_host("icarl"))
    write_sweep(tmp_path, "evidence", gain(1.0), of_host("icarl"))
    for job in jobs_of("evidence"):
        if of_host("icarl")(job) and job.arm == FLASHBACK:
            config = job.config | {"flashback": job.config["flashback"] | {"alpha": 0.1}}
            precision = "fp32" if job.seed == 123 else "bf16"
            write_job(tmp_path / "tuned", replace(job, config=config), 4.0, precision=precision)
    page = page_of(tmp_path)
    own = section(page, "With the weight tuned")
    assert row(own, "icarl", "AA")[4] == "3 and 2"
    assert "- icarl: Seeds that only one arm has (host: seed 123) count for its mean" in own
    assert section(page, "Left out").count("computed in fp32") == 1


def test_runs_of_another_kind_stand_apart(tmp_path: Path) -> None:
    write_run(tmp_path / "mini", made_config("icarl", "split-fashion-mini"), {s: made_matrix(3) for s in SETTINGS})
    assert row(page_of(tmp_path).split("## Other records")[1], "mini")[2] == "split-fashion-mini"


def test_changes_are_read_from_settings() -> None:
    base, rate, longer, flashback, published, everything, restart = (
        Change.of(job.config) for job in jobs_of("icarl-differences")
    )
    assert rate.since(base) == ["the falling learning rate"]
    assert longer.since(base) == ["10 epochs more a task"]
    assert flashback.since(base) == ["flashback"]
    assert published.since(base) == ["flashback", "the falling learning rate"]
    assert len(everything.since(base)) == 3
    assert published.since(restart) == ["flashback", "10 epochs more a task"]


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (None, ".2f", "–"),
        (-1e-14, "+.2f", "+0.00"),
        (-0.001, ".2f", "0.00"),
        (94.665, ".2f", format(94.665, ".2f")),
        (94.665 - 3e-14, ".2f", format(94.665, ".2f")),  # the same number, summed in another order
        (20000, ",.0f", "20,000"),
        (-1.5, "+.2f", "-1.50"),
    ],
)
def test_numbers_are_the_same_text_everywhere(value: float | None, form: str, text: str) -> None:
    assert number(value, form) == text


# ---------------------------------------------------------------- the command


def test_the_command_writes_the_page_and_all_leaves_it_out(tmp_path: Path) -> None:
    results, out = tmp_path / "results", tmp_path / "docs" / "evidence.md"
    results.mkdir()
    with pytest.raises(SystemExit) as end:
        main(["report", str(results), "--format", "evidence", "--out", str(out)])
    assert end.value.code == 0
    assert out.read_text(encoding="utf-8") == page_of(results)
    write_sweep(results, "short")
    with pytest.raises(SystemExit):
        main(["report", str(results), "--format", "all", "--out", str(tmp_path / "r.html")])
    assert (tmp_path / "r.md").read_text(encoding="utf-8").startswith("# Does flashback help?")
