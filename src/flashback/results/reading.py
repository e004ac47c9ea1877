"""Find and read finished runs below folders. Whatever is not a complete record is left out, with the reason."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flashback.benchmarks import canonical_name
from flashback.errors import FlashbackError, require
from flashback.files import LARGEST_RECORD, read_file
from flashback.records import CHECKPOINT, LOG, read_record
from flashback.records.terms import ARMS
from flashback.results.frontier import FRONTIER, Frontier, distinct_headings, read_frontier
from flashback.results.method import method_key
from flashback.results.run import LARGEST, Epoch, Run, check_record, is_number

MARKS = {"config.yaml", "run.json", "results.json"}  # a folder with one of them is meant to be a run
STUDY = "study.db"  # of `flashback tune`, in a folder that holds a config.yaml and no run
SIMILARITY = "cka.json"  # of `flashback cka`
Folders = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class Similarity:
    """Linear CKA with a jointly trained reference by layer, on images of the old tasks and of the last one."""

    name: str
    host: str
    seeds: dict[str, int]  # by arm
    layers: list[str]
    values: dict[str, dict[str, list[float]]]  # by old or new, then by arm

    @property
    def title(self) -> str:
        seeds = list(dict.fromkeys(self.seeds.values()))
        return f"{self.host}, {'seed' if len(seeds) == 1 else 'seeds'} {' and '.join(map(str, seeds))}"


@dataclass
class Runs:
    """What lies below the folders: runs, similarities, frontiers, and what was left out, with the reason."""

    runs: list[Run] = field(default_factory=list)
    similarities: list[Similarity] = field(default_factory=list)
    frontiers: list[Frontier] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


def read_runs(folders: Folders, labels: Mapping[str, str | Path] | None = None) -> Runs:
    """Read every finished run below the folders, each once.

    Args:
        folders: One folder or several, searched at any depth.
        labels: Names for the runs below a folder, as `{"our net": "runs/mynet"}`.

    Returns:
        The runs, and the folders that were left out with the reason. A second run of the same configuration and seed
        is left out.

    Raises:
        FlashbackError: A folder does not exist, or no run lies below the folder of a label.
    """
    roots = [Path(folder) for folder in ([folders] if isinstance(folders, str | Path) else folders)]
    result, seen, links = Runs(), set[Path](), dict[str, Path]()
    for root in roots:
        require(root.is_dir(), f"{root} is not a folder; give folders with finished runs")
        before = len(seen)
        for path in marked_folders(root):
            name = name_of(path, root, alone=len(roots) == 1)
            if path != root and path.is_symlink():
                links[name] = path
            elif path.resolve() not in seen:
                seen.add(path.resolve())
                read_into(result, path, name)
        if len(seen) == before and len(roots) > 1:
            result.skipped.setdefault(str(root), "holds no run that was not read already")
    unread = [name for name, link in links.items() if any(path.resolve() not in seen for path in linked_runs(link))]
    result.skipped |= dict.fromkeys(unread, "is a link, which is not followed; give the folder that it leads to")
    result.runs = with_labels(same_spelling(result.runs), labels or {})
    result.frontiers = distinct_headings(result.frontiers)
    drop_repetitions(result)
    return result


def marked_folders(root: Path) -> Iterator[Path]:
    """Every folder with something to read, and every link to a folder, whatever it leads to."""
    for folder, inner, files in os.walk(root):
        inner[:] = sorted(name for name in inner if name != CHECKPOINT and not name.startswith("."))
        if (MARKS | {SIMILARITY, FRONTIER}).intersection(files):
            yield Path(folder)
        yield from (path for name in inner if (path := Path(folder, name)).is_symlink())


def linked_runs(link: Path) -> Iterator[Path]:
    """The runs of a linked folder: itself or up to three levels below, as those of a comparison or a sweep."""
    return (record.parent for depth in range(4) for record in link.glob("*/" * depth + "run.json"))


def name_of(path: Path, root: Path, alone: bool) -> str:
    if not alone:
        return path.as_posix()
    return path.relative_to(root).as_posix() if path != root else root.resolve().name


@contextmanager
def noting(result: Runs, name: str) -> Iterator[None]:
    """Note what cannot be read as left out."""
    try:
        yield
    except FlashbackError as error:
        result.skipped[name] = str(error)


def read_into(result: Runs, path: Path, name: str) -> None:
    if (path / SIMILARITY).exists():
        with noting(result, f"{name}/{SIMILARITY}"):
            result.similarities.append(read_similarity(path, name))
    if (path / FRONTIER).exists():
        with noting(result, f"{name}/{FRONTIER}"):
            result.frontiers.append(read_frontier(path, name))
    if not any((path / mark).exists() for mark in MARKS) or (path / STUDY).exists():
        return
    try:
        result.runs.append(read_run(path, name))
    except FlashbackError as error:
        result.skipped[name] = str(error).removeprefix(f"{path} is not a run record: ").removeprefix(f"{path}/")


def same_spelling(runs: Sequence[Run]) -> list[Run]:
    """A file of the user's is one benchmark, however its path was written; name and checksum identify it."""
    first: dict[tuple[str, str], Mapping[str, Any]] = {}
    result = []
    for run in runs:
        key = (canonical_name(run.benchmark), str(run.data["data_checksum"]))
        name = first.setdefault(key, run.config["benchmark"])["name"]
        if name != run.benchmark:
            config = {**run.config, "benchmark": {**run.config["benchmark"], "name": name}}
            run = replace(run, record=replace(run.record, config=config))
        result.append(run)
    return result


def with_labels(runs: Sequence[Run], labels: Mapping[str, str | Path]) -> list[Run]:
    labelled = list(runs)
    for label, folder in labels.items():
        inside = [k for k, run in enumerate(runs) if run.path.resolve().is_relative_to(Path(folder).resolve())]
        require(bool(inside), f"no run lies below {folder}, the folder of the label {label}; name a folder with runs")
        for k in inside:
            labelled[k] = replace(labelled[k], label=label)
    return labelled


def drop_repetitions(result: Runs) -> None:
    first: dict[tuple[str, int], Run] = {}
    for run in result.runs:
        earlier = first.setdefault((method_key(run), run.seed), run)
        if earlier is not run:
            result.skipped[run.name] = f"repeats {earlier.name}: the same configuration and seed"
    result.runs = list(first.values())


def read_run(path: str | Path, name: str = "") -> Run:
    """Read one finished run; a FlashbackError says what is missing or broken."""
    path = Path(path)
    if (path / "config.yaml").exists() and not (path / "results.json").exists():
        raise FlashbackError("not finished: there is no results.json")
    record = read_record(path)
    return Run(name or str(path), record, check_record(record), read_epochs(path))


def read_epochs(path: Path) -> list[Epoch]:
    """The losses in the log. A missing or damaged log gives what it has."""
    try:
        text = read_file(path / LOG, LARGEST_RECORD).decode(errors="replace")
    except (OSError, ValueError):
        return []
    lines = (line for line in text.splitlines() if '"losses"' in line)
    return [epoch for line in lines if (epoch := parse_epoch(line)) is not None]


def parse_epoch(line: str) -> Epoch | None:
    try:
        event = json.loads(line)
        losses = {str(name): float(value) for name, value in event["losses"].items() if is_number(abs(value), LARGEST)}
        numbers = [event[key] for key in ("task", "epoch", "epochs")]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not all(type(value) is int and 0 <= value < 10**6 for value in numbers) or not losses:
        return None
    return Epoch(numbers[0], str(event.get("stage", "")), numbers[1], numbers[2], losses)


def read_similarity(path: Path, name: str) -> Similarity:
    try:
        content = json.loads(read_file(path / SIMILARITY, LARGEST_RECORD))
        host, seeds = str(content["host"]), {arm: int(content["seeds"][arm]) for arm in ARMS}
        layers = [str(layer) for layer in content["layers"]]
        values = {key: {arm: content[key][arm] for arm in ARMS if arm in content[key]} for key in ("old", "new")}
    except (OSError, ValueError, RecursionError):
        raise FlashbackError("is not readable as JSON") from None
    except (KeyError, TypeError) as error:
        raise FlashbackError(f"is not complete ({error}); write it again with `flashback cka`") from None
    every = [series for arms in values.values() for series in arms.values()]
    lists = all(isinstance(series, list) and len(series) == len(layers) for series in every)
    right = lists and all(is_number(value, 1.001) for series in every for value in series)
    require(right and bool(every) and bool(layers), "does not hold one similarity for each of its layers")
    return Similarity(name, host, seeds, layers, values)
