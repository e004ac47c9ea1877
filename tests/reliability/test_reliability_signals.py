"""Signals and locks: a run that is asked to stop saves its state, and two never train in one folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import storm
from reliability_runs import NEVER, answer, go_on, icarl, linger, stoppable

import flashback
from flashback import FlashbackError
from flashback.config import CheckpointConfig
from flashback.engines.following import STOPPED
from flashback.studies.processes import run_in_processes
from flashback.training import Checkpoints, Interrupted, checkpoints
from flashback.training.step import TrainingStep

STEP = 7  # in phase 1 of the second task
LIMIT = 300.0  # seconds that a process of a test lives at most

SLOW_HOST = """
import signal, time
from flashback.hosts.base import HOSTS
from flashback.hosts.finetune import Finetune

@HOSTS.register("slow")
class Slow(Finetune):
    def forward(self, batch):
        print("in a step", flush=True)
        while signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
            time.sleep(0.01)
        print("asked to stop, and still in it", flush=True)
        time.sleep(600)
        return super().forward(batch)
"""


@pytest.fixture
def during(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sends signals to this process in the middle of one step, and notes how far the step came."""

    def arrange(*numbers: signal.Signals, ended: list[int]) -> None:
        descend, steps = TrainingStep.descend, 0

        def interrupted(step: TrainingStep, *inputs: Any) -> None:
            nonlocal steps
            steps += 1
            if steps == STEP:
                for number in numbers:
                    signal.raise_signal(number)
            descend(step, *inputs)
            ended.append(steps)

        monkeypatch.setattr(TrainingStep, "descend", interrupted)

    return arrange


@contextmanager
def unchanged_handlers() -> Iterator[None]:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGINT, signal.SIGHUP))]
)
def test_a_signal_ends_a_run_after_its_step(
    dataset: Path, tmp_path: Path, whole: dict[str, Any], during: Any, number: signal.Signals, monkeypatch: Any
) -> None:
    ended: list[int] = []
    during(number, ended=ended)
    with unchanged_handlers(), pytest.raises(Interrupted):
        flashback.run(storm.short_run("icarl", dataset), out=tmp_path / "run", device="cpu")
    assert ended == list(range(1, STEP + 1)), "the step is finished, and no other begun"
    state = Checkpoints(tmp_path / "run" / "checkpoint", CheckpointConfig()).load()
    assert state is not None
    assert sum(entry["steps"] for entry in state.values["history"]["budget"]) == STEP
    assert state.values["history"]["budget"][-1]["stage"] == "phase 1"
    monkeypatch.undo()
    assert go_on(dataset, tmp_path / "run") == []
    assert storm.differences(whole, storm.fingerprint(tmp_path / "run")) == []


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_quits_at_once(dataset: Path, tmp_path: Path, during: Any, first: signal.Signals) -> None:
    ended: list[int] = []
    during(first, signal.SIGINT, ended=ended)
    with unchanged_handlers(), pytest.raises(KeyboardInterrupt):
        flashback.run(icarl(dataset, NEVER), out=tmp_path / "run", device="cpu")
    assert ended == list(range(1, STEP)), "the step is not finished"
    assert not (tmp_path / "run" / "checkpoint").exists()


@pytest.mark.parametrize("patience", [60.0, 0.0])
def test_a_second_sigterm_is_the_same_request_for_some_seconds(
    dataset: Path, tmp_path: Path, during: Any, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm sends it to all processes of a job, and the parent of several runs passes it on to each."""
    monkeypatch.setattr(checkpoints, "SAME_REQUEST", patience)
    ended: list[int] = []
    during(signal.SIGTERM, signal.SIGTERM, ended=ended)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with unchanged_handlers(), pytest.raises(KeyboardInterrupt) as stopped:
            flashback.run(icarl(dataset, NEVER), out=tmp_path / "run", device="cpu")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert isinstance(stopped.value, Interrupted) == (tmp_path / "run" / "checkpoint").exists() == bool(patience)
    assert len(ended) == (STEP if patience else STEP - 1)


def test_a_signal_that_is_ignored_stays_so(
    dataset: Path, tmp_path: Path, whole: dict[str, Any], during: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under nohup, or as a process whose parent reacts for it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        during(signal.SIGINT, ended=[])
        flashback.run(storm.short_run("icarl", dataset), out=tmp_path / "run", device="cpu")
    finally:
        signal.signal(signal.SIGINT, before)
    assert storm.differences(whole, storm.fingerprint(tmp_path / "run")) == []


def test_a_run_in_a_thread_needs_no_signals(dataset: Path, tmp_path: Path) -> None:
    config = storm.short_run("finetune", dataset)
    thread = threading.Thread(target=flashback.run, args=[config], kwargs={"out": tmp_path / "run", "device": "cpu"})
    thread.start()
    thread.join(LIMIT)
    assert (tmp_path / "run" / "results.json").exists()


# ---------------------------------------------------------------- whole processes


SOURCE = f"{Path(flashback.__file__).parents[1]}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}


@contextmanager
def python(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that outlives neither the test nor the limit; whoever waits for its words then finds their end."""
    command = [sys.executable, *map(str, arguments)]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=ENVIRONMENT, **pipes) as process:
        limit = threading.Timer(LIMIT, process.kill)
        limit.start()
        try:
            yield process
        finally:
            limit.cancel()
            process.kill()


def next_word(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip()


@pytest.mark.slow
def test_sigterm_to_the_command(dataset: Path, tmp_path: Path) -> None:
    settings = ("benchmark.sizes=[2,3,2]", "training.epochs=100000", "training.batch_size=8", "training.lr=0.01")
    options = [word for setting in settings for word in ("--set", setting)]
    log = tmp_path / "run" / "log.jsonl"
    with python("-m", "flashback", "run", "finetune", "--benchmark", dataset, "--out", log.parent, *options) as run:
        while run.poll() is None and not (log.exists() and log.read_bytes().count(b"\n") > 3):
            time.sleep(0.05)
        run.send_signal(signal.SIGTERM)
        out, err = run.communicate()
    assert (run.returncode, out) == (130, ""), err
    assert err.splitlines()[1:] == ["interrupted; the same command continues where it stopped"], (
        "after the recipe's line"
    )
    state = Checkpoints(tmp_path / "run" / "checkpoint", CheckpointConfig()).load()
    assert state is not None
    assert state.values["position"]["epoch"] >= 1


@pytest.mark.slow
def test_a_second_signal_to_the_command(dataset: Path, tmp_path: Path) -> None:
    """Of the other kind, in the middle of a step that takes ten minutes."""
    (tmp_path / "slow.py").write_text(SLOW_HOST)
    options = ["--benchmark", dataset, "--set", "benchmark.sizes=[2,3,2]", "--host-file", tmp_path / "slow.py"]
    with python("-m", "flashback", "run", "slow", *options, "--out", tmp_path / "run") as run:
        assert next_word(run) == "in a step"
        run.send_signal(signal.SIGINT)
        assert next_word(run) == "asked to stop, and still in it"
        run.send_signal(signal.SIGTERM)
        assert run.wait() == -signal.SIGTERM


@pytest.mark.slow
def test_sigterm_to_the_parent_of_several_runs() -> None:
    """Its processes are stopped in good order; killed by the signal, it would leave them alone."""
    pids: list[int] = []

    def watch(_: str) -> Callable[[Any], None]:
        def see(event: Any) -> None:
            pids.append(event["pid"])
            os.kill(os.getpid(), signal.SIGTERM)

        return see

    with unchanged_handlers(), pytest.raises(Interrupted):
        run_in_processes({"one": None, "two": None}, 1, linger, watch)
    assert len(pids) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


@pytest.mark.slow
def test_a_closed_terminal_does_not_matter_under_nohup() -> None:
    seen: list[Any] = []

    def watch(_: str) -> Callable[[Any], None]:
        def see(event: Any) -> None:
            seen.append(event)
            os.kill(os.getpid(), signal.SIGHUP)

        return see

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_in_processes({"one": None}, 1, answer, watch) == {"one": None}
    finally:
        signal.signal(signal.SIGHUP, before)
    assert seen[0] == {"event": "answer"}


@pytest.mark.slow
def test_one_process_that_is_stopped_leaves_the_others_alone() -> None:
    def watch(name: str) -> Callable[[Any], None]:
        return lambda event: os.kill(event["pid"], signal.SIGTERM) if "pid" in event else None

    problems = run_in_processes({"stopped": True, "other": False}, 2, stoppable, watch)
    assert problems == {"stopped": STOPPED, "other": None}


SCRIPT = """
from pathlib import Path
from flashback.studies.comparison import compare
out = Path(__file__).parent / "out"
compare("lwf-mc", seeds=[0, 1], jobs=2, out=out, settings={"training.epochs": 2, "flashback.epochs": 1})
"""


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_of_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    with python(tmp_path / "script.py") as script:
        errors = script.communicate()[1]
    assert script.returncode == 1
    assert errors.count("Traceback") == 1, "the parent's own; its processes say nothing"
    assert errors.splitlines()[-1].startswith("flashback.errors.FlashbackError: several runs at a time start processes")
    assert errors.rstrip().endswith('put the call under: if __name__ == "__main__":')


# ---------------------------------------------------------------- locks

HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "ab")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_two_processes_in_one_folder(dataset: Path, tmp_path: Path) -> None:
    """The second is refused before it has written anything; when the first has died, its lock is free."""
    folder = tmp_path / "run"
    folder.mkdir()
    with python("-c", HOLD, folder / ".lock") as other:
        assert next_word(other) == "held"
        with pytest.raises(FlashbackError) as caught:
            flashback.run(icarl(dataset), out=folder, device="cpu")
        assert str(caught.value) == f"another process is training in {folder}; wait for it or stop it"
        assert [path.name for path in folder.iterdir()] == [".lock"]
    flashback.run(icarl(dataset), out=folder, device="cpu")
    assert (folder / "results.json").exists()
