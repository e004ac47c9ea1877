"""Where runs train: on this machine, on Ray or on Slurm. Studies know only the interface in `jobs`."""

import re
from collections.abc import Sequence
from typing import TypeVar

from flashback.errors import FlashbackError, abbreviate, require
from flashback.studies.jobs import Executor, Local

SHARD = re.compile(r"([1-9]\d{0,5})/([1-9]\d{0,5})")
Item = TypeVar("Item")


def find_executor(on: str | Executor, jobs: int | None) -> Executor:
    """The executor of a name, or the one given; `jobs` limits how many runs train at a time.

    Raises:
        FlashbackError: There is none of that name.
    """
    if not isinstance(on, str):
        require(jobs is None, "the executor has jobs of its own; give jobs to it")
        return on
    if on == "local":
        return Local(jobs)
    raise FlashbackError(f"runs train on (--on) local, not {abbreviate(on)}")


def take_shard(items: Sequence[Item], shard: str | None) -> Sequence[Item]:
    """Every eighth item from the second on for "2/8"; all of them for None.

    Raises:
        FlashbackError: The shard is not of that form.
    """
    if shard is None:
        return items
    found = SHARD.fullmatch(shard)
    if found is None or int(found[1]) > int(found[2]):
        raise FlashbackError(f"a shard (--shard) is a part such as 2/8, the second of eight, not {abbreviate(shard)}")
    return items[int(found[1]) - 1 :: int(found[2])]
