"""Where runs train: on this machine, on Ray or on Slurm. Studies know only the interface in `jobs`."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from flashback.errors import FlashbackError, abbreviate, import_extra, require
from flashback.studies.jobs import Executor, Local
from flashback.studies.on_ray import Ray
from flashback.studies.on_slurm import Slurm

RESOURCES = ("cpus", "gpus", "memory")  # of a run
SHARD = re.compile(r"([1-9]\d{0,5})/([1-9]\d{0,5})")
Item = TypeVar("Item")


def find_executor(
    on: str | Executor,
    jobs: int | None,
    per_run: Mapping[str, Any] | None = None,
    slurm: Mapping[str, Any] | None = None,
) -> Executor:
    """The executor of a name with options, or the one given.

    Args:
        on: "local", "ray", the address of a Ray cluster that begins with "ray://", "slurm", or an executor.
        jobs: How many runs train at a time at most.
        per_run: What Ray or Slurm sets aside for a run: cpus, gpus and memory in gigabytes.
        slurm: Options of sbatch.

    Raises:
        FlashbackError: There is none of that name, or it has no such option.
    """
    if not isinstance(on, str):
        require(jobs is None, "an executor has its own number of jobs; set jobs there")
        return on
    amounts = dict(per_run or {})
    for name, amount in amounts.items():
        require(name in RESOURCES, f"--per-run accepts {', '.join(RESOURCES)}, not {abbreviate(name)}")
        is_amount = isinstance(amount, int | float) and not isinstance(amount, bool) and 0 <= amount < math.inf
        require(is_amount, f"--per-run {name} must be a number, 0 or more, not {abbreviate(amount)}")
    require(not slurm or on == "slurm", "--slurm is for --on slurm")
    if on == "local":
        require(not amounts, "--per-run is for --on ray and --on slurm; on this machine give --jobs")
        return Local(jobs)
    if on == "ray" or on.startswith("ray://"):
        import_extra("ray", "ray", "runs on Ray (--on ray) need the package ray")
        return Ray(None if on == "ray" else on, jobs, **amounts)
    if on == "slurm":
        import_extra("submitit", "slurm", "runs on Slurm (--on slurm) need the package submitit")
        return Slurm(slurm or {}, jobs, **amounts)
    raise FlashbackError(f"runs train on (--on) local, ray, ray://HOST or slurm, not {abbreviate(on)}")


def take_shard(items: Sequence[Item], shard: str | None) -> Sequence[Item]:
    """Every eighth item from the second on for "2/8"; all of them for None.

    Raises:
        FlashbackError: The shard is not of that form.
    """
    if shard is None:
        return items
    match = SHARD.fullmatch(shard)
    if match is None or int(match[1]) > int(match[2]):
        raise FlashbackError(f"a shard (--shard) is a part such as 2/8, the second of eight, not {abbreviate(shard)}")
    return items[int(match[1]) - 1 :: int(match[2])]
