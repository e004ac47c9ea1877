"""Disturb every command that writes files, and check that repeating it gives the result of an undisturbed one.

    python tools/storm.py --kills 1000      # SIGKILL at file operations and at random moments
    python tools/storm.py --faults          # ENOSPC, EIO and a partial write at every file operation
    python tools/storm.py --kills 1000 --record counts.json     # stopped and called again, it goes on counting

A command is killed again and again, or one of its file operations fails. Then the same command is repeated. It must
end with the same results, weights, logs and reports as an undisturbed one; no checkpoint and no finished run may be
lost, no other file may change, and no traceback may be printed. A command runs in a process forked from one that has
imported everything and computed nothing. Its file operations are counted and disturbed by storm.c.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: a process that is forked must have no threads

import argparse
import ctypes
import hashlib
import importlib
import itertools
import json
import logging
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import yaml
from PIL import Image

from flashback.cli.main import main as flashback
from flashback.config import CheckpointConfig, RunConfig
from flashback.conformance import generate_images, short_settings
from flashback.hosts import HOSTS
from flashback.recipes import configure, list_recipes
from flashback.training import Checkpoints
from flashback.training.environment import source_digest

SIZES = (2, 3, 2)  # classes of the tasks
OFTEN = {"training.batch_size": 16, "checkpoint.minutes": 0}  # a checkpoint after every step
ONCE = {"training.batch_size": 16, "benchmark.sizes": [4, 3]}  # at the end
SELDOM = ONCE | {"checkpoint.epochs": 1}
PHOTOS = {"photos": (0, 1), "more-photos": (1, 2)}  # classes
LEARNING = {"training.epochs": 2, "training.batch_size": 4, "checkpoint.minutes": 0, "host.memory_size": 4}
DISTURBANCES = ("nothing", "before", "after", "within", "ENOSPC", "EIO", "partial")  # as in storm.c
KILLS, FAULTS = DISTURBANCES[1:4], DISTURBANCES[4:]
MOMENT = "moment"
SHARE_OF_MOMENTS = 0.3  # of the kills
ANOTHER_KILL = 0.6  # the probability that a killed command is killed again before it may finish
MEMORY = Path("/dev/shm")  # a file system in memory, on which many small files take no time
HANGING = 300.0  # seconds after which a process that nobody kills counts as hanging
CRASHED = 99  # the exit code after a traceback
# what a command may lose, with a warning
ACCEPTED = {"checkpoint": "no space for a checkpoint", "tensorboard": "the tracker tensorboard"}
INCOMPLETE = re.compile(r"\.[0-9a-f]{8}\..*\.part")  # what a killed process wrote under a temporary name
VOLATILE = re.compile(r"time|date|checksum|.*seconds|.*_per_second|took_over_first_task|reused")


# ---------------------------------------------------------------- what is run


def short_values(host: str) -> dict[str, Any]:
    """Settings for all stages of a host in a few steps each."""
    training = {"epochs": 2, "batch_size": 8, "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-4, "schedule": "step"}
    settings = short_settings(HOSTS[host]) | {f"training.{name}": value for name, value in training.items()}
    return settings | {"benchmark.sizes": list(SIZES), "flashback.epochs": 1, "flashback.alpha": 0.1}


def short_run(host: str, dataset: Path) -> RunConfig:
    return configure(host, str(dataset), flashback=HOSTS[host].has_knowledge, settings=short_values(host))


def options(values: Mapping[str, Any], without: Sequence[str] = ()) -> list[str]:
    """`--set` for settings, except those that begin with one of the given words."""
    selection = {key: value for key, value in values.items() if not key.startswith(tuple(without))}
    return [word for key, value in selection.items() for word in ("--set", f"{key}={json.dumps(value)}")]


@dataclass(frozen=True)
class Command:
    """A command line, what its folder holds before, and how to finish it if not by the same command line."""

    name: str
    arguments: list[str]
    template: Path | None = None
    finish: list[str] | None = None


def all_commands(inputs: Path, place: Path, hosts: Iterable[str], in_studies: Mapping[str, Any]) -> list[Command]:
    """Every command that writes, with little to do; every host has a run of its own."""
    data, out = ["--benchmark", str(inputs / "made.npz")], ["--out", str(place / "out")]

    def run(host: str, values: Mapping[str, Any] = OFTEN, data: Sequence[str] = data) -> list[str]:
        arm, without = (["--flashback"], ()) if HOSTS[host].has_knowledge else ([], ("flashback.",))
        return ["run", host, *data, *arm, *out, *options(short_values(host) | values, without)]

    icarl, runs = options(short_values("icarl") | in_studies), inputs / "runs"
    tuned = options(short_values("lwf") | in_studies, ["flashback."])
    form, page = ["--form", "flashback.alpha=0.5"], ["--out", str(place / "out" / "report.html")]
    speed = ["--batch", "32", "--device", "cpu", "--no-flashback"]
    model, learned, again = str(place / "out" / "model"), inputs / "learned", inputs / "learned-again"
    first, second = (str(inputs / name) for name in PHOTOS)
    use, table, picture = [str(learned / "out" / "model"), second], f"{place}/out/answers.csv", f"{place}/out/plot.png"
    images, in_pairs = ["--benchmark", str(place / "images")], SELDOM | {"benchmark.sizes": [2, 2]}
    return [
        *(Command(f"run {host}", run(host)) for host in hosts),
        Command("run, models kept", run("lwf", SELDOM | {"checkpoint.tasks": True})),
        Command("run, tracked", [*run("lwf", SELDOM), "--track", "tensorboard"]),
        Command("run, image folder", run("finetune", in_pairs, images), inputs / "with-images"),
        Command("resume", ["resume", str(place / "out")], inputs / "begun", run("icarl")),
        Command("compare", ["compare", "icarl", *data, "--seeds", "1", *out, *icarl]),
        Command("sweep", ["sweep", str(inputs / "sweep.yaml"), *out]),
        Command("tune", ["tune", "lwf", *data, "--trials", "3", *out, *tuned]),
        Command("forms", ["tune", "lwf", *data, "--forms", *form, "--budget", "4", *out, *tuned]),
        Command("frontier", ["frontier", "lwf", *data, "--weights", "1,2", "--seeds", "1", *out, *tuned]),
        Command("report", ["report", str(runs), "--format", "all", "--against", "icarl", *page]),
        Command("report, plots", ["report", f"{inputs}/joint", *page, "--plots", str(place / "out" / "plots")]),
        Command("cka", ["cka", *(f"{runs}/{arm}/seed-0" for arm in ("host", "flashback")), f"{inputs}/joint", *out]),
        Command("bench", ["bench", "finetune", "lwf", *out, *speed]),
        Command("check", ["check", "finetune"]),
        Command("learn, new model", ["learn", model, first, *options(LEARNING)]),
        Command("learn, again", ["learn", model, second], learned),
        Command("history", ["history", model, "--plot", picture], again),
        Command("rollback", ["rollback", model, "1"], again),
        Command("prune", ["prune", model, "--keep", "0"], again),
        Command("predict", ["predict", *use, "--out", table]),
        Command("evaluate", ["evaluate", *use, "--out", table, "--plot", picture]),
        Command("export", ["export", use[0], f"{place}/out/model.pt2"]),
    ]


# ---------------------------------------------------------------- processes


class Shim:
    """The compiled storm.c, which is loaded before libc."""

    @staticmethod
    def load() -> Shim:
        """Compile storm.c if it is not loaded, and start this program again with it."""
        if "storm" not in os.environ.get("LD_PRELOAD", ""):
            library = Path(tempfile.mkdtemp()) / "storm.so"
            compiler = shutil.which("cc") or shutil.which("gcc")
            if compiler is None:
                sys.exit("a storm needs a C compiler to disturb file operations; install gcc")
            source = Path(__file__).with_suffix(".c")
            subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
            environment = os.environ | {"LD_PRELOAD": str(library), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "300"}
            os.execve(sys.executable, [sys.executable, *sys.argv], environment)
        return Shim()

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ["LD_PRELOAD"])

    def arm(self, folder: Path, at: int = 0, disturbance: str = "nothing", trace: int = -1) -> None:
        """Count the file operations below a folder from now on, and disturb the one with this number."""
        number = DISTURBANCES.index(disturbance)
        self.library.storm_arm(os.fsencode(folder), ctypes.c_long(at), number, trace)


@dataclass(frozen=True)
class Life:
    """What came of a process."""

    code: int | None  # None: it was killed
    output: str
    seconds: float
    operations: list[tuple[str, Path]]  # its file operations, if they were traced


class World:
    """A folder with inputs, the place in which commands write, and their output."""

    def __init__(self, root: Path, shim: Shim) -> None:
        self.root, self.shim = root, shim
        self.inputs, self.watched = root / "inputs", root / "watched"
        self.place = self.watched / "place"
        self.output, self.trace, self.modules = (root / name for name in ("output", "trace", "modules"))
        temporary = self.watched / "tmp"
        for folder in (self.inputs, self.place, temporary):
            folder.mkdir(parents=True)
        os.environ |= {"TMPDIR": str(temporary), "MPLCONFIGDIR": str(self.inputs / "matplotlib")}
        tempfile.tempdir = None

    def live(
        self,
        arguments: Sequence[str],
        at: int = 0,
        disturbance: str = "nothing",
        seconds: float | None = None,
        traced: bool = False,
    ) -> Life:
        """Run a command in a process of its own; disturb its operation number `at`, or kill it after some seconds."""
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            trace = os.open(self.trace, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if traced else -1
            self.be(arguments, lambda: self.shim.arm(self.watched, at, disturbance, trace))
        status = wait_for(pid, began + (HANGING if seconds is None else seconds))
        elapsed, output = time.monotonic() - began, self.output.read_text(errors="replace")
        if os.WIFSIGNALED(status):
            was_meant = os.WTERMSIG(status) == signal.SIGKILL and elapsed < HANGING
            return Life(None if was_meant else -os.WTERMSIG(status), output, elapsed, [])
        lines = self.trace.read_text().splitlines() if traced else []
        operations = [(name, Path(path)) for name, _, path in (line.partition(" ") for line in lines)]
        return Life(os.WEXITSTATUS(status), output, elapsed, operations)

    def be(self, arguments: Sequence[str], arm: Callable[[], None]) -> NoReturn:
        """Run a command in this process, as a shell would, and end."""
        code = CRASHED
        try:
            output = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            arm()
            flashback(list(arguments))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else CRASHED
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stdout.flush()
            self.shim.arm(self.root / "nothing")
            self.modules.write_text("\n".join(sys.modules))
            os._exit(code)

    def import_modules(self) -> None:
        """Import what the last command imported, so that later processes need not."""
        for name in self.modules.read_text().splitlines():
            if name.partition(".")[0] not in ("__main__", "storm"):
                with suppress(Exception):
                    importlib.import_module(name)

    def reset(self, command: Command) -> None:
        """Prepare the place of a command, with a file in it that is not the command's."""
        shutil.rmtree(self.place)
        if command.template is not None:
            shutil.copytree(command.template, self.place, symlinks=True)
        (self.place / "out").mkdir(parents=True, exist_ok=True)
        (self.place / "out" / "notes.txt").write_text("not part of any run\n")

    def prepare(self) -> None:
        """Make the data, the sweep file and the finished and unfinished runs that commands start from."""
        arrays, dataset = generate_images(sum(SIZES), side=8), self.inputs / "made.npz"
        np.savez(dataset, **arrays)
        for name, labels in {"with-images/images": range(4), **PHOTOS}.items():
            for part, label in itertools.product(("train", "test"), labels):
                folder = self.inputs / name / part / f"class-{label}"
                folder.mkdir(parents=True)
                for number, pixels in enumerate(arrays[f"x_{part}"][arrays[f"y_{part}"] == label][:4]):
                    Image.fromarray(pixels).save(folder / f"{number}.png")
        icarl = short_values("icarl") | SELDOM
        settings = {key: value for key, value in icarl.items() if not key.startswith("host.")}
        rates = {"training.lr": [settings.pop("training.lr"), 0.1]}
        sweep: dict[str, Any] = {
            "hosts": ["lwf"],
            "benchmarks": [str(dataset)],
            "settings": settings,
            "grid": rates,
            "arms": ["flashback"],
        }
        (self.inputs / "sweep.yaml").write_text(yaml.safe_dump({"title": "storm", "parts": [sweep]}))
        runs, joint, begun = (["--out", str(self.inputs / name)] for name in ("runs", "joint", "begun/out"))
        data = ["--benchmark", str(dataset)]
        self.expect(["compare", "icarl", *data, "--seeds", "2", *runs, *options(icarl)])
        self.import_modules()
        list_recipes()  # reading them takes longer than a short run
        source_digest()
        self.expect(["run", "joint", *data, *joint, *options(short_values("joint") | SELDOM, ["flashback."])])
        run = ["run", "icarl", *data, "--flashback", *options(short_values("icarl") | OFTEN)]
        self.expect([*run, *begun])
        (self.inputs / "begun" / "out" / "results.json").unlink()
        learned, again = (self.inputs / name / "out" / "model" for name in ("learned", "learned-again"))
        self.expect(["learn", str(learned), str(self.inputs / "photos"), *options(LEARNING)])
        shutil.copytree(learned, again)
        self.expect(["learn", str(again), str(self.inputs / "more-photos")])

    def commands(self, names: Sequence[str], hosts: Iterable[str], in_studies: Mapping[str, Any]) -> list[Command]:
        commands = all_commands(self.inputs, self.place, hosts, in_studies)
        return [command for command in commands if command.name.startswith(tuple(names))]

    def expect(self, arguments: Sequence[str], traced: bool = False) -> Life:
        life = self.live(arguments, traced=traced)
        if life.code != 0:
            raise RuntimeError(f"flashback {arguments[0]} ended with {life.code}:\n{life.output}")
        return life


def wait_for(pid: int, end: float) -> int:
    """Wait for a process until a moment, then kill it; returns its status."""
    try:
        while time.monotonic() < end:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return status
            time.sleep(0.002)
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGKILL)
        raise
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


# ---------------------------------------------------------------- what a command leaves


def fingerprint(place: Path) -> dict[str, Any]:
    """Everything that a command leaves in a folder, without times and without the numbers of checkpoints."""
    contents: dict[str, Any] = {}
    for path in sorted(place.rglob("*")):
        name = str(path.relative_to(place))
        if path.name == "checkpoint" or path.name.startswith("after-task-"):
            contents[name] = weights(path)
        elif path.name == "tensorboard":
            contents[name] = scalars(path)
        elif path.name == ".lock" or INCOMPLETE.fullmatch(path.name):
            continue
        elif path.suffix == ".npy":  # decoded images, named after the files that they were read from
            content = path.read_bytes()
            contents[f"{path.parent.relative_to(place)}/{hashlib.sha256(content).hexdigest()}"] = content
        elif path.is_file() and not {"checkpoint", "tensorboard"} & {*Path(name).parts}:
            contents[name] = READERS.get(path.name, Path.read_bytes)(path)
    return contents


def weights(folder: Path) -> dict[str, bytes]:
    state = Checkpoints(folder, CheckpointConfig()).load()
    tensors = {} if state is None else state.tensors
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items() if name.startswith(("host.", "method."))}


def scalars(folder: Path) -> list[tuple[str, list[tuple[int, float]]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it reports every resumption
    events = EventAccumulator(str(folder)).Reload()
    tags = sorted(events.Tags()["scalars"])
    return [(tag, [(event.step, event.value) for event in events.Scalars(tag)]) for tag in tags]


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(entry) for key, entry in value.items() if not VOLATILE.fullmatch(key)}
    return [without_times(entry) for entry in value] if isinstance(value, list) else value


def read_json(path: Path) -> Any:
    return without_times(json.loads(path.read_text()))


def read_log(path: Path) -> list[Any]:
    return [without_times(json.loads(line)) for line in path.read_text().splitlines()]


def read_settings(path: Path) -> Any:
    settings = yaml.safe_load(path.read_text())
    return {key: value for key, value in settings.items() if key != "checkpoint"}


READERS: dict[str, Callable[[Path], Any]] = {
    "run.json": read_json,
    "comparison.json": read_json,
    "bench.json": read_json,
    "log.jsonl": read_log,
    "config.yaml": read_settings,
    "version.json": read_json,
}


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    return [name for name in sorted({*first, *second}) if first.get(name) != second.get(name)]


def progress(place: Path) -> dict[Path, tuple[Any, ...]]:
    """How far every run and every model is: its last checkpoint, or when a run or a version was finished."""
    reached: dict[Path, tuple[Any, ...]] = {}
    for config in place.rglob("config.yaml"):
        results = config.with_name("results.json")
        if results.exists():
            reached[config.parent] = (1, results.stat().st_mtime_ns)
        elif position := last_position(config.parent):
            reached[config.parent] = (0, *position)
    for settings in place.rglob("model.json"):
        versions, update = sorted(settings.parent.glob("versions/0*/version.json")), settings.parent / "update"
        reached |= {path.parent: (1, path.stat().st_mtime_ns) for path in versions}
        record = update / "update.json"
        is_stored = record.exists() and json.loads(record.read_text())["number"] <= len(versions)
        reached[settings.parent] = (0, len(versions), *(() if is_stored else last_position(update)))
    return reached


def last_position(folder: Path) -> tuple[int, ...]:
    newest = max(folder.glob("checkpoint/0*.json"), default=None)
    position = json.loads(newest.read_text())["values"]["position"] if newest else {}
    return tuple(position[key] for key in ("task", "stage", "begun", "epoch", "step") if position)


def files_of(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}


# ---------------------------------------------------------------- the storm


class Victim:
    """A command that is disturbed: what it does and leaves when nobody disturbs it, and what came of disturbances."""

    def __init__(self, world: World, command: Command, tally: Counter[str] | None = None) -> None:
        self.world, self.command = world, command
        self.finish = command.finish or command.arguments
        self.tally: Counter[str] = Counter() if tally is None else tally
        self.problems: list[str] = []
        world.reset(command)
        world.expect(command.arguments)
        world.import_modules()
        world.reset(command)
        life = world.expect(command.arguments, traced=True)
        outside = {path for _, path in life.operations if not path.is_relative_to(world.watched)}
        self.operations = [operation for operation in life.operations if operation[1].is_relative_to(world.watched)]
        self.tally["operations"] = len(self.operations)
        self.seconds, self.expected = life.seconds, fingerprint(world.place)
        self.inputs = files_of(world.inputs)
        if outside:
            self.note("undisturbed", f"writes elsewhere: {', '.join(map(str, sorted(outside)))}")

    def points(self, disturbance: str) -> list[int]:
        """The numbers of the operations that can be disturbed so; only a write can end in the middle."""
        within = disturbance in ("within", "partial")
        return [k for k, (name, _) in enumerate(self.operations, 1) if "write" in name or not within]

    def check(self, what: str, life: Life, before: Mapping[Path, tuple[Any, ...]]) -> None:
        """Check what holds whatever happened: nothing is lost, no other file changes, no traceback is printed."""
        after = progress(self.world.place)
        missing_runs = [str(run) for run, reached in before.items() if not (after.get(run, ()) >= reached)]
        rewritten = [str(run) for run, reached in before.items() if reached[0] == 1 and after.get(run) != reached]
        if "Traceback" in life.output or life.code == CRASHED or (life.code or 0) < 0:
            self.note(what, f"crashes: {life.output[-1500:]}")
        if missing_runs or rewritten:
            self.note(what, f"loses {', '.join(missing_runs or rewritten)}")

    def note(self, what: str, problem: str) -> None:
        self.tally["problems"] += 1
        self.problems.append(f"{self.command.name}, {what}: {problem}")
        print(self.problems[-1], file=sys.stderr, flush=True)

    def show(self, began: float) -> None:
        counts = ", ".join(f"{count} {name}" for name, count in self.tally.items())
        print(f"{self.command.name}: {counts}; {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    def check_result(self, what: str, life: Life, accepted: Sequence[str] = ()) -> None:
        if files_of(self.world.inputs) != self.inputs:
            self.note(what, "changes its inputs")
        if life.code != 0:
            self.note(what, f"cannot be finished: {life.output[-600:]}")
        elif changed := self.changed(accepted):
            self.note(what, f"gives other {', '.join(changed)}")

    def changed(self, accepted: Sequence[str] = ()) -> list[str]:
        names = differences(self.expected, fingerprint(self.world.place))
        return [name for name in names if "versions" in name or not {*Path(name).parts} & {*accepted}]

    # ------------------------------------------------------------ kills

    def kill(self, number: int, dice: random.Random) -> None:
        """Start the command again and again, kill it on the way, and let it finish, until there are enough kills."""
        places = [(kind, at) for kind in KILLS for at in self.points(kind)]
        dice.shuffle(places)
        order = itertools.cycle(places or [(MOMENT, 0)])
        kills = sum(self.tally[kind] for kind in (*KILLS, MOMENT))
        while kills < number and not self.problems:
            self.world.reset(self.command)
            arguments, story = self.command.arguments, list[str]()
            while True:
                kind, at = (MOMENT, 0) if dice.random() < SHARE_OF_MOMENTS else next(order)
                before = progress(self.world.place)
                if kind == MOMENT:
                    life = self.world.live(arguments, seconds=dice.uniform(0, self.seconds))
                else:
                    life = self.world.live(arguments, at, kind)
                story.append(f"{kind} {at}" if at else kind)
                self.check(f"killed ({', '.join(story)})", life, before)
                if life.code is not None:
                    break
                kills += 1
                self.tally[kind] += 1
                arguments = self.finish
                if kills >= number or dice.random() > ANOTHER_KILL:
                    before = progress(self.world.place)
                    life = self.world.live(arguments)
                    self.check(f"finished after a kill ({', '.join(story)})", life, before)
                    break
            self.tally["finished"] += 1
            self.check_result(f"finished after a kill ({', '.join(story)})", life)

    # ------------------------------------------------------------ faults

    def fail(self, every: int = 1) -> None:
        """Let every file operation fail in every way, once each, and finish the command afterwards."""
        for disturbance in FAULTS:
            for at in self.points(disturbance)[::every]:
                self.world.reset(self.command)
                operation, path = self.operations[at - 1]
                what = f"{disturbance} at {operation} {path.relative_to(self.world.watched)} (number {at})"
                before = progress(self.world.place)
                life = self.world.live(self.command.arguments, at, disturbance)
                self.check(what, life, before)
                self.tally[disturbance] += 1
                accepted = [name for name, warning in ACCEPTED.items() if warning in life.output]
                if life.code == 0:
                    self.tally["continued"] += 1
                    self.check_result(f"{what}, continued", life, [*accepted, ".first-tasks"])  # a cache
                elif not accepted and not self.is_explained(disturbance, operation, path, life.output):
                    self.note(what, f"is not explained: {life.output[-600:]}")
                before = progress(self.world.place)
                life = self.world.live(self.finish)
                self.check(f"finished after {what}", life, before)
                self.check_result(f"finished after {what}", life, accepted)

    def is_explained(self, disturbance: str, operation: str, path: Path, output: str) -> bool:
        """Whether the output names the file or its folder; on a full disk it may name another file that failed, too."""
        named = self.world.place if disturbance == "ENOSPC" else path.parent
        if operation in ("unlinkat", "rmdir"):  # a folder is removed with what is in it
            named = named.parent
        return str(named) in output.replace("\n", "") and ("error" in output or "failed" in output)


def table(columns: Sequence[str], counts: Mapping[str, Mapping[str, int]]) -> str:
    columns = [*columns, "problems"]
    cells = {name: [tally.get(column, 0) for column in columns] for name, tally in counts.items()}
    cells["in all"] = [sum(column) for column in zip(*cells.values(), strict=True)]
    rows = [("command", *columns), *((name, *map(str, numbers)) for name, numbers in cells.items())]
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(f"| {line} |" for line in [lines[0], " | ".join("-" * width for width in widths), *lines[1:]])


def shares(commands: Sequence[Command], total: int) -> list[int]:
    """Half of the kills for the runs of all hosts together, the other half for all other commands."""
    groups = [command.name.removeprefix("run ") in HOSTS for command in commands]
    return [-(-total // (groups.count(group) * len(set(groups)))) for group in groups]


def main() -> int:
    parser = argparse.ArgumentParser(description="Disturb every command that writes; nothing may be lost or changed.")
    parser.add_argument("--kills", type=int, default=0, help="in all, shared by the commands")
    parser.add_argument("--faults", action="store_true", help="let every file operation fail in every way")
    parser.add_argument("--every", type=int, default=1, help="let only every so many file operations fail")
    parser.add_argument("--hosts", nargs="*", default=list(HOSTS), help="that `run` trains; default: all")
    parser.add_argument("--commands", nargs="*", default=[""], help="only commands whose name begins so; default: all")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6, help="of the kills")
    parser.add_argument("--record", type=Path, help="a file that keeps the counts; the same call goes on from it")
    return storm(parser.parse_args())


def storm(options: argparse.Namespace) -> int:
    shim, began, dice = Shim.load(), time.monotonic(), random.Random(options.seed)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C, shows what was done
    is_begun = options.record is not None and options.record.exists()
    earlier: dict[str, Any] = json.loads(options.record.read_text()) if is_begun else {"kills": {}, "faults": {}}
    counts = {kind: {name: Counter(tally) for name, tally in each.items()} for kind, each in earlier.items()}

    def finish(victim: Victim) -> None:
        victim.show(began)
        if options.record is not None:
            options.record.write_text(json.dumps(counts, indent=1) + "\n")

    memory = MEMORY if MEMORY.exists() else None
    with tempfile.TemporaryDirectory(dir=memory) as root, suppress(KeyboardInterrupt):
        world = World(Path(root), shim)
        world.prepare()
        if options.kills:
            commands = world.commands(options.commands, options.hosts, SELDOM)
            for command, kills in zip(commands, shares(commands, options.kills), strict=True):
                tally = counts["kills"].setdefault(command.name, Counter())
                if sum(tally[kind] for kind in (*KILLS, MOMENT)) < kills:
                    victim = Victim(world, command, tally)
                    victim.kill(kills, dice)
                    finish(victim)
        if options.faults:  # runs of other hosts would repeat the same file operations
            for command in world.commands(options.commands, [], ONCE):
                if command.name not in counts["faults"]:
                    victim = Victim(world, command)
                    victim.fail(options.every)
                    counts["faults"][command.name] = victim.tally
                    finish(victim)
    for kind, columns in (("kills", [*KILLS, MOMENT, "finished"]), ("faults", ["operations", *FAULTS, "continued"])):
        if counts[kind]:
            print(table(columns, counts[kind]), end="\n\n")
    print(f"{time.monotonic() - began:.0f} s, kills drawn with seed {options.seed}")
    return 1 if any(tally["problems"] for tallies in counts.values() for tally in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
