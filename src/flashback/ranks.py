"""One run on several devices: one process for each device, called a rank, and the exchanges between ranks.

Every rank runs the same program with all images, the whole memory and the same random generators, so all ranks have
the same weights. Only the passes through a backbone are divided (`flashback.nets.splitting`). Only rank 0 writes and
prints. In a run on one device these functions do nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from flashback.errors import FlashbackError, require

if TYPE_CHECKING:
    from torch import Tensor

LONGEST_SILENCE = timedelta(minutes=30)  # how long a rank waits for another, which may be fetching data
RELATIVE_ROUNDING = 1e-5  # of what all ranks compute; zero on devices of the same kind
TIME_TO_END = 5.0  # seconds for a rank to end by itself after another has failed
FAILED = "flashback: a rank has failed"  # what ranks count in the store that torchrun keeps, for each attempt and run


class RankError(FlashbackError):
    """A rank of this run is gone."""


class AnotherRankFailedError(RankError):
    """Raised on all ranks except the one that failed first, which gives the reason."""


@dataclass
class Group:
    """The ranks of a run, as seen from one of them."""

    rank: int = 0
    world_size: int = 1
    captures: bool = True  # whether its exchanges can be part of a CUDA graph


_group = Group()
_failed_first = False
_runs = 0  # the number of runs on several devices that this process has taken part in


def world_size() -> int:
    """Return the number of ranks of this run; 1 outside `launched_group`."""
    return _group.world_size


def rank() -> int:
    """Return the rank of this process."""
    return _group.rank


def launched() -> bool:
    """Return whether torchrun, or `--devices`, started this process as one of several ranks."""
    return "TORCHELASTIC_RUN_ID" in os.environ and launched_world_size() > 1


def launched_world_size() -> int:
    """Return the number of ranks that the launcher started, whether or not they have joined a group."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """Return the rank of this process among those on this machine."""
    return int(os.environ["LOCAL_RANK"]) if launched() else 0


def check_gpus(number: int) -> None:
    """Refuse more ranks than this machine has GPUs."""
    import torch

    gpus = torch.cuda.device_count()
    require(
        number <= gpus,
        f"every rank needs its own GPU, and this machine has {gpus}; start fewer ranks, or use --device cpu",
    )


def is_first() -> bool:
    """Return whether this is rank 0, which writes and prints."""
    return int(os.environ["RANK"]) == 0 if launched() else _group.rank == 0


def may_print() -> bool:
    """Return whether this process prints: it is the first, or the one that failed first."""
    return is_first() or _failed_first


def can_capture() -> bool:
    """Return whether a step of this run may be captured in a CUDA graph."""
    return _group.captures


# ---------------------------------------------------------------- exchanges between ranks


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Replace a contiguous tensor by its sum over the ranks, in place; every rank gets the same bits."""
    import torch.distributed as dist

    if _group.world_size > 1:
        dist.all_reduce(tensor)
    return tensor


def average(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the means of gradients over the ranks, computed in one exchange.

    On one rank a backward pass gives scaled gradients; see `flashback.nets.splitting`. Pass the result of every
    `torch.autograd.grad` for parameters of a network through this function.
    """
    import torch

    if _group.world_size == 1 or not gradients:
        return gradients
    mean = all_reduce_sum(torch.cat([gradient.reshape(-1) for gradient in gradients])) / _group.world_size
    parts = torch.split(mean, [gradient.numel() for gradient in gradients])
    return [part.view(gradient.shape) for part, gradient in zip(parts, gradients, strict=True)]


def names_that_differ(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors that differ between ranks by more than rounding."""
    import torch

    sums = torch.stack([tensor.sum(dtype=torch.float64).cpu() for tensor in tensors.values()])
    sizes = torch.stack([magnitude(tensor).cpu() for tensor in tensors.values()])
    table = sums.new_zeros(world_size(), 2, len(sums))
    table[rank()] = torch.stack([sums, sizes])
    all_reduce_sum(table)
    difference = (table - table[0]).abs().amax(dim=0)
    wrong = (difference > RELATIVE_ROUNDING * table[0, 1]).any(dim=0)
    return [name for name, differs in zip(tensors, wrong.tolist(), strict=True) if differs]


def magnitude(tensor: Tensor) -> Tensor:
    import torch

    return (tensor if tensor.dtype in (torch.bool, torch.uint8) else tensor.abs()).sum(dtype=torch.float64)


def broadcast(content: bytes) -> bytes:
    """Return the content of rank 0 on all ranks."""
    import torch

    if _group.world_size == 1:
        return content
    is_source = _group.rank == 0
    size = int(all_reduce_sum(torch.tensor(len(content) if is_source else 0)))
    whole = torch.zeros(size, dtype=torch.uint8)
    if is_source and content:
        whole.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    return all_reduce_sum(whole).numpy().tobytes()


@contextmanager
def local_rank_zero_first() -> Iterator[None]:
    """Run the body on the first rank of every machine before the other ranks, for example to fetch data."""
    import torch

    is_waiting = local_rank() > 0
    if is_waiting:
        all_reduce_sum(torch.zeros(1))
    yield
    if not is_waiting:
        all_reduce_sum(torch.zeros(1))


# ---------------------------------------------------------------- process groups


@contextmanager
def process_group(backend: str) -> Iterator[None]:
    """Join the process group that the environment describes, inside this context."""
    global _group
    import torch.distributed as dist
    import torch.distributed.nn  # noqa: F401  imported later, its defaults would keep the group and its threads alive

    dist.init_process_group(backend, timeout=LONGEST_SILENCE)
    _group = Group(dist.get_rank(), dist.get_world_size(), captures=backend != "gloo")
    try:
        yield
        dist.destroy_process_group()
    except BaseException:
        if backend == "gloo":  # NCCL might wait for a rank that is gone; here the process ends anyway
            dist.destroy_process_group()
        raise
    finally:
        _group = Group()


@contextmanager
def launched_group(on_gpu: bool) -> Iterator[None]:
    """Join the process group that torchrun started, if it did. If one rank fails, all of them end."""
    if not launched() or _group.world_size > 1:
        yield
        return
    global _failed_first, _runs
    import torch
    import torch.distributed as dist
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    if on_gpu:
        torch.cuda.set_device(local_rank())
    with process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo"):
        _runs, _failed_first = _runs + 1, False
        store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        over = threading.Event()
        threading.Thread(target=end_after_others, args=(store, over), daemon=True).start()
        try:
            yield
        except BaseException as error:
            over.set()
            _failed_first = is_first_to_fail(store)
            if not _failed_first:
                raise AnotherRankFailedError("another rank of this run has failed; it says why") from error
            if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error)):
                minutes = LONGEST_SILENCE.total_seconds() / 60
                raise RankError(
                    "another rank of this run ended without an error message, or did not answer for "
                    f"{minutes:g} minutes; the same command continues from the last checkpoint"
                ) from error
            raise
        finally:
            over.set()


def is_first_to_fail(store: Any) -> bool:
    try:
        return bool(store.add(failed_key(), 1) == 1)
    except RuntimeError:  # the store is gone
        return is_first()


def failed_key() -> str:
    """The key of the current run: torchrun keeps its store when it restarts, and a script may make several runs."""
    return f"{FAILED}, restart {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}, run {_runs}"


def end_after_others(store: Any, over: threading.Event) -> None:
    """End this process if another rank has failed; it may be waiting in a kernel that nothing else can interrupt."""
    while not over.wait(1.0):
        try:
            failed = store.check([failed_key()])
        except RuntimeError:  # the store has ended, and with it the run
            failed = True
        if failed and not over.wait(TIME_TO_END):
            os._exit(1)
