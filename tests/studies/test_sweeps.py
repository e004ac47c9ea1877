"""Sweeps: planned once, run in parallel, failures named, and only what is missing run again."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from flashback.errors import FlashbackError
from flashback.recipes import config_from_dict
from flashback.records import RunFolder, dotted
from flashback.reports.references import Reference, read_references
from flashback.studies import jobs
from flashback.studies.comparison import compare
from flashback.studies.jobs import RunContext, is_finished
from flashback.studies.sweeps import Outcome, label, parse_sweep, plan, read_sweep, run_sweep, shipped_sweeps
from flashback.training import Interrupted, run
from flashback.training.trainer import Event, Observer

HERE = RunContext(None, "cpu", None)
PUBLISHED = read_references(Path(__file__).parents[2] / "reproduction" / "paper-values.yaml").values
QUICK = """
settings: {training.epochs: 1, training.batch_size: 100, benchmark.tasks: 2, flashback.second_epochs: 1}
"""


def published_for(config: dict[str, Any]) -> list[Reference]:
    """The values that are about runs with these settings."""
    settings, names = dotted(config), (config["host"]["name"], config["benchmark"]["name"])
    about = [one for one in PUBLISHED if (one.host, one.benchmark) == names]
    return [one for one in about if all(settings.get(key) == value for key, value in one.when.items())]


def test_plan_runs_every_combination_once_and_the_host_once_for_all_flashback_settings(tmp_path: Path) -> None:
    sweep = parse_sweep(
        """
        hosts: [icarl, lwf-mc]
        seeds: [1, 2]
        grid: {flashback.alpha: [0.1, 0.2, 0.3], training.lr: [0.1, 0.2]}
        """,
        "made",
    )
    jobs = plan(sweep, tmp_path, HERE)
    hosts = [job for job in jobs if job.arm == "host"]
    assert len(hosts) == 2 * 2 * 2  # hosts, seeds, rates
    assert len(jobs) - len(hosts) == 2 * 2 * 6
    assert len({job.folder for job in jobs}) == len(jobs)
    assert {job.config["flashback"]["alpha"] for job in jobs if job.arm == "flashback"} == {0.1, 0.2, 0.3}


def test_parts_share_what_stands_beside_them(tmp_path: Path) -> None:
    sweep = parse_sweep(
        """
        seeds: [5]
        arms: [host]
        settings: {training.lr: 0.5, training.epochs: 7}
        parts:
          - hosts: [icarl]
          - {hosts: [finetune], settings: {training.lr: 0.25}}
        """,
        "made",
    )
    first, second = plan(sweep, tmp_path, HERE)
    assert (first.config["host"]["name"], first.config["training"]["lr"]) == ("icarl", 0.5)
    assert (second.config["host"]["name"], second.config["training"]["lr"]) == ("finetune", 0.25)
    assert first.config["training"]["epochs"] == second.config["training"]["epochs"] == 7


def test_every_combination_has_a_folder_that_a_file_system_takes(tmp_path: Path) -> None:
    orders = [[*range(100)], [*range(99, -1, -1)]]
    text = f"{{hosts: [finetune], benchmarks: [split-cifar100], grid: {{benchmark.order: {orders}}}, arms: [host]}}"
    first, second = plan(parse_sweep(text, "made"), tmp_path, HERE)
    first.folder.mkdir(parents=True)
    second.folder.mkdir(parents=True)


@pytest.mark.parametrize(
    ("choice", "folder"),
    [
        ({}, "recipe"),
        ({"training.lr": 0.1}, "training.lr=0.1"),
        ({"training.lr": 1e-5}, "training.lr=1e-05"),
        ({"training.views": ["crop", "flip"]}, "training.views=crop-flip"),
        ({"benchmark.sizes": [50, 10]}, "benchmark.sizes=50-10"),
        ({"flashback.alpha": 0.1, "host.net": ""}, "flashback.alpha=0.1,host.net=-"),
        ({"host.shift": -1.0}, "host.shift=-1.0"),
        ({"host.shift": 1.0}, "host.shift=1.0"),
        ({"host.shifts": [-1, 2]}, "host.shifts=-1-2"),
        ({"benchmark.order": list(range(33))}, f"benchmark.order={'-'.join(map(str, range(33)))}"),
    ],
)
def test_a_combination_names_its_folder(choice: dict[str, object], folder: str) -> None:
    assert label(choice) == folder


def test_a_long_name_is_shortened_and_stays_its_own() -> None:
    orders = [[*range(100)], [*range(98), 99, 98]]
    names = [label({"benchmark.order": order}) for order in orders]
    assert names[0] != names[1]
    for name in names:
        assert name.startswith("benchmark.order=0-1-2-3-")
        assert len(name) <= 120
    assert label({"benchmark.order": orders[0]}) == names[0]
    assert len(label({f"host.key{k}": "x" * 100 for k in range(9)})) <= 120


@pytest.mark.parametrize("name", sorted(shipped_sweeps()))
def test_shipped_sweeps_resolve(name: str, tmp_path: Path) -> None:
    assert len(plan(read_sweep(name), tmp_path, HERE)) >= 3


def test_ancl_is_planned_as_reports_know_it(tmp_path: Path) -> None:
    jobs = [
        job for job in plan(read_sweep("plugins"), tmp_path, HERE) if job.config["flashback"]["phase1_stability"] == 0
    ]
    cells = {(job.config["host"]["name"], job.config["benchmark"]["name"]) for job in jobs}
    assert cells == set(itertools.product(("icarl", "lucir"), ("cifar100-b50-10", "cifar100-b50-5")))
    for job in jobs:
        assert job.arm == "flashback"
        assert job.config["flashback"]["phase1_stability"] == 0
        assert "Table 5, ANCL" in {one.where for one in published_for(job.config)}


def test_aanets_are_planned_beside_their_hosts_without_flashback(tmp_path: Path) -> None:
    jobs = [job for job in plan(read_sweep("plugins"), tmp_path, HERE) if "aanets" in job.config["host"]["name"]]
    planned = {(job.config["host"]["name"], job.config["benchmark"]["name"]) for job in jobs}
    assert {job.arm for job in jobs} == {"host"}
    assert planned == {(one.host, one.benchmark) for one in PUBLISHED if "aanets" in one.host}
    assert all("Table 5" in {one.where for one in published_for(job.config)} for job in jobs)


def test_the_table_of_the_state_of_the_art_is_planned_whole(tmp_path: Path) -> None:
    """Every row that the paper has for a host; FOSTER and BEEF-Compress on CIFAR-100 with both networks."""
    configs = [job.config for job in plan(read_sweep("sota"), tmp_path, HERE)]
    planned = {(config["host"]["name"], config["benchmark"]["name"]) for config in configs}
    published = {(one.host, one.benchmark) for one in PUBLISHED if one.where == "Table 4"}
    assert published - planned == {("icarl", "imagenet100-b0-10"), ("icarl", "imagenet100-b50-10")}  # have no recipe
    small = {
        (config["host"]["name"], config["host"]["net"]) for config in configs if "cifar" in config["benchmark"]["name"]
    }
    assert set(itertools.product(("foster", "beef-compress"), ("resnet32", "resnet18"))) <= small


def test_the_authors_settings_are_planned_with_their_differences(tmp_path: Path) -> None:
    jobs = plan(read_sweep("as-published"), tmp_path, HERE)
    rates = {job.arm: job.config["training"]["lr"] for job in jobs if "split-cifar100/oewc/as-published" in job.name}
    assert rates == {"host": 0.2, "flashback": 0.03}
    assert len({job.config["host"]["name"] for job in jobs}) == 5
    (loss,) = {job.config["host"]["loss"] for job in jobs if "oewc/controlled" in job.name}
    assert loss == "bce_current"


def test_bidirectional_methods_are_planned_on_twenty_tasks_too(tmp_path: Path) -> None:
    jobs = plan(read_sweep("regularisation"), tmp_path, HERE)
    twenty = [job for job in jobs if job.config["benchmark"]["sizes"] == [5] * 20]
    alone = {(host, "host") for host in ("ewc", "afec", "caf", "pnc")}
    assert {(job.config["host"]["name"], job.arm) for job in twenty} == alone | {("ewc", "flashback")}
    for job in twenty:
        host, training = job.config["host"], job.config["training"]
        assert (host["net"], host["loss"]) == ("cnn6", "ce_current")
        assert (training["optimiser"], training["lr"], training["batch_size"]) == ("adam", 0.001, 256)
        assert training["views"] == []
        stages = 2 if host["name"] == "pnc" else 1
        assert stages * training["epochs"] == 100
        assert host["strength"] == (5000 if host["name"] == "pnc" else 10000)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[1, 2]", "no mapping"),
        ("hosts: []", "hosts is empty"),
        ("seeds: [0]", "^made: hosts is missing$"),
        ("{hosts: [icarl], seedz: [1]}", "seedz"),
        ("{hosts: [icarl], grid: {training.lr: 3}}", "grid.training.lr must be a list"),
        ("{hosts: [icarl], arms: [both]}", "arms"),
        ("{hosts: [icarl], seeds: 3}", r"^made: seeds is a list of seeds, not 3; write \[0, 1, 2\]$"),
        ("{hosts: [icarl], parts: [{seeds: 1}]}", r"seeds is a list of seeds, not 1; write \[0\]$"),
        ("{hosts: [icarl], seeds: 123}", r"seeds is a list of seeds, not 123; write \[123\]$"),
        ("{hosts: [icarl], parts: 3}", "parts is a list"),
        ("{hosts: [icarl], settings: [1]}", "settings is a mapping"),
        ("{hosts: [icarl], settings: {seed: 5}}", "chooses seed itself"),
        ("{hosts: [icarl], grid: {flashback.enabled: [true]}}", "chooses flashback.enabled itself"),
    ],
)
def test_broken_sweep_files_get_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(FlashbackError, match=sentence):
        parse_sweep(text, "made")


def test_parts_that_plan_different_runs_for_one_folder_are_refused(tmp_path: Path) -> None:
    text = "{hosts: [icarl], parts: [{settings: {training.epochs: 3}}, {settings: {training.epochs: 4}}]}"
    with pytest.raises(FlashbackError, match="two parts plan different runs"):
        plan(parse_sweep(text, "made"), tmp_path, HERE)


def test_long_names_are_shortened_in_messages(tmp_path: Path) -> None:
    name = "x" * 100_000
    with pytest.raises(FlashbackError, match="unknown sweep 'xxx") as of_sweep:
        read_sweep(name)
    with pytest.raises(FlashbackError, match=r"^xxx.*: unknown host 'xxx") as of_host:
        plan(parse_sweep(f"hosts: [{name}]\narms: [host]", "made"), tmp_path, HERE)
    with pytest.raises(FlashbackError, match="each seed counts once") as of_seeds:
        compare("icarl", seeds=[1] * 100_000, out=tmp_path)
    assert all(len(str(error.value)) < 1000 for error in (of_sweep, of_host, of_seeds))


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FlashbackError, match="did you mean 'baselines'"):
        read_sweep("baseline")
    with pytest.raises(FlashbackError, match="did you mean 'icarl'"):
        plan(parse_sweep("hosts: [icral]", "made"), tmp_path, HERE)


@pytest.mark.slow
def test_a_failed_and_a_killed_run_leave_the_others_alone_and_are_all_that_runs_again(tmp_path: Path) -> None:
    """Four runs, one that cannot work and one that is killed."""
    host_file = tmp_path / "own.py"
    host_file.write_text(
        """
import os, signal
from pathlib import Path
from typing import Any
from flashback.hosts.finetune import Finetune
from flashback.hosts import HOSTS

@HOSTS.register("killed-once")
class KilledOnce(Finetune):
    def end(self):
        mark = Path(os.environ["KILL_MARK"])
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

@HOSTS.register("broken")
class Broken(Finetune):
    def end(self):
        raise RuntimeError("this host is broken")
"""
    )
    file = tmp_path / "sweep.yaml"
    file.write_text(
        QUICK
        + """
arms: [host]
parts:
  - {hosts: [finetune], seeds: [0, 1]}
  - {hosts: [killed-once, broken], seeds: [0]}
"""
    )
    out = tmp_path / "out"
    environment = {**os.environ, "KILL_MARK": str(tmp_path / "killed"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "flashback", "sweep", str(file), "--out", str(out), "--jobs", "2"]
    command += ["--device", "cpu", "--host-file", str(host_file)]

    first = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert first.returncode == 1
    assert "3 of 4 runs done" in first.stdout
    assert (tmp_path / "killed").exists()
    ends = [line.split(" (")[0] for line in first.stderr.splitlines() if ": split-fashion-mini/killed-once" in line]
    folder = "split-fashion-mini/killed-once/controlled/recipe/host/seed-0"
    assert ends == [f"waiting: {folder}", f"done: {folder}"]
    assert [line for line in first.stderr.splitlines() if "this host is broken" in line]
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("results.json")}
    assert len(stamps) == 3

    second = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert "3 of 4 runs done" in second.stdout
    assert [line for line in second.stderr.splitlines() if "this host is broken" in line]
    for path, stamp in stamps.items():
        assert path.stat().st_mtime_ns == stamp  # not run again


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_states_are_told_as_runs_end(tmp_path: Path, jobs: int) -> None:
    sweep = parse_sweep(QUICK + "hosts: [finetune]\narms: [host]\nseeds: [0, 1, 2]", "made")
    seen: list[list[str]] = []

    def watch(outcome: Outcome, name: str) -> Observer:
        return lambda event: seen.append(list(outcome.states.values())) if event["event"] == "end" else None

    run_sweep(sweep, tmp_path, device="cpu", jobs=jobs, watch=watch)
    assert [states.count("done") for states in seen] == [1, 2, 3]


@pytest.mark.parametrize("finished_elsewhere", [True, False])
def test_a_run_of_another_process_is_running_elsewhere_and_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished_elsewhere: bool
) -> None:
    """It is taken over if that process ends without finishing it."""
    monkeypatch.setattr(jobs, "POLL", 0.0)
    sweep = parse_sweep(QUICK + "hosts: [finetune]\narms: [host]\nseeds: [0, 1]", "made")
    first, second = plan(sweep, tmp_path, HERE)
    states: list[tuple[str, str]] = []
    with ExitStack() as other_process:
        other_process.enter_context(RunFolder.open(first.folder, first.config).lock())

        def watch(outcome: Outcome, name: str) -> Observer:
            def observe(event: Event) -> None:
                if event["event"] == "end":
                    states.append((name, outcome.states[name]))
                    if name == second.name:
                        other_process.close()
                        if finished_elsewhere:
                            run(config_from_dict(first.config), out=first.folder, device="cpu")

            return observe

        outcome = run_sweep(sweep, tmp_path, device="cpu", watch=watch)
    assert states == [(first.name, "running elsewhere"), (second.name, "done"), (first.name, "done")]
    assert outcome.failures == {}
    assert outcome.finished == 2


@pytest.mark.slow
def test_two_sweeps_on_one_folder_share_the_work(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(QUICK + "hosts: [lwf-mc]\nseeds: [0, 1]")
    command = [sys.executable, "-m", "flashback", "sweep", str(file), "--device", "cpu"]

    def sweep(out: str) -> subprocess.Popen[str]:
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([*command, "--out", str(tmp_path / out)], **pipes)

    both = [sweep("shared"), sweep("shared")]
    for process in both:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert "4 of 4 runs done" in out
        assert "failed" not in err
    sweep("alone").communicate(timeout=300)
    for path in (tmp_path / "alone").rglob("results.json"):
        assert path.read_bytes() == (tmp_path / "shared" / path.relative_to(tmp_path / "alone")).read_bytes()


def test_records_from_another_machine_count_as_done(tmp_path: Path) -> None:
    sweep = parse_sweep(QUICK + "hosts: [finetune]\narms: [host]\nseeds: [0, 1]", "made")
    run_sweep(sweep, tmp_path / "there", device="cpu")
    shutil.copytree(tmp_path / "there", tmp_path / "here")
    for path in (tmp_path / "here").rglob("checkpoint"):
        shutil.rmtree(path)
    began: list[str] = []
    outcome = run_sweep(
        sweep, tmp_path / "here", device="cpu", watch=lambda o, name: began.append(name) or (lambda e: None)
    )
    assert outcome.finished == 2
    assert began == []


@pytest.mark.parametrize("key", ["weight_decay", "optimiser"])
def test_a_record_without_a_setting_of_later_versions_counts_as_done(tmp_path: Path, key: str) -> None:
    sweep = parse_sweep(QUICK + "hosts: [finetune]\narms: [host]", "made")
    run_sweep(sweep, tmp_path, device="cpu")
    (config,) = tmp_path.rglob("config.yaml")
    older = re.sub(rf"^  {key}: .*\n", "", config.read_text(), flags=re.MULTILINE)
    assert older != config.read_text()
    config.write_text(older)
    (job,) = plan(sweep, tmp_path, HERE)
    assert is_finished(job)
    config.write_text(older.replace("momentum: 0.0", "momentum: 0.5"))
    with pytest.raises(FlashbackError, match=r"differs in training\.momentum"):
        is_finished(job)


def test_an_interrupted_sweep_goes_on(tmp_path: Path) -> None:
    sweep = parse_sweep(QUICK + "hosts: [icarl]\narms: [host]", "made")

    def stop(event: Event) -> None:
        if event["event"] == "epoch" and event["task"] == 1:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted):
        run_sweep(sweep, tmp_path, device="cpu", watch=lambda outcome, name: stop)
    assert not list(tmp_path.rglob("results.json"))
    all_events: list[Event] = []
    assert run_sweep(sweep, tmp_path, device="cpu", watch=lambda outcome, name: all_events.append).finished == 1
    assert {event["task"] for event in all_events if event["event"] != "end"} == {1}
    (log,) = tmp_path.rglob("log.jsonl")
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert (events.count("epoch"), events.count("evaluation")) == (2, 2)
