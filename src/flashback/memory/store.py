"""The memory itself: rows of images, labels and further fields, filled from slot 0 upwards without gaps.

A memory is filled either as a reservoir of a stream, in every step, or by `append`, `write` and `keep` at the end of a
task. Everything that runs in a step has a fixed shape and never waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from flashback.errors import FlashbackError, unknown

Field = tuple[tuple[int, ...], torch.dtype]


class Memory(nn.Module):
    """Up to `capacity` images with labels, insertion stamps and named fields, all in the state_dict.

    A stamp is unique to one insertion of one image, 0 for an empty slot. Row `capacity` takes the writes masked out.
    """

    columns: tuple[str, ...] = ()
    images: Tensor
    labels: Tensor
    stamps: Tensor
    count: Tensor  # filled slots: always 0 .. count - 1
    seen: Tensor  # samples ever offered to the reservoir
    clock: Tensor  # the last stamp given out

    def __init__(self, capacity: int, image_shape: Sequence[int], fields: Mapping[str, Field] | None = None) -> None:
        super().__init__()
        if capacity < 1:
            raise FlashbackError(f"a memory needs room for at least one image, not {capacity}; raise its capacity")
        self.capacity = capacity
        columns: dict[str, Field] = {
            "images": (tuple(image_shape), torch.uint8),
            "labels": ((), torch.int64),
            "stamps": ((), torch.int64),
        }
        for name in ("count", "seen", "clock"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64))
        for name, field in (fields or {}).items():
            if name in columns or hasattr(self, name):
                raise FlashbackError(f"a memory field cannot be named '{name}'; choose another name")
            columns[name] = field
        for name, (shape, dtype) in columns.items():
            self.register_buffer(name, torch.zeros(capacity + 1, *shape, dtype=dtype))
        self.columns = tuple(columns)
        self._known: tuple[Tensor, int, int] | None = None

    def __getitem__(self, name: str) -> Tensor:
        """All rows of a column, the trash row included."""
        if name not in self.columns:
            raise unknown("memory field", name, self.columns)
        return self.get_buffer(name)

    # ------------------------------------------------------------ how much is there

    @property
    def filled(self) -> int:
        """The number of filled slots; waits for the device."""
        filled = int(self.count)
        self._known = (self.count, self.count._version, filled)
        return filled

    def available(self, n: int) -> int:
        """How many distinct slots a draw of n can give; waits for the device only until n are known to be filled."""
        bound = self._lower_bound()
        known = bound >= n or (self.count.is_cuda and torch.cuda.is_current_stream_capturing())
        return min(n, bound if known else self.filled)

    def _lower_bound(self) -> int:
        # Whoever else writes `count` in place (load_state_dict, a restored snapshot) raises its version and so drops
        # the bound; replays of a captured step do not, but they only ever fill slots.
        if self._known is None:
            return 0
        count, version, filled = self._known
        return filled if count is self.count and version == count._version else 0

    def _grow(self, count: Tensor) -> None:
        bound = self._lower_bound()
        self.count.copy_(count)
        self._known = (self.count, self.count._version, bound)

    def nbytes(self, allocated: bool = False) -> int:
        """Bytes of the filled rows, or of everything allocated."""
        if allocated:
            return sum(tensor.nbytes for tensor in self.buffers())
        return sum(self[name][0].nbytes for name in self.columns) * self.filled

    # ------------------------------------------------------------ in every step

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """n distinct filled slots, uniformly at random; n is at most what `available` answered."""
        device = self.count.device
        keys = torch.rand(self.capacity, generator=generator, dtype=torch.float64, device=device)
        empty = torch.arange(self.capacity, device=device) >= self.count
        return keys.masked_fill_(empty, -1.0).topk(n).indices

    @torch.no_grad()
    def reservoir(self, images: Tensor, labels: Tensor, generator: torch.Generator, **fields: Tensor) -> None:
        """Offer a batch to the reservoir, in law the same as offering its samples one after another."""
        values = self._whole_rows(images, labels, fields)
        offered = len(labels)
        uniforms = torch.rand(offered, generator=generator, dtype=torch.float64, device=self.seen.device)
        self._place(reservoir_slots(self.seen, self.capacity, uniforms), values)
        self.seen.add_(offered)
        self._grow(self.seen.clamp(max=self.capacity))

    @torch.no_grad()
    def write(
        self, slots: Tensor, images: Tensor | None = None, labels: Tensor | None = None, **fields: Tensor
    ) -> None:
        """Write columns at filled slots, whole rows at the next empty ones, nothing at slot `capacity` (masked out).

        A new image gets a new stamp; other columns are edited under the stamp there is. Of equal slots the last counts.
        """
        given = {"images": images, "labels": labels, **fields}
        self._place(slots, {name: value for name, value in given.items() if value is not None})
        if images is not None and len(slots):
            highest = slots.where(slots < self.capacity, -1).max() + 1
            self._grow(torch.maximum(self.count, highest))

    def _place(self, slots: Tensor, values: Mapping[str, Tensor]) -> None:
        """Write rows where the last writer of a slot wins, whatever order the device writes in.

        Rows that lose a slot repeat the winner's values, rows masked out write zeros: equal slots get equal values.
        """
        for name, value in values.items():
            self._check(name, value, len(slots))
        rows = torch.arange(len(slots), device=slots.device)
        last = torch.full((self.capacity + 1,), -1, device=slots.device).scatter_reduce(0, slots, rows, "amax")
        winners, masked = last[slots], slots == self.capacity
        if "images" in values:
            values = {**values, "stamps": self.clock + 1 + rows}
            self.clock.add_(len(slots))
        for name, value in values.items():
            column = self[name]
            chosen = value.to(column.device, column.dtype)[winners]
            chosen = chosen.masked_fill(masked.view(-1, *[1] * (chosen.dim() - 1)), 0)
            with _any_write_order():
                column.index_copy_(0, slots, chosen)

    def _check(self, name: str, value: Tensor, rows: int) -> None:
        expected = (rows, *self[name].shape[1:])
        if tuple(value.shape) != expected:
            raise FlashbackError(f"the memory expects {name} of shape {expected}, not {tuple(value.shape)}")
        if name == "images" and value.dtype != torch.uint8:
            raise FlashbackError(
                f"the memory stores raw uint8 images, not {value.dtype}; give it the un-augmented ones"
            )

    def _whole_rows(self, images: Tensor, labels: Tensor, fields: Mapping[str, Tensor]) -> dict[str, Tensor]:
        values = {"images": images, "labels": labels, **fields}
        if missing := set(self.columns) - {"stamps"} - set(values):
            raise FlashbackError(f"a new row of the memory needs its {', '.join(sorted(missing))} too")
        return values

    # ------------------------------------------------------------ at the end of a task

    @torch.no_grad()
    def append(self, images: Tensor, labels: Tensor, **fields: Tensor) -> None:
        """Put new rows behind the filled ones."""
        values = self._whole_rows(images, labels, fields)
        start = self.filled
        stop = start + len(labels)
        if stop > self.capacity:
            raise FlashbackError(
                f"{len(labels)} images do not fit a memory that holds {start} of {self.capacity}; keep fewer of them"
            )
        self.write(torch.arange(start, stop, device=self.count.device), **values)

    @torch.no_grad()
    def keep(self, slots: Tensor) -> None:
        """Keep these filled slots, in this order and with their stamps, as slots 0, 1, ...; empty all others."""
        slots = slots.to(self.count.device)
        chosen, filled = slots.tolist(), self.filled
        if len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(filled)):
            raise FlashbackError(f"slots to keep must be distinct and below {filled}, the number of filled slots")
        for name in self.columns:
            column = self[name]
            kept = column[slots]
            column.zero_()[: len(chosen)] = kept
        self.count.fill_(len(chosen))


@contextmanager
def _any_write_order() -> Iterator[None]:
    """Leave deterministic mode, which sorts before every indexed write: useless where equal slots get equal values."""
    strict = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    if not strict:
        yield
        return
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True, warn_only=warn_only)


def reservoir_slots(seen: Tensor, capacity: int, uniforms: Tensor) -> Tensor:
    """Slots for a batch of samples, given how many came before: sample n takes slot n while there is room, afterwards
    r ~ U{0..n}; slot `capacity` means rejected."""
    n = seen + torch.arange(len(uniforms), device=uniforms.device)
    r = (uniforms * (n + 1)).floor().long()
    return torch.where(n < capacity, n, r).clamp(max=capacity)


def first_occurrences(slots: Tensor) -> Tensor:
    """Marks the first occurrence of every slot."""
    same = slots[:, None] == slots
    return ~same.tril(diagonal=-1).any(dim=1)
