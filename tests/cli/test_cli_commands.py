"""What the commands do when all is well."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from flashback import __version__
from flashback.benchmarks import BENCHMARKS
from flashback.cli import main
from flashback.hosts import HOSTS
from flashback.metrics.accuracy import METRICS
from flashback.metrics.statistics import ABSENT
from flashback.nets import NETS
from flashback.recipes import list_recipes
from flashback.records import RunRecord, read_record
from flashback.reports.words import TITLES
from flashback.studies.sweeps import shipped_sweeps
from flashback.training.trainer import Trainer
from helpers import forgetting

Command = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("hosts", HOSTS),
        ("benchmarks", BENCHMARKS),
        ("nets", NETS),
        ("recipes", {recipe.benchmark for recipe in list_recipes()}),
        ("sweeps", shipped_sweeps()),
    ],
)
def test_list(flashback: Command, what: str, names: list[str]) -> None:
    code, out, err = flashback("list", what)
    assert (code, err) == (0, "")
    assert set(names) <= set(out.split())


def test_the_list_of_all_leaves_out_the_long_ones(flashback: Command) -> None:
    code, out, _ = flashback("list")
    lines = out.splitlines()
    assert code == 0
    for what in ("hosts", "benchmarks", "nets"):
        assert set(flashback("list", what)[1].splitlines()) <= set(lines)
    assert lines[-1] == "There are also recipes, sweeps and forms, for example: flashback list forms"


def test_list_says_which_hosts_take_flashbacks(flashback: Command) -> None:
    lines = {line.split()[0]: line.split() for line in flashback("list", "hosts")[1].splitlines() if line.split()}
    for name in HOSTS:
        assert lines[name][2] == ("yes" if HOSTS[name].has_knowledge else "no")


def test_help_and_version(flashback: Command) -> None:
    assert flashback("--version") == (0, f"flashback {__version__}\n", "")
    code, out, _ = flashback()
    assert code == 0
    assert all(command in out for command in ("list", "run", "resume", "compare", "bench"))
    assert "Show the version" in out
    assert "--host-file" in flashback("run", "--help")[1]
    summaries = out.partition("Commands:")[2].strip().splitlines()
    assert len(summaries) > 8
    assert not [line for line in summaries if line.endswith("...")]


@pytest.mark.parametrize("command", ["run", "compare", "sweep", "tune", "show", "bench"])
def test_options_speak_no_python(flashback: Command, command: str) -> None:
    options = flashback(command, "--help")[1].partition("Options:")[2]
    assert "--" in options
    assert "list[" not in options


def test_run_leaves_a_record_and_prints_it(flashback: Command, tiny: list[str]) -> None:
    code, out, err = flashback("run", "lwf-mc", "--flashback", "--seed", 4, *tiny, "--set", "training.lr=0.05")
    assert (code, err) == (0, "")
    folder = Path("runs/lwf-mc-tiny-flashback-seed4")
    assert out.splitlines()[-1] == f"Record: {folder}"
    record = read_record(folder)
    assert (record.config["seed"], record.config["training"]["lr"]) == (4, 0.05)
    assert record.config["flashback"]["enabled"]
    assert record.run["steps"] == 3 * 2 * 3  # tasks, epochs, batches of 8 from 20 images
    assert_printed(record, out)
    assert f"{record.run['steps']} optimiser steps on {record.run['images']} images" in out


def assert_printed(record: RunRecord, out: str) -> None:
    rows = {line.strip().split("  ")[0]: line.split()[-2:] for line in out.splitlines() if line.strip()}
    for metric in METRICS:
        title = TITLES[metric][1]
        for column, setting in enumerate(("class_incremental", "task_incremental")):
            value = record.results[setting][metric]
            assert rows[title][column] == (ABSENT if value is None else f"{value:z.2f}")


def test_without_a_terminal_every_task_has_a_line(bare: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "finetune", "--out", "out", *bare])
    matrix = read_record(Path("out")).results["class_incremental"]["matrix"]
    expected = [f"finetune: task {k + 1} of 3, average accuracy {sum(matrix[k]) / (k + 1):.1f}" for k in range(3)]
    assert capsys.readouterr().err.splitlines() == expected


def test_a_config_starts_the_same_run_again(flashback: Command, bare: list[str]) -> None:
    assert flashback("run", "icarl", "--out", "first", "--set", "host.memory_size=12", *bare)[0] == 0
    assert flashback("run", "first/config.yaml", "--out", "second")[0] == 0
    assert flashback("run", "first/config.yaml", "--out", "third", "--seed", 1, "--fast")[0] == 0
    first, second, third = (read_record(Path(name)) for name in ("first", "second", "third"))
    assert (first.config, first.results) == (second.config, second.results)
    assert third.config == first.config | {"seed": 1, "fast": True}
    assert third.results != first.results


def test_a_finished_run_is_not_overwritten(flashback: Command, bare: list[str]) -> None:
    assert flashback("run", "finetune", *bare)[0] == 0
    for more, how in (
        (["--set", "training.lr=0.5"], "(differs in training.lr)"),
        (["--set", "training.lr=0.5", "--set", "training.epochs=1"], "(differs in training.epochs, training.lr)"),
    ):
        code, out, err = flashback("run", "finetune", *bare, *more)
        assert (code, out) == (2, "")
        assert "holds a finished run of another configuration" in err
        assert f"{how}; choose another folder (out, --out on the command line)" in err


def test_a_finished_run_is_shown_again(flashback: Command, bare: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first = flashback("run", "finetune", *bare)[1]
    monkeypatch.setattr(Trainer, "run", lambda self: pytest.fail("trained"))
    before = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    for more in ([], ["--set", "checkpoint.minutes=1"]):
        code, again, err = flashback("run", "finetune", *bare, *more)
        assert (code, err) == (0, "")
        assert again == first + "Finished already, with the same settings: nothing was trained.\n"
    assert {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()} == before
    Path("runs/finetune-tiny-host-seed0/results.json").write_text("{}")
    code, out, err = flashback("run", "finetune", *bare)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "runs/finetune-tiny-host-seed0 is not a run record: results.json was changed, or belongs to another" in err


def test_a_finished_run_on_other_data_is_not_shown_as_the_same(flashback: Command, bare: list[str]) -> None:
    assert flashback("run", "finetune", *bare)[0] == 0
    arrays = dict(np.load("tiny.npz"))
    np.savez("tiny.npz", **{**arrays, "y_train": arrays["y_train"][::-1]})
    code, out, err = flashback("run", "finetune", *bare)
    assert (code, out) == (2, "")
    assert "holds a run on other data" in err


OWN = """
from flashback.hosts import HOSTS
from flashback.hosts.lwf_mc import LwFMC

@HOSTS.register("own")
class Own(LwFMC):
    pass
"""


def test_a_finished_run_of_other_code_is_not_shown_as_the_same(flashback: Command, bare: list[str]) -> None:
    Path("own.py").write_text(OWN)
    command = ("run", "own", "--host-file", "own.py", *bare)
    with forgetting(HOSTS):
        assert flashback(*command)[0] == 0
        assert "Finished already" in flashback(*command)[1]
    Path("own.py").write_text(OWN + "    # changed\n")
    code, out, err = flashback(*command)
    assert (code, out) == (2, "")
    assert "was made with other code" in err


def test_an_option_may_be_repeated_by_set(flashback: Command, bare: list[str]) -> None:
    options = ("--precision", "fp32", "--set", "training.precision=fp32", "--seed", 3, "--set", "seed=3")
    assert flashback("run", "finetune", "--out", "out", *bare, *options)[0] == 0
    config = yaml.safe_load(Path("out/config.yaml").read_text())
    assert (config["training"]["precision"], config["seed"]) == ("fp32", 3)


@pytest.mark.parametrize("command", ["run", "compare", "sweep"])
def test_a_missing_recipe_takes_one_line(
    command: str, tiny: list[str], bare: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = {"hosts": ["lwf-mc"], "benchmarks": ["tiny.npz"], "settings": {"benchmark.sizes": [2, 2, 2]}}
    sweep["settings"] |= {"training.epochs": 1, "flashback.epochs": 0}  # type: ignore[operator]
    Path("mine.yaml").write_text(yaml.safe_dump(sweep))
    words = {"run": ["lwf-mc", *bare], "compare": ["lwf-mc", *tiny, "--seeds", "1"], "sweep": ["mine.yaml"]}
    with pytest.raises(SystemExit) as end:
        main([command, *words[command], *([] if command == "sweep" else ["--recipe", "controlled"]), "--out", "out"])
    assert end.value.code == 0
    output = capsys.readouterr().err.splitlines()
    assert output.count("no controlled recipe for lwf-mc on tiny.npz; the defaults are used") == 1
    files = sorted(Path("out").rglob("config.yaml"))
    assert {yaml.safe_load(path.read_text())["recipe"] for path in files} == {"defaults"}
    if command == "sweep":  # folders keep the name of what was asked for
        assert files[0].parent == Path("out/tiny.npz/lwf-mc/controlled/recipe/flashback/seed-0")


def test_warnings_take_one_line(flashback: Command, bare: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from flashback.hosts import external

    def load() -> None:
        import warnings

        warnings.warn("a package\nis broken", stacklevel=2)

    monkeypatch.setattr(external, "load_installed_hosts", load)
    assert flashback("show", "finetune", *bare)[2] == "warning: a package is broken\n"


# ---------------------------------------------------------------- stopping

LIMIT = 300.0  # seconds until a test gives up


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command that would run for hours; it ends with the test at the latest, and its processes with it."""
    command = [sys.executable, "-m", "flashback", *arguments, "--set", "training.epochs=1000000"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, start_new_session=True, **pipes)
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[str]) -> tuple[str, str]:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.communicate()


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    latest = time.monotonic() + LIMIT
    while time.monotonic() < latest and process.poll() is None:
        if path.exists() and path.stat().st_size:
            return
        time.sleep(0.05)
    pytest.fail(f"{path} never came: {end(process)}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "folder"),
    [(["run", "finetune"], "out"), (["compare", "lwf-mc", "--jobs", "2", "--seeds", "1"], "out/host/seed-0")],
)
def test_ctrl_c_takes_one_line_and_code_130(
    flashback: Command, bare: list[str], command: list[str], folder: str
) -> None:
    with started(*command, *bare, "--out", "out") as process:
        wait_for(Path(folder) / "log.jsonl", process)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, out) == (130, "")
    assert err == "interrupted; the same command continues where it stopped\n"
    saved = [json.loads(path.read_text()) for path in Path(folder).glob("checkpoint/*.json")]
    assert saved[-1]["values"]["history"]["budget"][-1]["steps"] > 0


@pytest.mark.slow
def test_processes_whose_parent_is_killed_save_their_state_and_end_quietly(tiny: list[str]) -> None:
    with started("compare", "lwf-mc", "--jobs", "2", "--seeds", "1", "--out", "out", *tiny) as parent:
        wait_for(Path("out/host/seed-0/log.jsonl"), parent)
        parent.kill()
        _, err = parent.communicate(timeout=LIMIT)  # ends when the last process has closed its end of the pipe
    assert "Traceback" not in err
    assert not list(Path("out").rglob("failure.txt"))
    assert list(Path("out/host/seed-0").glob("checkpoint/*.json"))


def test_resume_finishes_what_was_interrupted(
    flashback: Command, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--set", "host.memory_size=12", "--set", "checkpoint.epochs=1", *tiny)
    assert flashback("run", "icarl", "--flashback", "--out", "whole", *options)[0] == 0
    run_task = Trainer.run_task

    def run_one_task(self: Trainer, task: object) -> None:
        if self.position.task == 1:
            raise KeyboardInterrupt
        run_task(self, task)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "run_task", run_one_task)
        code, out, err = flashback("run", "icarl", "--flashback", "--out", "parts", *options)
        assert (code, out, err) == (130, "", "interrupted\n")
    code, out, err = flashback("resume", "parts")
    assert (code, err) == (0, "")
    assert_printed(read_record(Path("whole")), out)
    assert read_record(Path("parts")).results == read_record(Path("whole")).results


@pytest.mark.parametrize("command", [["resume", "parts"], ["run", "parts/config.yaml", "--out", "parts"]])
def test_a_run_that_goes_on_is_named_as_before(
    bare: list[str], command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the task it was stopped in, which it does not begin again."""
    emit = Trainer.emit

    def stop_in_second_task(self: Trainer, event: str, **values: Any) -> None:
        if (event, self.host.task.index, values.get("epoch")) == ("epoch", 1, 1):
            raise KeyboardInterrupt
        emit(self, event, **values)

    def told(*arguments: str) -> list[str]:
        with pytest.raises(SystemExit):
            main([*arguments])
        return [line.partition(", average")[0] for line in capsys.readouterr().err.splitlines()]

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "emit", stop_in_second_task)
        often = ("--set", "checkpoint.epochs=1")
        assert told("run", "finetune", "--out", "parts", *bare, *often) == ["finetune: task 1 of 3", "interrupted"]
    assert told(*command) == ["finetune: task 2 of 3", "finetune: task 3 of 3"]
