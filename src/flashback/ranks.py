"""One run on several devices: a process for each of them, called a rank, and what the ranks tell each other.

Every rank runs the same program: it has all images, the whole memory and the same random generators, and so the same
weights. Only the passes through a backbone are divided (`flashback.nets.splitting`). Rank 0 alone writes and prints.
In a run on one device nothing here does anything.
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

LONGEST_SILENCE = timedelta(minutes=30)  # a rank waits so long for another, which may be fetching data
RELATIVE_ROUNDING = 1e-5  # of what all ranks compute alike; none on devices of the same kind
TIME_TO_END = 5.0  # seconds that a rank has to end by itself once another has failed
FAILED = "flashback: a rank has failed"  # what ranks count in the store that torchrun keeps, for each attempt and run


class RankError(FlashbackError):
    """A rank of this run is gone."""


class AnotherRankFailedError(RankError):
    """Raised on all ranks but the one that failed first, which says why."""


@dataclass
class Group:
    """The ranks that share a run, as seen from one of them."""

    rank: int = 0
    count: int = 1
    captures: bool = True  # whether what they say can be part of a CUDA graph


_group = Group()
_failed_first = False
_runs = 0  # that this process has joined


def count() -> int:
    """Return the ranks of this run."""
    return _group.count


def rank() -> int:
    """Return which of them this process is."""
    return _group.rank


def launched() -> bool:
    """Return whether torchrun, or `--devices`, started this process as one of several ranks."""
    return "TORCHELASTIC_RUN_ID" in os.environ and world_size() > 1


def world_size() -> int:
    """Return how many ranks were started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """Return which of the ranks on this machine this process is."""
    return int(os.environ["LOCAL_RANK"]) if launched() else 0


def check_gpus(number: int) -> None:
    """Refuse more ranks than this machine has GPUs."""
    import torch

    gpus = torch.cuda.device_count()
    require(
        number <= gpus,
        f"every rank needs a GPU of its own, and this machine has {gpus}; start fewer ranks, or use --device cpu",
    )


def is_first() -> bool:
    """Return whether this process is the one that writes and prints."""
    return int(os.environ["RANK"]) == 0 if launched() else _group.rank == 0


def may_print() -> bool:
    """Return whether this process prints: it is the first, or the one that failed first."""
    return is_first() or _failed_first


def can_capture() -> bool:
    """Return whether a step of this run may be captured in a CUDA graph."""
    return _group.captures


# ---------------------------------------------------------------- what ranks tell each other


def add_up(tensor: Tensor) -> Tensor:
    """Replace a contiguous tensor by its sum over the ranks, in place; every rank gets the same bits."""
    import torch.distributed as dist

    if _group.count > 1:
        dist.all_reduce(tensor)
    return tensor


def average(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the means of gradients over the ranks, computed in one exchange.

    A backward pass leaves too much on a rank: see `flashback.nets.splitting`. Whoever calls `torch.autograd.grad` for
    parameters of a network has to pass the result through here.
    """
    import torch

    if _group.count == 1 or not gradients:
        return gradients
    mean = add_up(torch.cat([gradient.reshape(-1) for gradient in gradients])) / _group.count
    parts = torch.split(mean, [gradient.numel() for gradient in gradients])
    return [part.view(gradient.shape) for part, gradient in zip(parts, gradients, strict=True)]


def differing(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors that are not the same on all ranks, apart from rounding."""
    import torch

    sums = torch.stack([tensor.sum(dtype=torch.float64).cpu() for tensor in tensors.values()])
    sizes = torch.stack([magnitude(tensor).cpu() for tensor in tensors.values()])
    table = sums.new_zeros(count(), 2, len(sums))
    table[rank()] = torch.stack([sums, sizes])
    add_up(table)
    apart = (table - table[0]).abs().amax(dim=0)
    wrong = (apart > RELATIVE_ROUNDING * table[0, 1]).any(dim=0)
    return [name for name, differs in zip(tensors, wrong.tolist(), strict=True) if differs]


def magnitude(tensor: Tensor) -> Tensor:
    import torch

    return (tensor if tensor.dtype in (torch.bool, torch.uint8) else tensor.abs()).sum(dtype=torch.float64)


def from_first(content: bytes) -> bytes:
    """Return what rank 0 gives; what the others give is ignored."""
    import torch

    if _group.count == 1:
        return content
    is_source = _group.rank == 0
    size = int(add_up(torch.tensor(len(content) if is_source else 0)))
    whole = torch.zeros(size, dtype=torch.uint8)
    if is_source and content:
        whole.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    return add_up(whole).numpy().tobytes()


@contextmanager
def first_alone() -> Iterator[None]:
    """Let the first rank of every machine do something before the others, such as fetching data."""
    import torch

    waits = local_rank() > 0
    if waits:
        add_up(torch.zeros(1))
    yield
    if not waits:
        add_up(torch.zeros(1))


# ---------------------------------------------------------------- the beginning and the end of a run


@contextmanager
def sharing(backend: str) -> Iterator[None]:
    """Be one of the ranks that the environment describes, inside this context."""
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
def joined(on_gpu: bool) -> Iterator[None]:
    """Be one of the ranks that torchrun started, if it did. If one of them fails, all of them end."""
    if not launched() or _group.count > 1:
        yield
        return
    global _failed_first, _runs
    import torch
    import torch.distributed as dist
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    if on_gpu:
        torch.cuda.set_device(local_rank())
    with sharing("cpu:gloo,cuda:nccl" if on_gpu else "gloo"):
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
                    f"{minutes:g} minutes; the same command goes on from the last checkpoint"
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
    """The key of the present run: torchrun keeps its store when it restarts, and a script may make several runs."""
    return f"{FAILED}, restart {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}, run {_runs}"


def end_after_others(store: Any, over: threading.Event) -> None:
    """End this process if another rank has failed: it may be waiting for it in a kernel, where nothing else reaches."""
    while not over.wait(1.0):
        try:
            failed = store.check([failed_key()])
        except RuntimeError:  # the store has ended, and with it the run
            failed = True
        if failed and not over.wait(TIME_TO_END):
            os._exit(1)
