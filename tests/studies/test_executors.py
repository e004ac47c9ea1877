"""Where runs train: shards, names of executors, and following runs from outside."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flashback.cli.studies import Throughput, clock
from flashback.engines import following
from flashback.engines.following import Follower, survey_folder
from flashback.errors import FlashbackError
from flashback.records import RunFolder, holder_of
from flashback.studies.comparison import compare
from flashback.studies.executors import find_executor, take_shard
from flashback.studies.jobs import Job, Local, Problems, RunContext
from flashback.studies.preview import estimate_cost
from flashback.studies.sweeps import Outcome, parse_sweep, plan, run_sweep

QUICK: dict[str, Any] = {"training.epochs": 1, "training.batch_size": 100, "benchmark.tasks": 2}
SWEEP = parse_sweep(f"{{hosts: [finetune], arms: [host], seeds: [0, 1, 2], settings: {QUICK}}}", "made")


def test_shards_divide_the_work() -> None:
    shards = [take_shard(range(11), f"{k}/4") for k in range(1, 5)]
    assert sorted(item for shard in shards for item in shard) == list(range(11))
    assert take_shard([1, 2], None) == [1, 2]
    assert list(take_shard([1, 2], "3/3")) == []


@pytest.mark.parametrize("shard", ["0/2", "3/2", "2", "1/0", "a/b", "1/2/3", "-1/2"])
def test_a_shard_that_makes_no_sense_is_refused(shard: str) -> None:
    with pytest.raises(FlashbackError, match="such as 2/8"):
        take_shard([], shard)


def test_a_sweep_and_a_comparison_make_their_shard_alone(tmp_path: Path) -> None:
    for shard, expected in (("2/2", [1]), ("1/2", [0, 1, 2])):
        run_sweep(SWEEP, tmp_path, device="cpu", shard=shard)
        assert sorted(int(path.parent.name[-1]) for path in tmp_path.rglob("results.json")) == expected
    short = {**QUICK, "training.epochs": 2, "flashback.epochs": 1, "training.batch_size": 500}
    first, whole = (
        compare("lwf-mc", seeds=[3, 4], out=tmp_path / "c", settings=short, device="cpu", shard=shard)
        for shard in ("2/2", "1/2")
    )
    assert (first.planned_seeds, whole.planned_seeds, whole.further_seeds) == ([4], [3], [4])
    with pytest.raises(FlashbackError, match="use at most 2 shards"):
        compare("lwf-mc", seeds=2, out=tmp_path / "c", settings=short, device="cpu", shard="3/3")


def test_a_comparison_counts_what_another_shard_finishes_meanwhile(tmp_path: Path) -> None:
    short = {**QUICK, "training.epochs": 2, "flashback.epochs": 1, "training.batch_size": 500}

    class Beside(Local):
        def __call__(self, *arguments: Any) -> Problems:
            compare("lwf-mc", seeds=[3, 4], out=tmp_path, settings=short, device="cpu", shard="2/2")
            return super().__call__(*arguments)

    comparison = compare("lwf-mc", seeds=[3, 4], out=tmp_path, settings=short, device="cpu", shard="1/2", on=Beside())
    assert (comparison.planned_seeds, comparison.further_seeds) == ([3], [4])
    assert sorted(json.loads((tmp_path / "comparison.json").read_text())["seeds"]) == [3, 4]


def test_an_unknown_place_is_refused() -> None:
    with pytest.raises(FlashbackError, match="not 'moon'"):
        find_executor("moon", None)


@pytest.mark.parametrize("amount", [-1, True, "two", math.nan, math.inf, None, [1]])
def test_an_amount_for_a_run_that_makes_no_sense_is_refused(amount: object) -> None:
    for name in ("cpus", "gpus", "memory"):
        with pytest.raises(FlashbackError, match=rf"^--per-run {name} must be a number, 0 or more, not "):
            find_executor("ray", None, {name: amount})


def test_a_study_trains_where_the_executor_says(tmp_path: Path) -> None:
    """Comparisons and sweeps know nothing but the interface."""

    class Recording:
        def __init__(self) -> None:
            self.names: list[str] = []

        def max_parallel(self, jobs: Any) -> int:
            return 1

        def device(self, device: Any) -> str:
            return "cpu"

        def __call__(self, jobs: list[Job], watch: Any, out: Path) -> Problems:
            self.names += [job.name for job in jobs]
            return {job.name: "not today" for job in jobs}

    executor = Recording()
    outcome = run_sweep(SWEEP, tmp_path, on=executor)
    assert list(outcome.failures.values()) == ["not today"] * 3
    with pytest.raises(FlashbackError, match="not today"):
        compare("lwf-mc", seeds=1, out=tmp_path / "c", on=executor)
    assert len(executor.names) == 5
    with pytest.raises(FlashbackError, match="its own number of jobs"):
        find_executor(executor, 2)


def test_a_run_waits_until_an_executor_has_placed_it(tmp_path: Path) -> None:
    seen: list[dict[str, int]] = []

    class Elsewhere(Local):
        def __call__(self, jobs: Any, watch: Any, out: Path) -> Problems:
            observers = [watch(job.name) for job in jobs]
            for observer, event in zip(observers, ("queued", "placed", "end"), strict=True):
                observer({"event": event, "node": "one", "problem": None})
            return dict.fromkeys(job.name for job in jobs)

    def watch(outcome: Outcome, name: str) -> Any:
        return lambda event: seen.append(dict(Counter(outcome.states.values())))

    run_sweep(SWEEP, tmp_path, on=Elsewhere(), device="cpu", watch=watch)
    assert seen == [{"waiting": 1, "running": 2}, {"waiting": 1, "running": 2}, {"waiting": 1, "running": 1, "done": 1}]


# ---------------------------------------------------------------- from outside


def test_a_follower_reports_whole_lines_once(tmp_path: Path) -> None:
    seen: list[Any] = []
    log = tmp_path / "log.jsonl"
    follower = Follower(tmp_path, seen.append)
    follower.report()
    log.write_text('{"event": 1}\n{"event": 2}\n{"ev')
    follower.report()
    follower.report()
    assert [event["event"] for event in seen] == [1, 2]
    with log.open("a") as file:
        file.write('ent": 3}\nnonsense\n')
    follower.report()
    log.write_text('{"event": 1}\n')  # cut by a run that resumed
    follower.report()
    with log.open("a") as file:
        file.write('{"event": 4}\n')
    follower.report()
    assert [event["event"] for event in seen] == [1, 2, 3, 4]
    Follower(tmp_path, seen.append).report()
    assert len(seen) == 4
    Follower(tmp_path, seen.append, all_events=True).report()
    assert len(seen) == 6


def test_the_runs_of_a_folder_and_the_machine_that_has_them(tmp_path: Path) -> None:
    run_sweep(SWEEP, tmp_path, device="cpu", shard="1/3")
    done, begun, waiting = (job.folder for job in plan(SWEEP, tmp_path, RunContext(None, "cpu", None)))
    job = plan(SWEEP, tmp_path, RunContext(None, "cpu", None))[1]
    names = [str(path.relative_to(tmp_path)) for path in (done, begun, waiting)]
    assert survey_folder(tmp_path) == dict(zip(names, ["done", "waiting", "waiting"], strict=True))
    with RunFolder.open(begun, job.config).lock():
        assert survey_folder(tmp_path)[names[1]] == following.RUNNING
        assert holder_of(begun)
    assert survey_folder(tmp_path)[names[1]] == following.WAITING


def test_the_cost_of_what_waits_follows_from_what_is_done(tmp_path: Path) -> None:
    jobs = plan(SWEEP, tmp_path, RunContext(None, "cpu", None))
    (unknown,) = estimate_cost(jobs, jobs).values()
    assert (unknown.runs, unknown.seconds) == (3, None)
    run_sweep(SWEEP, tmp_path, device="cpu", shard="1/3")
    record = jobs[0].folder / "run.json"
    run = json.loads(record.read_text()) | {"seconds": 100.0}
    record.write_text(json.dumps(run))
    estimates = estimate_cost(jobs, jobs[1:])
    estimate = estimates["finetune", "split-fashion-mini"]
    assert (estimate.runs, estimate.steps, estimate.images) == (2, 2 * run["steps"], 2 * run["images"])
    assert estimate.seconds == pytest.approx(200.0)


def test_the_throughput_tells_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("flashback.cli.studies.time.monotonic", lambda: now)
    throughput = Throughput()
    assert throughput.summary({"a": "done", "b": "waiting", "c": "running"}) == "1 done, 1 running, 1 waiting"
    now = 1800.0
    summary = throughput.summary({"a": "done", "b": "done", "c": "running", "d": "waiting"})
    assert summary == "2 done, 1 running, 1 waiting; 2.0 an hour, 1 h 00 min left"
    assert "; 3,600 an hour" in throughput.summary(dict.fromkeys(map(str, range(1801)), "done") | {"d": "waiting"})
    assert clock(75) == "1 min 15 s"
