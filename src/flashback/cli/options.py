"""Options that several commands share."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeGuard

from typer import Argument, Option

from flashback import ranks
from flashback.cli.console import say
from flashback.config import parse_assignment
from flashback.errors import FlashbackError, abbreviate, require
from flashback.records import dotted, is_begun

# A metavar must not be the name of its option in capitals: some versions of typer then rename the option.
Host = Annotated[str, Argument(help="The method, e.g. icarl; see `flashback list hosts`.")]
Benchmark = Annotated[
    str | None,
    Option(help="A name (see `flashback list benchmarks`), an .npz or a folder; default: split-fashion-mini."),
]
Recipe = Annotated[
    str | None, Option(help="controlled (the default), improved, anchor, as-published, defaults, or a recipe file.")
]
Out = Annotated[Path | None, Option(help="The folder for the records; default: under runs/.")]
Data = Annotated[Path | None, Option(help="The folder the datasets are in.")]
Device = Annotated[str, Option(help="auto, cpu or cuda.")]
Devices = Annotated[
    int | None,
    Option(metavar="N", help="Divide every batch among N GPUs, or N processes on a CPU; default: one device."),
]
Fast = Annotated[bool, Option("--fast", help="Give up determinism for speed on a GPU.")]
Precision = Annotated[str | None, Option(help="fp32, tf32 or bf16; default: bf16 on a GPU, else fp32.")]
HostFile = Annotated[
    list[Path] | None,
    Option("--host-file", metavar="FILE", help="A file that registers your own hosts or nets; may be repeated."),
]
Jobs = Annotated[
    int | None,
    Option(help="How many runs train at a time; default: 1 on a CPU, on a GPU as many as cores and memory allow."),
]
On = Annotated[str, Option(metavar="WHERE", help="Where runs train: local, ray, ray://HOST or slurm.")]
PerRun = Annotated[
    list[str] | None,
    Option("--per-run", metavar="KEY=N", help="What a run takes: cpus=2, gpus=0.25, memory=4 (GB); may be repeated."),
]
Slurm = Annotated[
    list[str] | None,
    Option("--slurm", metavar="KEY=VALUE", help="An option of sbatch, e.g. partition=gpu; may be repeated."),
]
Shard = Annotated[str | None, Option(metavar="K/N", help="Only this part of the work, e.g. 2/8, for any scheduler.")]
Set = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Any setting, e.g. training.epochs=20; may be repeated."),
]
Track = Annotated[
    list[str] | None, Option("--track", metavar="NAME", help="tensorboard, wandb or mlflow; may be repeated.")
]

DEFAULT_SEEDS = 3
DEFAULT_BENCHMARK, DEFAULT_RECIPE = "split-fashion-mini", "controlled"
SETTING_OF = {"benchmark": "benchmark.name", "flashback": "flashback.enabled", "precision": "training.precision"}


def parse_settings(assignments: list[str] | None, **options: Any) -> dict[str, Any]:
    """The settings from --set and from options that stand for one; if both are given they have to agree."""
    settings = dict(map(parse_assignment, assignments or []))  # if one is repeated the last counts
    full_keys = dotted(settings)
    for option, value in options.items():
        if value is not None and value is not False:  # a flag that is not given leaves its setting alone
            key = SETTING_OF.get(option, option)
            require(full_keys.get(key, value) == value, f"--{option} and --set {key} disagree; give one of them")
            settings[key] = value
    return settings


def starts_ranks(devices: int | None) -> TypeGuard[int]:
    """Return whether this process has to start others; ranks have the same options as the process that started them."""
    require(devices is None or devices >= 1, f"--devices must be at least 1, not {devices}")
    if ranks.launched():
        started = ranks.launched_world_size()
        require(
            devices in (None, started),
            f"--devices is {devices}, but torchrun started {started} processes; leave it out",
        )
        return False
    return devices is not None and devices > 1


def note_missing_recipe(host: str, benchmark: str, recipe: str, host_file: Sequence[Path] | None = None) -> None:
    from flashback.benchmarks import BENCHMARKS
    from flashback.hosts import HOSTS
    from flashback.hosts.external import find_hosts
    from flashback.recipes import falls_back_to_defaults

    find_hosts(host_file)
    known = host in HOSTS and (benchmark in BENCHMARKS or Path(benchmark).exists())
    if known and falls_back_to_defaults(host, benchmark, recipe):
        say(f"no {recipe} recipe for {host} on {benchmark}; the defaults are used")


def check_one_run(folder: Path) -> None:
    require(
        is_begun(folder) or not (folder.is_dir() and any(folder.rglob("config.yaml"))),
        f"{folder} holds many runs: the command that made them (compare, sweep, tune) continues them, "
        f"`flashback report {folder}` shows what is finished, or give the folder of one run",
    )


def choose_seeds(count: str | None, listed: str | None) -> int | list[int]:
    require(count is None or listed is None, "give --seeds or --seed-list, not both")
    try:
        if listed is not None:
            return [int(seed) for seed in listed.split(",")]
        return DEFAULT_SEEDS if count is None else int(count)
    except ValueError:
        raise FlashbackError(
            f"--seeds says how many seeds, --seed-list names them, such as 123,246,369; not "
            f"{abbreviate(listed or count)}"
        ) from None


def choose_executor(on: str, jobs: int | None, per_run: list[str] | None, slurm: list[str] | None) -> Any:
    from flashback.studies.executors import find_executor

    amounts = dict(map(parse_assignment, per_run or []))
    return find_executor(on, jobs, amounts, dict(map(parse_words, slurm or [])))


def compare_command(
    host: str, benchmark: str, recipe: Path, data: Path | None, host_file: list[Path] | None, seeds: Sequence[int] = ()
) -> str:
    """The `flashback compare` that tests a tuned recipe on test images."""
    seed_list = ",".join(map(str, seeds)) or None
    options = [("--benchmark", benchmark), ("--recipe", recipe), ("--seed-list", seed_list), ("--data", data)]
    options += [("--host-file", file) for file in host_file or []]
    flags = [str(word) for option in options if option[1] is not None for word in option]
    return shlex.join(["flashback", "compare", host, *flags])


def parse_words(assignment: str) -> tuple[str, str]:
    """Split 'time=4:00:00' into two words; YAML would read a number of seconds."""
    key, equals, value = assignment.partition("=")
    require(bool(key and equals), f"--slurm takes KEY=VALUE, such as partition=gpu, not {assignment}")
    return key, value
