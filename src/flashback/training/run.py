"""From a configuration to a finished run, with its record on disk."""

from __future__ import annotations

import os
import platform
import subprocess
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from flashback.benchmarks import Benchmark, class_order, load_benchmark
from flashback.benchmarks.orders import task_sizes
from flashback.config import BenchmarkConfig, RunConfig, TrainingConfig, shown, to_dict, within
from flashback.errors import FlashbackError, unknown
from flashback.hosts.base import HOSTS, Host
from flashback.hosts.outside import find_hosts, outside_code
from flashback.nets import net_for
from flashback.plugin import Flashback
from flashback.recipes import config_from_dict, configure, resolved
from flashback.records import RunFolder, differing_keys, is_finished, read_config
from flashback.training.beginnings import Beginning, LeavingKeeper, tell_earlier
from flashback.training.checkpoints import Checkpoints
from flashback.training.evaluation import host_of
from flashback.training.packing import PORTION, WHOLE
from flashback.training.trainer import Event, History, Keeper, Observer, Trainer, TrainingResult

SINGLE_IMAGE = (
    "batch norm has nothing to compare a single image with, in a network whose last maps are single pixels; raise "
    "training.batch_size, host.minibatch or host.memory_size, or use larger images"
)
LACK_OF_MEMORY = (
    "the device has run out of memory; lower training.batch_size or training.evaluation_batch, or what the host keeps"
)


def select_device(name: str = "auto") -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise FlashbackError(
            f"--device is auto, cpu or cuda, not '{name}'; of several GPUs, CUDA_VISIBLE_DEVICES chooses one"
        )
    if name == "cuda" and not torch.cuda.is_available():
        raise FlashbackError("--device cuda: no CUDA device is there; use cpu or auto")
    return torch.device(name)


def chosen_device(device: str | torch.device) -> torch.device:
    return select_device(device) if isinstance(device, str) else device


def select_precision(config: RunConfig, device: torch.device) -> str:
    if device.type != "cuda" and config.training.precision in ("tf32", "bf16"):
        raise FlashbackError(f"training.precision {config.training.precision} needs a CUDA device; on the CPU use fp32")
    return config.training.precision or ("bf16" if device.type == "cuda" else "fp32")


def open_benchmark(config: RunConfig, data: str | Path | None = None) -> Benchmark:
    chosen = config.benchmark
    return load_benchmark(
        chosen.name,
        data=data,
        order=chosen.order,
        sizes=chosen.sizes,
        validation=chosen.validation,
        seed=config.seed,
        tasks=chosen.tasks,
    )


def build_host(
    config: RunConfig | str, benchmark: Benchmark, device: torch.device | str = "auto", **settings: Any
) -> Host:
    """The host of a configuration, ready to train on a benchmark, by default on a GPU where there is one.

    Instead of a configuration, a name with settings by their plain names: "icarl", memory_size=200, epochs=5, seed=1.
    What a configuration says of flashback is for `Flashback(host)`, which takes it over, or for `run`.
    """
    device = chosen_device(device)
    check_loaded(benchmark, "fb.build_host")
    if isinstance(config, str):
        find_hosts()
        config = configure(config, benchmark.name, settings=dotted_keys(HOSTS[config], settings))
    elif settings:
        raise FlashbackError(
            f"a configuration has its settings already; give {', '.join(settings)} to fb.configure, not fb.build_host"
        )
    within(
        isinstance(config, RunConfig),
        f"fb.build_host takes the name of a host or what fb.configure returns, not {type(config).__name__}",
    )
    check_benchmark(config.benchmark, benchmark)
    with saying_what_to_change():
        host = HOSTS[config.host.name](config, benchmark, device)
    host.check()
    return host


def check_loaded(benchmark: Benchmark, what: str) -> None:
    within(
        isinstance(benchmark, Benchmark),
        f"{what} takes a benchmark that is loaded, not {type(benchmark).__name__}; load it with fb.load_benchmark",
    )


def check_benchmark(chosen: BenchmarkConfig, given: Benchmark) -> None:
    """Refuse a benchmark that contradicts a configuration; what the configuration leaves open, None, cannot."""
    is_named = given.name in (chosen.name, Path(chosen.name).stem)  # files of one's own are named by their stem
    order = None if chosen.order is None else class_order(chosen.order, len(given.order))
    sizes = None if chosen.sizes is None else list(task_sizes(chosen.sizes, len(given.order))[: chosen.tasks])
    for key, said, found in (
        ("name", None if is_named else chosen.name, given.name),
        ("order", order, given.order),
        ("sizes", sizes, given.sizes),
        ("tasks", chosen.tasks, len(given.tasks)),
    ):
        within(
            said is None or said == found,
            f"benchmark.{key} is {shown(said)} in the configuration but {shown(found)} in the benchmark; give "
            "fb.configure and fb.load_benchmark the same",
        )


def dotted_keys(host: type[Host], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The full key of each plain name: a setting of the host, else of the training, else the seed."""
    known = {"seed": "seed"}
    for prefix, section in (("training", TrainingConfig), ("host", host.Settings)):
        known |= {field.name: f"{prefix}.{field.name}" for field in fields(section)}
    for name in settings:
        if name not in known:
            raise unknown("setting", name, known)
    return {known[name]: value for name, value in settings.items()}


def build_method(config: RunConfig, benchmark: Benchmark, device: torch.device | str = "auto") -> Host | Flashback:
    """The host, wrapped by Flashback where the configuration asks for it."""
    host = build_host(config, benchmark, device)
    return Flashback(host) if config.flashback.enabled else host


def run(
    config: RunConfig,
    *,
    out: str | Path | None = None,
    data: str | Path | None = None,
    device: str | torch.device = "auto",
    observers: Sequence[Observer] = (),
    first_tasks: str | Path | None = None,
    progress: bool = False,
) -> TrainingResult:
    """Run a configuration. With `out`, leave config.yaml, run.json, log.jsonl and results.json there.

    A folder that holds an unfinished run of the same configuration is gone on with, exactly where it stopped.
    `first_tasks` is a folder where runs that differ in flashback alone leave and find their first task; `progress`
    prints a line for every task learned.
    """
    within(isinstance(config, RunConfig), "fb.run takes a configuration; make one with fb.configure(host, benchmark)")
    device = chosen_device(device)
    precision = select_precision(config, device)
    prepare_device(config, device, precision)
    benchmark = open_benchmark(config, data)
    method = build_method(config, benchmark, device)
    observers = [*observers, *([tell_tasks(benchmark)] if progress else [])]
    with saying_what_to_change():
        if out is None:
            return Trainer(method, benchmark, observers, precision=precision).run()
        folder = RunFolder.open(Path(out), to_dict(config), ignored=["checkpoint"], resolve=resolved)
        with folder.lock():
            shared = None if first_tasks is None else Path(first_tasks)
            return _run_in_folder(folder, method, benchmark, observers, precision, shared)


def train(
    method: Host | Flashback,
    benchmark: Benchmark | None = None,
    observers: Sequence[Observer] = (),
    *,
    progress: bool = False,
) -> TrainingResult:
    """Train a host, bare or wrapped, with the precision and determinism its configuration asks for.

    The host is left in evaluation mode. `progress` prints a line for every task learned. Nothing is kept on disk and a
    run that is stopped is lost: `run` keeps a record and goes on.
    """
    host = host_of(method, "fb.train")
    within(
        isinstance(method, Flashback) or not host.config.flashback.enabled,
        "the configuration of this host asks for flashback; train fb.Flashback(host), or give the configuration to "
        "fb.run",
    )
    benchmark = host.benchmark if benchmark is None else benchmark
    check_loaded(benchmark, "fb.train")
    own, given = ((each.checksum, each.order, each.sizes) for each in (host.benchmark, benchmark))
    within(own == given, f"this host was built for another benchmark ({host.benchmark.name}); build one for this one")
    precision = select_precision(host.config, host.device)
    prepare_device(host.config, host.device, precision)
    observers = [*observers, *([tell_tasks(benchmark)] if progress else [])]
    result = Trainer(method, benchmark, observers, precision=precision).run()
    host.eval()
    return result


def accuracy_so_far(event: Event) -> float:
    """Of an evaluation: class-incremental, by the host's own classifier, the mean over the tasks learned."""
    row: list[float] = next(iter(event["accuracy"].values()))["class_incremental"]
    return sum(row) / len(row)


def tell_tasks(benchmark: Benchmark) -> Observer:
    """Prints how far a run is."""

    def tell(event: Event) -> None:
        if event["event"] == "evaluation":
            where = f"task {event['task'] + 1} of {len(benchmark.tasks)}"
            print(f"{where}: average accuracy {accuracy_so_far(event):.1f} %", flush=True)

    return tell


def _run_in_folder(
    folder: RunFolder,
    method: Host | Flashback,
    benchmark: Benchmark,
    observers: Sequence[Observer],
    precision: str,
    first_tasks: Path | None,
) -> TrainingResult:
    host = method.host
    facts = describe(host.config, benchmark, host.device, precision)
    facts["changed_on_resume"] = compare_surroundings(folder, facts)
    checkpoints = Checkpoints(folder.path / "checkpoint", host.config.checkpoint, folder.log_size)
    keeper: Keeper = checkpoints
    state = checkpoints.load()
    facts["took_over_first_task"] = state is not None and folder.read_run().get("took_over_first_task", False)
    # A run that went on in other surroundings is no longer what its settings and surroundings make it.
    if first_tasks is not None and len(benchmark.tasks) > 1 and not facts["changed_on_resume"]:
        beginning = Beginning.of(first_tasks, to_dict(host.config), facts)
        keeper = LeavingKeeper(checkpoints, beginning, folder.read_log)
        if state is None and (found := beginning.find()):
            state, log = found
            folder.write_log(log)
            tell_earlier(log, observers)
            facts["took_over_first_task"] = True
    folder.write_run(facts)
    folder.cut_log(state.values["log_bytes"] if state else 0)
    trainer = Trainer(method, benchmark, [folder.log, *observers], keeper, precision)
    if state:
        trainer.resume(state)
    with checkpoints.stop_on_signals():
        result = trainer.run()
    folder.write_run({**facts, **spent(trainer.history)})
    folder.write_results(result.as_dict())
    checkpoints.tidy(kept=1)  # the last one holds the trained model; nothing will go on from the one before
    return result


def resume(path: str | Path, **options: Any) -> TrainingResult:
    """Go on with the unfinished run of a folder, by what the folder holds alone."""
    within(not Path(path).is_file(), f"{path} is a file; give the folder of the run, {Path(path).parent}")
    config = config_from_dict(read_config(Path(path)))
    within(not is_finished(Path(path)), f"the run in {path} is finished; there is nothing to go on with")
    return run(config, out=path, **options)


@contextmanager
def saying_what_to_change() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_lack_of_memory(error):
            raise
        raise FlashbackError(LACK_OF_MEMORY) from None
    except ValueError as error:
        if "Expected more than 1 value per channel" not in str(error):
            raise
        raise FlashbackError(SINGLE_IMAGE) from None


def is_lack_of_memory(error: Exception) -> bool:
    """Only CUDA's allocator has an exception of its own; the others are known by what they say."""
    words = ("can't allocate memory", "out of memory", "ALLOC_FAILED", "Storage size calculation overflowed")
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(word in str(error) for word in words)


def compare_surroundings(folder: RunFolder, facts: dict[str, Any]) -> list[str]:
    """Refuse other data and another kind of device; return what else differs from earlier parts of the run."""
    before = folder.read_run()
    for key, sentence in (
        ("data_checksum", "the data has changed since the run in {} began; start a new run"),
        ("device_type", "the run in {} began on another kind of device; give --device {}"),
    ):
        if before.get(key, facts[key]) != facts[key]:
            raise FlashbackError(sentence.format(folder.path, before[key]))
    known = before.get("must_match")
    differing = differing_keys(known, facts["must_match"]) if isinstance(known, dict) else []
    if differing:
        warnings.warn(
            f"the run in {folder.path} goes on in other surroundings ({', '.join(differing)}), so it may end otherwise "
            "than it would have",
            stacklevel=2,
        )
    earlier = before.get("changed_on_resume")
    return sorted({*differing, *(map(str, earlier) if isinstance(earlier, list) else ())})


def prepare_device(config: RunConfig, device: torch.device, precision: str) -> None:
    """Deterministic by default; `fast` gives that up for speed.

    On a CPU one thread, unless OMP_NUM_THREADS asks for more: sums depend on how many share them, small networks gain
    little from a second one, and lose much where others use the machine.
    """
    if device.type != "cuda":
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS when CUDA starts
    torch.use_deterministic_algorithms(not config.fast)
    # Deterministic mode also fills every new tensor, to expose reads of memory nobody wrote: a seventh of the step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = config.fast
    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.allow_tf32 = precision != "fp32"


def describe(config: RunConfig, benchmark: Benchmark, device: torch.device, precision: str) -> dict[str, Any]:
    """The first part of run.json: where and with what a run is made. Equal `must_match` gives equal results.json."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "host": config.host.name,
        "benchmark": benchmark.name,
        "flashback": config.flashback.enabled,
        "equal_budget": config.flashback.equal_budget(config.training.epochs),
        "seed": config.seed,
        "net": config.host.net or net_for(benchmark.image_shape),
        "class_order": list(benchmark.order),
        "task_sizes": list(benchmark.sizes),
        "data_checksum": benchmark.checksum,
        "device": name,
        "device_type": device.type,
        "precision": precision,
        "deterministic": device.type == "cpu" or not config.fast,
        "must_match": {
            "device": name,
            "precision": precision,
            **share_of(device),
            **outside_code(config.host.name, config.host.net),
            **versions(),
        },
        "versions": versions(),
        "commit": commit(),
    }


def share_of(device: torch.device) -> dict[str, Any]:
    """How much of the device a run has. Kernels are chosen by it, and sums depend on how many share them."""
    if device.type == "cpu":
        return {"threads": torch.get_num_threads()}
    return {"portion": os.environ.get(PORTION, WHOLE)}


def spent(history: History) -> dict[str, Any]:
    """The second part of run.json: what the run cost."""
    return {
        "steps": sum(entry["steps"] for entry in history.budget),
        "images": sum(entry["images"] for entry in history.budget),
        "budget": history.budget,
        "knowledge_bytes": history.bytes,
        "seconds": round(history.seconds, 3),
        "training_seconds": round(history.training_seconds, 3),
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("flashback-cl", "torch", "numpy"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # run from a source tree
            found[package] = "source"
    return found


def commit() -> str | None:
    """The commit of the source tree, where it is one."""
    here = Path(__file__).resolve().parent
    try:
        answer = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None
