"""A storm of SIGKILLs: every host, with flashback where it can, is killed at random moments and goes on, many times.

Each run must end with the same results, weights, log and budget as the run that nobody disturbed:

    python tools/storm.py --kills 200

Every life of a run is a process of its own, forked from one that has imported everything and computed nothing.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: what is forked must have no threads

import argparse
import json
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import flashback
from flashback.config import CheckpointConfig, RunConfig
from flashback.conformance import generate_images, short_settings
from flashback.hosts import HOSTS
from flashback.recipes import configure
from flashback.records import is_finished
from flashback.training import Checkpoints

SIZES = (2, 3, 2)  # classes of the tasks
MINUTES = (0.0, 0.0, 0.001, 0.01)  # between checkpoints: after every step, every 60 ms, every 0.6 s
SHARE = 0.8  # of the time of an undisturbed run that a life lasts at most
AIMED = 0.25  # of the kills wait for a checkpoint to be written,
AIMING = 1.0  # for so many seconds
PATIENCE = 300.0  # seconds after which a life that nobody kills counts as hanging


@dataclass
class Tally:
    """What happened to one host."""

    host: str
    kills: int = 0
    torn: int = 0  # kills that left a checkpoint half written
    runs: int = 0
    problems: list[str] = field(default_factory=list)


# ---------------------------------------------------------------- what is trained


def short_run(host: str, dataset: Path) -> RunConfig:
    """All stages of a host in a few steps each."""
    training = {"epochs": 2, "batch_size": 8, "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-4, "schedule": "step"}
    settings = short_settings(HOSTS[host]) | {f"training.{name}": value for name, value in training.items()}
    settings |= {"benchmark.sizes": list(SIZES), "flashback.epochs": 1, "flashback.alpha": 0.1}
    return configure(host, str(dataset), flashback=HOSTS[host].has_knowledge, settings=settings)


# ---------------------------------------------------------------- lives and deaths


def start(config: RunConfig, folder: Path) -> int:
    """A process that runs the configuration, or goes on with it; what it has to say goes to a file."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        words = os.open(folder.with_suffix(".txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(words, 1)
        os.dup2(words, 2)
        flashback.run(config, out=folder, device="cpu")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def outlives(pid: int, seconds: float, aim: Path | None = None) -> bool:
    """Wait for a process to end by itself, else kill it. True if it was killed; a failure is an error.

    With an aim, the kill waits a little longer for a checkpoint to be under way in that folder.
    """
    end = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        late = time.monotonic() - end
        if not done and late >= 0 and (aim is None or late > AIMING or was_torn(aim)):
            os.kill(pid, signal.SIGKILL)
            done, status = os.waitpid(pid, 0)
        if done:
            break
        time.sleep(0.001 if late < 0 else 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    if status:
        raise RuntimeError("a life failed by itself")
    return False


def was_torn(folder: Path) -> bool:
    """Whether a checkpoint is half written: one of its files is not finished, or not there yet."""
    names = os.listdir(folder) if folder.exists() else []
    finished = {name.removesuffix(".json") for name in names if name.endswith(".json")}
    tensors = {name.removesuffix(".safetensors") for name in names if name.endswith(".safetensors")}
    return bool(tensors - finished) or any(name.endswith(".part") for name in names)


def fingerprint(folder: Path) -> dict[str, Any]:
    """Everything a finished run leaves that has no time in it."""
    run = json.loads((folder / "run.json").read_text())
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    state = Checkpoints(folder / "checkpoint", CheckpointConfig()).load()
    assert state is not None, "a finished run has a last checkpoint"
    return {
        "results.json": (folder / "results.json").read_bytes(),
        "log.jsonl": [{key: value for key, value in line.items() if key != "time"} for line in lines],
        "run.json": {key: run[key] for key in ("steps", "images", "budget", "knowledge_bytes", "data_checksum")},
        "weights": {name: tensor for name, tensor in state.tensors.items() if name.startswith(("host.", "method."))},
    }


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What is not the same bit for bit."""
    found = [name for name in one if name != "weights" and one[name] != other[name]]
    first, second = one["weights"], other["weights"]
    same = first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    return found if same else [*found, "weights"]


# ---------------------------------------------------------------- the storm


def storm_over(host: str, wanted: int, place: Path, dice: random.Random) -> Tally:
    """Run after run of one host, until so many kills are done and the last run has ended."""
    tally, config = Tally(host), short_run(host, place / "made.npz")
    began = time.monotonic()
    calm = place / f"{host}-calm"
    if outlives(start(replace(config, checkpoint=CheckpointConfig(minutes=0.0)), calm), PATIENCE):
        raise RuntimeError(f"{host} did not end by itself")
    span, expected = SHARE * (time.monotonic() - began), fingerprint(calm)
    while tally.kills < wanted and not tally.problems:
        folder = place / f"{host}-{tally.runs}"
        try:
            disturb(config, folder, span, wanted, tally, dice)
            if changed := differences(expected, fingerprint(folder)):
                tally.problems.append(f"{folder.name}: other {', '.join(changed)}")
        except Exception as problem:
            said = folder.with_suffix(".txt")
            last = said.read_text().strip().splitlines()[-1:] if said.exists() else []
            tally.problems.append(f"{folder.name}: lost ({problem} {' '.join(last)})")
        tally.runs += 1
    return tally


def disturb(config: RunConfig, folder: Path, span: float, wanted: int, tally: Tally, dice: random.Random) -> None:
    """One run from its beginning to its end, killed on the way."""
    while True:
        life = replace(config, checkpoint=CheckpointConfig(minutes=dice.choice(MINUTES)))
        spared = tally.kills >= wanted
        aim = folder / "checkpoint" if dice.random() < AIMED and not spared else None
        if not outlives(start(life, folder), PATIENCE if spared else dice.uniform(0, span), aim):
            return
        if spared:
            raise RuntimeError("a life hangs")
        tally.kills += 1
        if is_finished(folder):  # killed while it tidied up: its record stands
            return
        tally.torn += was_torn(folder / "checkpoint")


def table(tallies: Iterable[Tally]) -> str:
    rows = [("host", "kills", "while a checkpoint was written", "runs", "lost or changed")]
    counts = [(t.host, t.kills, t.torn, t.runs, len(t.problems)) for t in tallies]
    totals = [sum(count) for count in list(zip(*counts, strict=True))[1:]]
    rows += [tuple(map(str, row)) for row in [*counts, ("in all", *totals)]]
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill runs of every host at random moments; nothing may be lost.")
    parser.add_argument("--kills", type=int, default=200, help="in all; shared by the hosts")
    parser.add_argument("--least", type=int, default=10, help="for every host")
    parser.add_argument("--hosts", nargs="*", default=list(HOSTS), help="default: all")
    parser.add_argument("--seed", type=int, default=None, help="of the moments")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else time.time_ns() % 10**6
    each = max(options.least, -(-options.kills // len(options.hosts)))
    began, dice, tallies = time.monotonic(), random.Random(seed), []
    with torch.compiler.set_stance("force_eager"):  # imports what every run would import
        pass
    with tempfile.TemporaryDirectory() as place:
        np.savez(Path(place) / "made.npz", **generate_images(sum(SIZES), side=12))
        for host in options.hosts:
            tallies.append(storm_over(host, each, Path(place), dice))
            print(f"{host}: {tallies[-1].kills} kills", file=sys.stderr, flush=True)
    print(table(tallies))
    print(f"\n{time.monotonic() - began:.0f} s, moments drawn with seed {seed}")
    problems = [problem for tally in tallies for problem in tally.problems]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
