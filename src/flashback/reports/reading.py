"""From folders to runs. Whatever is not a finished, whole record is named and left out."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from flashback.benchmarks import canonical_name
from flashback.benchmarks.orders import RUN_SEED
from flashback.errors import FlashbackError, require
from flashback.files import LARGEST_RECORD, read_file
from flashback.recipes import resolved
from flashback.records import RunRecord, read_record
from flashback.records.folder import LOG
from flashback.records.terms import ARMS, FLASHBACK, HOST, SETTINGS
from flashback.studies.comparison import check_measured, is_number, measured
from flashback.studies.tuning import STUDY

MARKS = {"config.yaml", "run.json", "results.json"}  # a folder with one of them means to be a run
SIMILARITY = "cka.json"
EPOCHS_KEPT = 400  # of the log of a run; the others change nothing that a chart could show


@dataclass(frozen=True)
class Epoch:
    """The mean losses of one epoch, and where in the run it stands."""

    task: int
    stage: str
    number: int
    epochs: int
    losses: dict[str, float]


@dataclass(frozen=True)
class Run:
    """A finished run. The metrics of its record follow from its matrices, whoever wrote them down."""

    name: str
    classifier: str  # of the record; the host's own
    record: RunRecord
    others: dict[str, RunRecord]  # the same run as seen by the host's further classifiers
    epochs: list[Epoch]

    @property
    def host(self) -> str:
        return str(self.record.config["host"]["name"])

    @property
    def benchmark(self) -> str:
        return str(self.record.config["benchmark"]["name"])

    def on(self, benchmark: str) -> Run:
        """The same run, with another spelling of its benchmark."""
        config = {**self.record.config, "benchmark": {**self.record.config["benchmark"], "name": benchmark}}
        return replace(self, record=replace(self.record, config=config))

    @property
    def recipe(self) -> str:
        return str(self.settings["recipe"])

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The configuration, resolved: a setting that came with a later version had its default then."""
        try:
            return resolved(self.record.config)
        except FlashbackError:  # of a host or a version that is not here
            return self.record.config

    @property
    def data(self) -> dict[str, Any]:
        """What it learned from: which images, and in which order of classes."""
        known = {key: self.record.run.get(key) for key in ("data_checksum", "class_order")}
        drawn = self.settings["benchmark"].get("order") == RUN_SEED  # another one at every seed, and that is meant
        return {**known, "class_order": RUN_SEED} if drawn else known

    @property
    def code(self) -> str | None:
        """The digest of the files that its host or net comes from; None for those of the package."""
        code = self.record.run.get("must_match", {}).get("code")
        return None if code is None else str(code)

    @property
    def seed(self) -> int:
        return int(self.record.config["seed"])

    @property
    def arm(self) -> str:
        return FLASHBACK if self.record.config["flashback"]["enabled"] else HOST

    @property
    def tasks(self) -> int:
        return len(self.record.results[SETTINGS[0]]["matrix"])


@dataclass(frozen=True)
class Similarity:
    """Linear CKA with a jointly trained reference, layer by layer, on the images of old tasks and of the last one."""

    name: str
    host: str
    seeds: dict[str, int]  # by arm
    layers: list[str]
    values: dict[str, dict[str, list[float]]]  # old or new, arm

    @property
    def title(self) -> str:
        """The host and its seed; both seeds where the arms differ in it."""
        seeds = list(dict.fromkeys(self.seeds.values()))
        return f"{self.host}, {'seed' if len(seeds) == 1 else 'seeds'} {' and '.join(map(str, seeds))}"


@dataclass
class Found:
    """Everything below the folders given: runs, similarities, and what was left out, with the reason."""

    runs: list[Run] = field(default_factory=list)
    similarities: list[Similarity] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


def find(folders: Sequence[Path]) -> Found:
    """Read every finished run below the folders, each folder once."""
    found, seen = Found(), set[Path]()
    for root in folders:
        if not root.is_dir():
            raise FlashbackError(f"{root} is not a folder; give folders with finished runs")
        before = len(seen)
        for path in marked_folders(root):
            if path.resolve() not in seen:
                seen.add(path.resolve())
                read_into(found, path, name_of(path, root, alone=len(folders) == 1))
        if len(seen) == before and len(folders) > 1:
            found.skipped.setdefault(str(root), "holds no run that was not read already")
    found.runs = spelled_alike(found.runs)
    return found


def spelled_alike(runs: Sequence[Run]) -> list[Run]:
    """The same file of one's own is one benchmark, however its path was written: its name and its checksum tell."""
    first: dict[tuple[str, str], str] = {}
    same = [
        first.setdefault((canonical_name(run.benchmark), str(run.data["data_checksum"])), run.benchmark) for run in runs
    ]
    return [run if run.benchmark == name else run.on(name) for run, name in zip(runs, same, strict=True)]


def marked_folders(root: Path) -> Iterator[Path]:
    for folder, inner, files in os.walk(root):
        inner[:] = sorted(name for name in inner if name != "checkpoint" and not name.startswith("."))
        if (MARKS | {SIMILARITY}).intersection(files):
            yield Path(folder)


def name_of(path: Path, root: Path, alone: bool) -> str:
    """Where a folder lies: below the one folder given, else as the user wrote it."""
    if not alone:
        return path.as_posix()
    return path.relative_to(root).as_posix() if path != root else root.resolve().name


def read_into(found: Found, path: Path, name: str) -> None:
    try:
        if (path / SIMILARITY).exists():
            found.similarities.append(read_similarity(path, name))
    except FlashbackError as error:
        found.skipped[f"{name}/{SIMILARITY}"] = str(error)
    if not any((path / mark).exists() for mark in MARKS) or (path / STUDY).exists():
        return
    try:
        found.runs.append(read_run(path, name))
    except FlashbackError as error:
        found.skipped[name] = str(error).removeprefix(f"{path} is not a run record: ").removeprefix(f"{path}/")


# ---------------------------------------------------------------- one run


def read_run(path: Path, name: str) -> Run:
    if (path / "config.yaml").exists() and not (path / "results.json").exists():
        raise FlashbackError("not finished: results.json is not there")
    record = read_record(path)
    check_config(record.config)
    own = check_measured(record)
    listed = record.results.get("classifiers")
    further = {
        str(classifier): replace(record, results=measured(values))
        for classifier, values in (listed.items() if isinstance(listed, dict) else ())
        if classifier != record.results.get("classifier")
    }
    return Run(name, str(record.results.get("classifier", "")), own, further, read_epochs(path))


def check_config(config: Mapping[str, Any]) -> None:
    for section, key, kind in (("host", "name", str), ("benchmark", "name", str), ("flashback", "enabled", bool)):
        inner = config.get(section)
        require(isinstance(inner, dict) and type(inner.get(key)) is kind, f"config.yaml has no {section}.{key}")
    require(type(config.get("seed")) is int, "config.yaml has no seed")
    require(isinstance(config.get("recipe"), str), "config.yaml has no recipe")


def read_epochs(path: Path) -> list[Epoch]:
    """The losses of the log, every so many epochs of a long one. A log that is missing or torn gives what it has."""
    try:
        text = read_file(path / LOG, LARGEST_RECORD).decode(errors="replace")
    except (OSError, ValueError):
        return []
    lines = [line for line in text.splitlines() if '"losses"' in line]
    stride = -(-len(lines) // EPOCHS_KEPT)
    kept = (line for k, line in enumerate(lines) if k % stride == 0 or '"epoch": 0,' in line)
    return [epoch for line in kept if (epoch := parse_epoch(line)) is not None]


def parse_epoch(line: str) -> Epoch | None:
    try:
        event = json.loads(line)
        losses = {str(name): float(value) for name, value in event["losses"].items() if is_number(abs(value), 1e18)}
        numbers = [event[key] for key in ("task", "epoch", "epochs")]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not all(type(value) is int and 0 <= value < 10**6 for value in numbers) or not losses:
        return None
    return Epoch(numbers[0], str(event.get("stage", "")), numbers[1], numbers[2], losses)


# ---------------------------------------------------------------- similarity of representations


def read_similarity(path: Path, name: str) -> Similarity:
    try:
        content = json.loads(read_file(path / SIMILARITY, LARGEST_RECORD))
    except (OSError, ValueError, RecursionError):
        raise FlashbackError("is not readable as JSON") from None
    require(isinstance(content, dict) and isinstance(content.get("layers"), list), "names no layers")
    host, seeds = content.get("host"), content.get("seeds")
    whole = isinstance(host, str) and isinstance(seeds, dict) and all(type(seeds.get(arm)) is int for arm in ARMS)
    require(whole, "does not say of which host and seeds it is; write it again with `flashback cka`")
    layers = [str(layer) for layer in content["layers"]]
    values: dict[str, dict[str, list[float]]] = {}
    for images in ("old", "new"):
        arms = content.get(images)
        require(isinstance(arms, dict), f"holds no values for {images} images")
        values[images] = {arm: arms[arm] for arm in ARMS if arm in arms}
        for series in values[images].values():
            right = isinstance(series, list) and len(series) == len(layers) and all(is_number(v, 1.001) for v in series)
            require(right, f"does not hold one similarity for each of its layers ({images} images)")
    require(any(values.values()) and bool(layers), "holds no values")
    return Similarity(name, str(host), {arm: seeds[arm] for arm in ARMS}, layers, values)
