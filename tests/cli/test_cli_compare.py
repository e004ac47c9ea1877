"""The comparison: both arms, every seed, the numbers, and what happens when a run fails."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from scipy import stats

from flashback.cli.tables import show_differences
from flashback.metrics import PairedTest, verdict
from flashback.metrics.accuracy import METRICS, OVER_IMAGES
from flashback.records import read_record
from flashback.records.terms import ARMS
from flashback.reports.tables import row_cells
from flashback.reports.words import TITLES
from flashback.results import Comparison, Method, Row, Sample
from flashback.studies import jobs
from flashback.studies.comparison import NothingToCompareError, compare
from flashback.training import run as run_config
from flashback.training.trainer import Trainer

Command = Callable[..., tuple[int, str, str]]
SETTINGS = {"benchmark.sizes": [2, 2, 2], "training.epochs": 2, "training.batch_size": 8, "flashback.epochs": 1}
QUICK: dict[str, Any] = {"device": "cpu", "settings": {**SETTINGS, "training.lr": 0.3}}


def test_numbers_come_from_the_run_folders(flashback: Command, tiny: list[str]) -> None:
    options = ("--seed-list", "7,1,4", "--out", "out", *tiny, "--set", "training.lr=3", "--set", "host.memory_size=12")
    code, out, err = flashback("compare", "icarl", *options)
    assert (code, err) == (0, "")
    document = json.loads(Path("out/comparison.json").read_text())
    assert document["seeds"] == [7, 1, 4]
    records = {(arm, seed): read_record(Path(f"out/{arm}/seed-{seed}")) for arm in ARMS for seed in (7, 1, 4)}
    assert len(document["rows"]) == 2 * len(METRICS)
    assert sum(row["test"]["p"] is not None for row in document["rows"]) > 8
    for row in document["rows"]:
        check_row(row, {key: record.results[row["setting"]][row["metric"]] for key, record in records.items()}, out)
    for arm in ARMS:
        runs = [records[arm, seed].run for seed in (7, 1, 4)]
        assert document["cost"][arm]["steps"] == runs[0]["steps"] == 2 * (3 + 4 + 4)
        assert document["cost"][arm]["images"] == runs[0]["images"] == 2 * (20 + 32 + 32)  # new ones and exemplars
        assert math.isclose(document["cost"][arm]["seconds"], statistics.mean(run["seconds"] for run in runs))
        assert document["cost"][arm]["bytes"] == runs[0]["knowledge_bytes"]
    assert set(document["cost"]["flashback"]["bytes"]) == {"stable", "plastic"}
    assert (document["equal_budget"], document["budget"]) == (True, "equal budget")
    assert "cost of one run: equal budget" in out
    assert document["sentence"] in out.replace("\n", " ")


def test_tasks_of_unequal_size_are_averaged_over_images_too(flashback: Command, tiny: list[str]) -> None:
    sizes = ("--set", "benchmark.sizes=[4,2]")
    code, out, _ = flashback("compare", "lwf-mc", "--seeds", "1", "--out", "out", *tiny, *sizes)
    assert code == 0
    document = json.loads(Path("out/comparison.json").read_text())
    record = read_record(Path("out/host/seed-0"))
    for metric in OVER_IMAGES:
        assert TITLES[metric][0] in out
        (row,) = (r for r in document["rows"] if (r["metric"], r["setting"]) == (metric, "class_incremental"))
        assert row["mean"]["host"] == record.results["class_incremental"][metric]


def check_row(row: dict[str, Any], values: dict[tuple[str, int], float | None], out: str) -> None:
    by_arm = {arm: [values[arm, seed] for seed in (7, 1, 4)] for arm in ARMS}
    partly = any(0 < row_values.count(None) < 3 for row_values in by_arm.values())
    for arm in ARMS:
        assert list(row["values"][arm].values()) == by_arm[arm]
        known = [value for value in by_arm[arm] if value is not None]  # no SPR where forgetting is negative
        assert len(known) == 3 or row["metric"] in ("forward_transfer", "stability_plasticity_ratio")
        if row["metric"] == "forward_transfer":  # a nearest-mean classifier has no column for classes to come
            assert row["mean"][arm] is row["test"]["difference"] is None
        if partly:  # a mean over the seeds that have one would be biased
            assert row["mean"][arm] is row["deviation"][arm] is row["test"]["difference"] is None
        elif len(known) > 1:
            assert math.isclose(row["mean"][arm], statistics.mean(known), abs_tol=1e-9)
            assert math.isclose(row["deviation"][arm], statistics.stdev(known), abs_tol=1e-9)
            assert f"{row['mean'][arm]:.2f} ± {row['deviation'][arm]:.2f}" in out
        if len(known) in (1, 2):
            assert "is undefined for some seeds" in " ".join(out.split())
    pairs = [pair for pair in zip(*by_arm.values(), strict=True) if None not in pair]
    assert row["test"]["pairs"] == (0 if partly else len(pairs))
    if row["test"]["p"] is not None:
        assert math.isclose(row["test"]["difference"], statistics.mean(b - a for a, b in pairs), abs_tol=1e-9)
        assert math.isclose(
            row["test"]["p"], stats.ttest_rel(*reversed(list(zip(*pairs, strict=True)))).pvalue, rel_tol=1e-6
        )


@pytest.mark.slow
def test_the_numbers_of_flashback_stand_beside_the_answer(flashback: Command, tiny: list[str]) -> None:
    options = ("--set", "flashback.alpha=0.25", "--set", "flashback.epochs=1")
    _, out, _ = flashback("compare", "lwf-mc", "--seeds", 1, "--out", "out", *tiny, *options)
    assert "Flashback: alpha_p 0.25, E1 1 of 2 epochs a task." in out
    assert json.loads(Path("out/comparison.json").read_text())["flashback"] in out


@pytest.mark.usefixtures("tiny")
def test_both_arms_have_the_same_settings() -> None:
    compare("lwf-mc", "tiny.npz", seeds=[0], out="out", **QUICK)
    host, flashback = (read_record(Path(f"out/{arm}/seed-0")).config for arm in ARMS)
    assert host["flashback"] | {"enabled": True} == flashback["flashback"]
    assert host | {"flashback": None} == flashback | {"flashback": None}


def test_finished_runs_are_reused(flashback: Command, tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("compare", "lwf-mc", "--seeds", 2, "--out", "out", *tiny)
    first = flashback(*command)[1]
    (Path("out/host/seed-1/results.json")).unlink()
    trained = []
    original = Trainer.run
    monkeypatch.setattr(Trainer, "run", lambda self: trained.append(self.seed) or original(self))  # type: ignore[func-returns-value]
    code, second, err = flashback(*command)
    assert (code, err, trained) == (0, "", [1])
    assert "Reused: 3 finished runs." in second
    assert table(first) == table(second)
    flashback("compare", "lwf-mc", "--seeds", 3, "--out", "out", *tiny)
    assert trained == [1, 2, 2]


def table(out: str) -> list[str]:
    """The measured part of the output, without seconds."""
    return out.partition("cost of one run")[0].splitlines()


@pytest.mark.slow
def test_a_run_of_another_configuration_is_in_the_way(
    flashback: Command, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("compare", "lwf-mc", "--seeds", 1, "--out", "out", *tiny)
    assert flashback(*command)[0] == 0
    monkeypatch.setattr(Trainer, "run", lambda self: pytest.fail("trained"))
    code, _, err = flashback(*command, "--set", "training.lr=0.5")
    assert code == 2
    assert "out/host/seed-0 holds a finished run of another configuration (differs in training.lr)" in err
    record = json.loads(Path("out/host/seed-0/run.json").read_text())
    Path("out/host/seed-0/run.json").write_text(json.dumps(record | {"data_checksum": "of other data"}))
    code, _, err = flashback(*command)
    assert code == 2
    assert "other data" in err


@pytest.mark.parametrize("bug", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_failed_run_stops_and_spoils_no_other(
    flashback: Command, tiny: list[str], monkeypatch: pytest.MonkeyPatch, bug: bool
) -> None:
    def run(config: Any, **options: Any) -> Any:
        if config.seed == 1 and config.flashback.enabled:
            raise RuntimeError("a bug") if bug else jobs.FlashbackError("the loss is not finite")
        return run_config(config, **options)

    monkeypatch.setattr(jobs, "run", run)
    code, out, err = flashback("compare", "lwf-mc", "--seeds", 3, "--out", "out", *tiny)
    assert code == 1
    assert "Seeds of only one arm (host: seed 1) count for its mean, not for the difference and its test." in out
    reason = "RuntimeError: a bug (see out/flashback/seed-1/failure.txt)" if bug else "the loss is not finite"
    assert err == f"failed: flashback, seed 1: {reason}\n"
    assert Path("out/flashback/seed-1/failure.txt").exists() == bug
    document = json.loads(Path("out/comparison.json").read_text())
    assert list(document["failures"]) == ["flashback, seed 1"]
    row = document["rows"][0]
    assert set(row["values"]["host"]) == {"0", "1", "2"}
    assert set(row["values"]["flashback"]) == {"0", "2"}
    assert row["test"]["pairs"] == 2
    monkeypatch.setattr(jobs, "run", run_config)
    code, out, _ = flashback("compare", "lwf-mc", "--seeds", 3, "--out", "out", *tiny)  # only the failed one is made up
    assert code == 0
    assert "only one arm has" not in out


def test_all_runs_failed(flashback: Command, tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "run", lambda config, **options: 1 / 0)
    code, out, err = flashback("compare", "lwf-mc", "--seeds", 1, "--out", "out", *tiny)
    assert code == 1
    assert "failed: host, seed 0 and 1 more: ZeroDivisionError" in err
    assert "There is no pair to compare." in out


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_in_python_runs_that_all_failed_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "run", lambda config, **options: 1 / 0)
    with pytest.raises(
        NothingToCompareError, match=r"no pair to compare, .*\(host, seed 0 and 3 more: ZeroDivisionError"
    ):
        compare("lwf-mc", "tiny.npz", seeds=2, out="out", **QUICK)
    failing = {0}
    monkeypatch.setattr(
        jobs, "run", lambda config, **options: 1 / 0 if config.seed in failing else run_config(config, **options)
    )
    answer = compare("lwf-mc", "tiny.npz", seeds=2, out="out", **QUICK)  # one pair stands
    assert "Failed: host, seed 0, flashback, seed 0 (see failures)." in repr(answer)


@pytest.mark.parametrize("wrong", ["3", 2.5, None, True])
def test_seeds_are_a_list_or_a_number(wrong: Any) -> None:
    with pytest.raises(jobs.FlashbackError, match=r"^seeds are a list such as \[0, 1, 2\], or how many, not"):
        compare("lwf-mc", seeds=wrong, out="out")


def test_seeds_by_name_are_told_of_the_list(flashback: Command) -> None:
    code, _, err = flashback("compare", "icarl", "--seeds", "1,2,3")
    assert code == 2
    assert "--seeds says how many seeds, --seed-list names them" in err


@pytest.mark.parametrize(
    ("second", "label"), [(1, "equal budget"), pytest.param(2, "unequal budget", marks=pytest.mark.slow)]
)
def test_the_budget_is_measured(flashback: Command, tiny: list[str], second: int, label: str) -> None:
    options = (*tiny, "--set", f"flashback.second_epochs={second}")
    _, out, _ = flashback("compare", "lwf-mc", "--seeds", 1, "--out", "out", *options)
    assert f"cost of one run: {label}" in out
    assert f"class-incremental, {label}:" in out
    cost = json.loads(Path("out/comparison.json").read_text())["cost"]
    assert cost["flashback"]["steps"] - cost["host"]["steps"] == (second - 1) * 2 * 3  # later tasks, batches


@pytest.mark.slow
def test_arms_or_surroundings_that_differ_are_named(flashback: Command, tiny: list[str]) -> None:
    command = ("compare", "lwf-mc", "--seeds", 1, "--out", "out", *tiny)
    assert "The runs differ in" not in flashback(*command)[1]
    path = Path("out/host/seed-0/run.json")
    record = json.loads(path.read_text())
    record["must_match"]["torch"] = "1.0"
    path.write_text(json.dumps(record))
    assert "The runs differ in torch." in flashback(*command)[1]


@pytest.mark.slow
def test_a_setting_that_came_later_is_not_flagged(flashback: Command, tiny: list[str]) -> None:
    command = ("compare", "lwf-mc", "--seeds", 1, "--out", "out", *tiny)
    flashback(*command)
    path = Path("out/host/seed-0/config.yaml")
    config = yaml.safe_load(path.read_text())
    del config["host"]["columns"], config["training"]["first_schedule"]
    path.write_text(yaml.safe_dump(config))
    code, out, err = flashback(*command)
    assert (code, err) == (0, "")
    assert "Reused: 2 finished runs." in out
    assert "settings differ" not in out
    assert json.loads(Path("out/comparison.json").read_text())["differing_settings"] == []


def test_numbers_follow_from_the_matrices(flashback: Command, tiny: list[str]) -> None:
    command = ("compare", "lwf-mc", "--seeds", 1, "--out", "out", *tiny)
    first = flashback(*command)[1]
    path = Path("out/host/seed-0/results.json")
    results = json.loads(path.read_text())
    results["class_incremental"]["average_accuracy"] = 99.0
    path.write_text(json.dumps(results))
    code, _, err = flashback(*command)
    assert (code, "results.json was changed, or belongs to another run" in err) == (2, True)
    path = path.with_name("run.json")  # a record of an older version has no checksum of its results
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "results_checksum"}))
    assert table(flashback(*command)[1]) == table(first)


def made_comparison(rows: list[Row]) -> Comparison:
    side = Method({"host": {"name": "icarl"}, "benchmark": {"name": "split-cifar100"}})
    comparison = Comparison(side, side)
    comparison.__dict__["rows"] = rows  # in place of what would be computed
    return comparison


@pytest.mark.parametrize("width", [80, 100, 140])
def test_a_terminal_shows_every_column_of_a_comparison(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    test = PairedTest(-10.5, -2.1, 0.000012, 3, -123.45, 110.67)
    rows = [
        Row(setting, metric, Sample({}, -26.5, 12.34), Sample({}, -26.5, 12.34), test)
        for setting in ("class_incremental", "task_incremental")
        for metric in METRICS
    ]
    comparison = made_comparison(rows)
    show_differences(comparison)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    heads = next(line for line in lines if "95 % interval" in line).split()
    assert heads == ["host", "flashback", "difference", "95", "%", "interval", "p"]
    words = [line.split() for line in lines if "to +110.67" in line]
    values = "-26.50 ± 12.34 -26.50 ± 12.34 -10.50 -123.45 to +110.67 < 0.0001"
    names = [f"{TITLES[metric][0]}{' ↑' if METRICS[metric] else ' ↓'}" for metric in METRICS]
    assert [" ".join(line) for line in words] == [f"{name} {values}" for name in names * 2]
    assert all(TITLES[metric][1] in " ".join(" ".join(lines).split()) for metric in METRICS)


@pytest.mark.parametrize(
    ("pairs", "p", "numbers"),
    [(1, None, "by +0.00 in"), (3, None, "exactly +0.00 in"), (3, 0.9, "+0.00, 95 % interval +0.00 to +0.00")],
)
def test_zero_has_no_minus_in_the_sentence(pairs: int, p: float | None, numbers: str) -> None:
    sentence = verdict(PairedTest(-0.001, -0.1, p, pairs, -0.0049, -0.0))
    assert numbers in sentence
    assert "-0.00" not in sentence


def test_zero_has_no_sign_in_a_terminal() -> None:
    test = PairedTest(-1e-12, -0.1, 1e-9, 3, -0.001, 0.002)
    row = Row("class_incremental", "forgetting", Sample({}, -1e-12), Sample({}), test)
    assert row_cells(row) == ["0.00", "–", "+0.00", "+0.00 to +0.00", "< 0.0001"]


# ---------------------------------------------------------------- several at a time

DIES = """
import os
from flashback.hosts import HOSTS
from flashback.hosts.lwf_mc import LwFMC

@HOSTS.register("mortal")
class Mortal(LwFMC):
    def losses(self, step):
        if self.config.flashback.enabled and self.task.index == 1:
            os._exit(9)
        return super().losses(step)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_processes_give_the_same_results() -> None:
    seen: dict[str, list[str]] = {}

    def watch(name: str) -> Callable[[Any], None]:
        return lambda event: seen.setdefault(name, []).append(event["event"])

    compare("lwf-mc", "tiny.npz", seeds=[3], out="alone", watch=watch, **QUICK)
    alone = dict(seen)
    seen.clear()
    compare("lwf-mc", "tiny.npz", seeds=[3], out="together", jobs=2, watch=watch, **QUICK)
    assert seen == alone
    assert set(seen) == {"host, seed 3", "flashback, seed 3"}
    for arm in ARMS:
        first, second = (read_record(Path(folder) / arm / "seed-3") for folder in ("alone", "together"))
        assert (first.config, first.results) == (second.config, second.results)


@pytest.mark.slow
def test_a_process_that_dies_is_named(flashback: Command, tiny: list[str]) -> None:
    Path("mortal.py").write_text(DIES)
    options = ("--host-file", "mortal.py", "--seeds", 1, "--jobs", 2, "--out", "out", *tiny)
    code, out, err = flashback("compare", "mortal", *options)
    assert code == 1
    assert err.startswith("failed: flashback, seed 0: its process ended without an error message")
    assert read_record(Path("out/host/seed-0")).run["steps"] == 18
    assert "There is no pair to compare." in out
