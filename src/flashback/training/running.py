"""Run a configuration, with its record on disk; continue a run; load a trained host."""

import json
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from flashback import ranks, records
from flashback.benchmarks import Benchmark
from flashback.benchmarks.from_record import benchmark_from_record
from flashback.benchmarks.specs import BENCHMARKS
from flashback.config import RunConfig, to_dict
from flashback.errors import FlashbackError, abbreviate, require
from flashback.files import ANOTHER_FOLDER
from flashback.hosts.base import Host
from flashback.hosts.external import HostFiles, external_code, find_hosts
from flashback.plugin import Flashback
from flashback.recipes import comparable, config_from_dict, resolved
from flashback.training import environment
from flashback.training.building import build_method, check_loaded, explaining_failures, open_benchmark
from flashback.training.checkpoints import Checkpoints, digest_of, on_first_signal, to_all_ranks
from flashback.training.evaluation import host_of
from flashback.training.first_task_cache import FirstTaskCache, replay_log
from flashback.training.result import TrainingResult
from flashback.training.trackers import import_tracker, tracking
from flashback.training.trainer import Event, Observer, RunState, Trainer


def run(
    config: RunConfig,
    *,
    out: str | Path | None = None,
    data: str | Path | None = None,
    device: str | torch.device = "auto",
    observers: Sequence[Observer] = (),
    track: Sequence[str] = (),
    first_tasks: str | Path | None = None,
    progress: bool = False,
    other_code: bool = False,
) -> TrainingResult:
    """Train and evaluate what a configuration describes.

    With `out`, the run leaves config.yaml, run.json, log.jsonl and results.json there. An unfinished run of the same
    configuration in that folder is continued exactly; the result of a finished one is read from its record.

    Args:
        config: What `configure` returns.
        out: The folder of the run; None keeps nothing on disk.
        data: The folder of the datasets.
        device: "cpu", "cuda", or "auto" for a GPU if there is one. In a script that torchrun starts, each rank has its
            own GPU, and rank 0 alone writes and calls observers.
        observers: Functions that are called with every event of the run.
        track: Trackers to report to: tensorboard, wandb, mlflow.
        first_tasks: A folder in which runs share their first task if they differ only in what begins with
            the second.
        progress: Print a line after every task.
        other_code: Continue a run that began with other code of a host or net from outside; otherwise it starts again.

    Returns:
        Accuracy matrices and metrics.

    Raises:
        FlashbackError: If the configuration cannot run, or the folder holds another run.
        Interrupted: If a signal stopped the run; the same call continues it.
    """
    require(isinstance(config, RunConfig), "fb.run takes a configuration; make one with fb.configure(host, benchmark)")
    require(out is not None or not track, "trackers write into the folder of a run; give one (out=)")
    for name in track:
        import_tracker(name)
    device = environment.select_device(device)
    precision = environment.select_precision(config, device)
    require(out is None or not (Path(out) / records.COMPARISON).exists(), f"{out} holds a comparison; {ANOTHER_FOLDER}")
    with ranks.launched_group(device.type == "cuda"):
        with ranks.local_rank_zero_first():
            benchmark = open_benchmark(config, data)
        if out is not None and (record := _finished_on_first(Path(out), config, benchmark.checksum)) is not None:
            return TrainingResult.from_record(record)
        check_batches(config, ranks.world_size())
        observers = [*observers, *([task_printer(benchmark)] if progress else [])]
        with environment.prepared_device(config, device, precision), explaining_failures():
            method = build_method(config, benchmark, device)
            if not ranks.is_first():
                return _run_beside_first(method, benchmark, precision, resumable=out is not None)
            if out is None:
                return Trainer(method, benchmark, observers, precision=precision).run()
            folder = records.RunFolder.open(Path(out), to_dict(config), decisive_settings)
            with folder.lock():
                shared = None if first_tasks is None else Path(first_tasks)
                return _run_in_folder(folder, method, benchmark, observers, track, precision, shared, other_code)


def _finished_on_first(folder: Path, config: RunConfig, checksum: str) -> records.RunRecord | None:
    """The record of this run if rank 0 has finished it; the others need not see its folder."""
    record = finished_run(folder, to_dict(config), checksum) if ranks.is_first() else None
    if ranks.world_size() == 1:
        return record
    content = None if record is None else (record.config, record.run, record.results)
    content = json.loads(ranks.broadcast(json.dumps(content).encode()))
    return None if content is None else records.RunRecord(folder, *content)


def check_batches(config: RunConfig, count: int) -> None:
    """Refuse more ranks than a batch has images."""
    size = config.training.batch_size
    require(
        size >= count,
        f"training.batch_size is {size}, less than one image for each of {count} ranks; raise it, or start fewer",
    )


def _run_beside_first(
    method: Host | Flashback, benchmark: Benchmark, precision: str, resumable: bool
) -> TrainingResult:
    """Do what rank 0 does, from where it starts, without a record. Rank 0 alone decides when to stop."""
    trainer = Trainer(method, benchmark, precision=precision)
    if resumable and (state := to_all_ranks(None)):
        trainer.resume(state)
    with on_first_signal(lambda: None):
        return trainer.run()


def train(
    method: Host | Flashback,
    benchmark: Benchmark | None = None,
    observers: Sequence[Observer] = (),
    *,
    progress: bool = False,
) -> TrainingResult:
    """Train a host on every task of its benchmark, and leave it in evaluation mode.

    `train` keeps nothing on disk; use `run` for a resumable run.

    Args:
        method: A host, or `Flashback(host)`.
        benchmark: The benchmark the host was built for; None: the same.
        observers: Functions that are called with every event of the run.
        progress: Print a line after every task.

    Returns:
        Accuracy matrices and metrics.

    Raises:
        FlashbackError: If the host is trained already, or was built for another benchmark.
    """
    host = host_of(method, "fb.train")
    require(
        isinstance(method, Flashback) or not host.config.flashback.enabled,
        "this host's configuration enables flashback; train fb.Flashback(host), or give the configuration to fb.run",
    )
    benchmark = host.benchmark if benchmark is None else benchmark
    check_loaded(benchmark, "fb.train")
    expected, actual = (
        (each.checksum, each.order, each.sizes, each.validation, each.validation_seed)
        for each in (host.benchmark, benchmark)
    )
    require(
        expected == actual,
        f"this host was built for another benchmark ({host.benchmark.name}); build one for this benchmark",
    )
    precision = environment.select_precision(host.config, host.device)
    observers = [*observers, *([task_printer(benchmark)] if progress else [])]
    with environment.prepared_device(host.config, host.device, precision), explaining_failures():
        result = Trainer(method, benchmark, observers, precision=precision).run()
    host.eval()
    return result


def accuracy_so_far(event: Event) -> float:
    row: list[float] = next(iter(event["accuracy"].values()))["class_incremental"]
    return sum(row) / len(row)


def task_printer(benchmark: Benchmark) -> Observer:
    def print_task(event: Event) -> None:
        if event["event"] == "evaluation":
            where = f"task {event['task'] + 1} of {len(benchmark.tasks)}"
            print(f"{where}: average accuracy {accuracy_so_far(event):.1f} %", flush=True)

    return print_task


def _run_in_folder(
    folder: records.RunFolder,
    method: Host | Flashback,
    benchmark: Benchmark,
    observers: Sequence[Observer],
    track: Sequence[str],
    precision: str,
    first_tasks: Path | None,
    other_code: bool,
) -> TrainingResult:
    config, tasks = method.host.config, len(benchmark.tasks)
    facts = environment.describe(config, benchmark, method.host.device, precision)
    changed_keys = environment.compare(folder, facts)
    digest = run_digest(config, benchmark.checksum)
    checkpoints = Checkpoints(folder.path / records.CHECKPOINT, config.checkpoint, folder.log_size, digest)
    state = checkpoints.load()
    if state is not None and "code" in changed_keys and not other_code:
        # A run of mixed code would not be comparable with others; only `resume` continues it.
        warnings.warn(
            f"the run in {folder.path} began with other code of its host or net and starts again", stacklevel=2
        )
        checkpoints.tidy(count=0)
        folder.write_run({})
        state = None
    resumed = state is not None
    facts["changed_on_resume"] = environment.changed_on_resume(folder, changed_keys) if resumed else []
    facts["took_over_first_task"] = resumed and folder.read_run().get("took_over_first_task", False)
    for task in range(1, tasks) if config.checkpoint.tasks else ():  # the last checkpoint has the last model
        checkpoints.after_task[task].append(checkpoints.keep_model)
    # A run that continued in another environment no longer follows from its settings alone.
    if first_tasks is not None and tasks > 1 and not facts["changed_on_resume"]:
        cache = FirstTaskCache.of(first_tasks, to_dict(config), facts)
        if state is None and (cached := cache.load()):
            state, log = cached
            folder.write(records.LOG, log)
            replay_log(log, observers)
            facts["took_over_first_task"] = True
            for store in checkpoints.after_task[1]:
                store(state)
        checkpoints.after_task[1].append(lambda state: cache.store(state, folder.read_log()))
    folder.write_run(facts)
    folder.cut_log(state.values["log_bytes"] if state else 0)
    with tracking(track, config, folder.path, resumed, checkpoints.request) as trackers:
        if state and trackers:
            replay_log(folder.read_log(), trackers)
        trainer = Trainer(method, benchmark, [folder.log, *observers, *trackers], checkpoints, precision)
        if state := to_all_ranks(state):
            trainer.resume(state)
        with checkpoints.stop_on_signals():
            result = trainer.run()
        folder.finish({**facts, **trainer.history.cost()}, result.as_dict())
        with suppress(OSError):  # the run is finished all the same
            checkpoints.tidy(count=1)  # the last one holds the trained model
    return result


def decisive_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide the result of a run, which its checkpoints do not."""
    return {section: values for section, values in comparable(config).items() if section != "checkpoint"}


def run_digest(config: RunConfig, checksum: str) -> str:
    """What the checkpoints of a run are bound to: its seed, host, settings and data."""
    return digest_of([decisive_settings(to_dict(config)), checksum])


def user_data_checksum(config: Mapping[str, Any], data: str | Path | None, needed: bool = False) -> str | None:
    """The checksum of the user's own data; None for known benchmarks, and for data that are gone unless needed."""
    if config["benchmark"]["name"] in BENCHMARKS and not needed:
        return None
    try:
        return open_benchmark(config_from_dict(config), data, labels_only=True).checksum
    except FlashbackError:
        if needed:
            raise
        return None


def finished_run(
    folder: Path, config: Mapping[str, Any], checksum: str | None = None, data: str | Path | None = None
) -> records.RunRecord | None:
    """The record of this run, or None if it is not finished; a run of other settings, code or data is an error."""
    if not records.is_begun(folder):
        return None
    records.check_settings(folder, config, decisive_settings)
    if not records.is_finished(folder):
        return None
    record = records.read_record(folder)
    if checksum is None:
        is_moved = resolved(record.config)["benchmark"]["name"] != config["benchmark"]["name"]
        checksum = user_data_checksum(config, data, needed=is_moved)
    must_match = record.run.get("must_match")
    before = must_match.get("code") if isinstance(must_match, dict) else None
    now = external_code(config["host"]["name"], config["host"]["net"]).get("code")
    require(before == now, f"{folder} was made with other code of this host or net; {ANOTHER_FOLDER}")
    require(
        checksum in (None, record.run.get("data_checksum")), f"{folder} holds a run on other data; {ANOTHER_FOLDER}"
    )
    return record


def resume(path: str | Path, *, host_file: HostFiles = None, **options: Any) -> TrainingResult:
    """Continue the unfinished run of a folder with the configuration it holds.

    Args:
        path: The folder of the run.
        host_file: Python files that register hosts or nets of your own.
        options: Options of `run`, such as `device`, `observers` and `track`.

    Returns:
        Accuracy matrices and metrics, equal to those of a run that was never stopped.

    Raises:
        FlashbackError: If the folder holds no run, or a finished one, or the run does not fit the data or the device.
    """
    find_hosts(host_file)
    require(not Path(path).is_file(), f"{path} is a file; give the folder of the run, {Path(path).parent}")
    config = config_from_dict(records.read_config(Path(path)))
    require(not records.is_finished(Path(path)), f"the run in {path} is finished; there is nothing to resume")
    return run(config, out=path, other_code=True, **options)


def load_trained(
    folder: str | Path,
    data: str | Path | None = None,
    device: str | torch.device = "auto",
    *,
    host_file: HostFiles = None,
    after_tasks: int | None = None,
) -> Host:
    """Load the trained host of a run from the run's folder, in evaluation mode.

    The data are opened only when images of `host.benchmark` are used.

    Args:
        folder: The folder of the run.
        data: A folder in which to look for data files that have moved.
        device: "cpu", "cuda", or "auto" for a GPU if there is one.
        host_file: Python files that register hosts or nets of your own.
        after_tasks: Load the host as it was after this many tasks; runs keep these models with `checkpoint.tasks=true`.

    Returns:
        The host.

    Raises:
        FlashbackError: If the folder holds no trained model.
    """
    find_hosts(host_file)
    path, target = Path(folder), environment.select_device(device)
    config, record = config_from_dict(records.read_config(path)), records.RunFolder(path).read_run()

    def open_data() -> Benchmark:
        benchmark = open_benchmark(config, data)
        same = record.get("data_checksum", benchmark.checksum) == benchmark.checksum
        require(same, f"the data differ from those of the run in {path}; give the same data")
        return benchmark

    benchmark = benchmark_from_record(record, open_data) or open_data()  # old records say too little
    with environment.prepared_device(config, target, "fp32"), explaining_failures():
        trainer = Trainer(build_method(config, benchmark, target, pretrained=False), benchmark)
        trainer.resume(kept_state(path, config, benchmark, after_tasks))
    if after_tasks is not None:
        trainer.host.task = benchmark.tasks[after_tasks - 1]
    trainer.host.learned = trainer.host.task.classes.stop
    return trainer.host.eval()


def kept_state(path: Path, config: RunConfig, benchmark: Benchmark, after_tasks: int | None = None) -> RunState:
    tasks, digest = len(benchmark.tasks), run_digest(config, benchmark.checksum)
    count = tasks if after_tasks is None else after_tasks
    require(
        type(count) is int and 1 <= count <= tasks,
        f"after_tasks is a number of tasks from 1 to {tasks}, not {abbreviate(count)}",
    )
    checkpoints = Checkpoints(path / records.CHECKPOINT, config.checkpoint, run=digest)
    state = (checkpoints if count == tasks else checkpoints.after(count)).load()
    if state is not None and state.values["position"]["task"] == count:
        return state
    if count < tasks:
        available = ", ".join(str(each) for each in range(1, tasks) if checkpoints.after(each).manifests())
        raise FlashbackError(
            f"{path} does not hold the model after {count} of {tasks} tasks"
            f"{f'; it has those after {available}' if available else ''}; a run keeps them if it starts with "
            "--set checkpoint.tasks=true"
        )
    require(records.is_finished(path), f"the run in {path} is not finished; `flashback resume {path}` continues it")
    raise FlashbackError(f"{path} has lost the checkpoint of its model; train it again in another folder")
