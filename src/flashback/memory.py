"""The memory: rows of images, labels and further fields, and quotas of classes.

Fill it either as a reservoir, in each step, or by `append`, `write` and `keep` at the end of a task. Operations of a
step have fixed shapes and never synchronise with the GPU.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flashback.errors import FlashbackError, require, unknown

Field = tuple[tuple[int, ...], torch.dtype]


class Memory(nn.Module):
    """Stores up to `capacity` uint8 images with labels and named fields; all are part of the state_dict.

    Slots fill from 0 upwards without gaps. Each insertion of an image gets a unique stamp; empty slots have stamp 0.
    Columns have one more row, at index `capacity`, for writes that are masked out.

    Args:
        capacity: The largest number of images.
        image_shape: Channels, height and width of an image.
        fields: Shape and dtype of each further column, by name.

    Raises:
        FlashbackError: If the capacity is below 1 or a field name is taken.
    """

    columns: tuple[str, ...] = ()
    images: Tensor
    labels: Tensor
    stamps: Tensor
    count: Tensor  # number of filled slots: 0 to count - 1
    seen: Tensor  # number of samples ever offered to the reservoir
    clock: Tensor  # the last stamp

    def __init__(self, capacity: int, image_shape: Sequence[int], fields: Mapping[str, Field] | None = None) -> None:
        super().__init__()
        require(capacity >= 1, f"a memory needs a capacity of at least 1, not {capacity}; raise it")
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
        self.field_names = tuple(columns)
        self._known: tuple[Tensor, int, int] | None = None

    def __getitem__(self, name: str) -> Tensor:
        """All rows of a column, including the extra one."""
        if name not in self.field_names:
            raise unknown("memory field", name, self.field_names)
        return self.get_buffer(name)

    @property
    def filled(self) -> int:
        """The number of filled slots; synchronises with the GPU."""
        filled = int(self.count)
        self._known = (self.count, self.count._version, filled)
        return filled

    def available(self, n: int) -> int:
        """Return min(n, filled), the size of the largest draw; synchronises with the GPU only while n may exceed it.

        Args:
            n: The size of a full draw.
        """
        bound = self._lower_bound()
        known = bound >= n or (self.count.is_cuda and torch.cuda.is_current_stream_capturing())
        return min(n, bound if known else self.filled)

    def _lower_bound(self) -> int:
        # Other in-place writes of `count` (load_state_dict, a restored snapshot) change its version and so drop the
        # bound; replays of a captured step do not, but they only ever fill slots.
        if self._known is None:
            return 0
        count, version, filled = self._known
        return filled if count is self.count and version == count._version else 0

    def _grow(self, count: Tensor) -> None:
        bound = self._lower_bound()
        self.count.copy_(count)
        self._known = (self.count, self.count._version, bound)

    def widen(self, name: str, width: int) -> None:
        """Give a field of vectors more columns, filled with zeros.

        Args:
            name: The field.
            width: Its columns from now on.
        """
        column = self[name]
        self.register_buffer(name, F.pad(column, (0, width - column.shape[1])))

    def enlarge(self, capacity: int) -> None:
        """Add empty slots.

        Args:
            capacity: The slots from now on.
        """
        if capacity == self.capacity:
            return
        for name in self.field_names:
            column = self[name]
            slots = column.new_zeros(capacity + 1, *column.shape[1:])
            slots[: self.capacity] = column[: self.capacity]
            self.register_buffer(name, slots)
        self.capacity = capacity

    def nbytes(self, allocated: bool = False) -> int:
        """Return the size of the filled rows in bytes.

        Args:
            allocated: Count everything allocated instead.
        """
        if allocated:
            return sum(tensor.nbytes for tensor in self.buffers())
        return sum(self[name][0].nbytes for name in self.field_names) * self.filled

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw distinct filled slots uniformly at random.

        Args:
            n: How many; at most `available(n)`.
            generator: The source of randomness, on the device of the memory.
        """
        device = self.count.device
        keys = torch.rand(self.capacity, generator=generator, dtype=torch.float64, device=device)
        empty = torch.arange(self.capacity, device=device) >= self.count
        return keys.masked_fill_(empty, -1.0).topk(n).indices

    @torch.no_grad()
    def reservoir(self, images: Tensor, labels: Tensor, generator: torch.Generator, **fields: Tensor) -> None:
        """Offer a batch to the reservoir; same distribution as offering its samples one by one.

        Args:
            images: Raw images, uint8 [n, C, H, W].
            labels: Their labels, [n].
            generator: The source of randomness, on the device of the memory.
            fields: A value per image for every further field.

        Raises:
            FlashbackError: If a field is missing or has another shape.
        """
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
        """Write some columns at filled slots, or whole rows at the next empty ones.

        A new image gets a new stamp. If a slot occurs several times, the last row wins.

        Args:
            slots: Where to write, [n]; rows for slot `capacity` are ignored.
            images: Raw images, uint8 [n, C, H, W]; None: keep those in the slots.
            labels: Their labels, [n]; None: keep those in the slots.
            fields: Values of further fields.

        Raises:
            FlashbackError: If a value has another shape than its column.
        """
        values = {"images": images, "labels": labels, **fields}
        self._place(slots, {name: value for name, value in values.items() if value is not None})
        if images is not None and len(slots):
            highest = slots.where(slots < self.capacity, -1).max() + 1
            self._grow(torch.maximum(self.count, highest))

    def _place(self, slots: Tensor, values: Mapping[str, Tensor]) -> None:
        """Write rows so that the last row of a slot wins on any device.

        Earlier rows of the same slot write the values of the last one, and masked rows write zeros, so the order of
        writes does not matter.
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
            content = value.to(column.device, column.dtype)[winners]
            content = content.masked_fill(masked.view(-1, *[1] * (content.dim() - 1)), 0)
            with _any_write_order():
                column.index_copy_(0, slots, content)

    def _check(self, name: str, value: Tensor, rows: int) -> None:
        expected = (rows, *self[name].shape[1:])
        if tuple(value.shape) != expected:
            raise FlashbackError(f"the memory expects {name} of shape {expected}, not {tuple(value.shape)}")
        if name == "images" and value.dtype != torch.uint8:
            raise FlashbackError(
                f"the memory stores raw uint8 images, not {value.dtype}; give images before augmentation"
            )

    def _whole_rows(self, images: Tensor, labels: Tensor, fields: Mapping[str, Tensor]) -> dict[str, Tensor]:
        values = {"images": images, "labels": labels, **fields}
        if missing := set(self.field_names) - {"stamps"} - set(values):
            raise FlashbackError(f"a new row of the memory needs its {', '.join(sorted(missing))} too")
        return values

    @torch.no_grad()
    def append(self, images: Tensor, labels: Tensor, **fields: Tensor) -> None:
        """Add new rows after the filled ones.

        Args:
            images: Raw images, uint8 [n, C, H, W].
            labels: Their labels, [n].
            fields: A value per image for every further field.

        Raises:
            FlashbackError: If they do not fit into the empty slots, or a field is missing or has another shape.
        """
        values = self._whole_rows(images, labels, fields)
        start = self.filled
        stop = start + len(labels)
        if stop > self.capacity:
            raise FlashbackError(
                f"{len(labels)} images do not fit in a memory with {start} of {self.capacity} slots filled; keep fewer"
            )
        self.write(torch.arange(start, stop, device=self.count.device), **values)

    @torch.no_grad()
    def keep(self, slots: Tensor) -> None:
        """Keep some filled slots, in the given order, as slots 0, 1, ...; empty all others.

        Args:
            slots: Distinct filled slots.

        Raises:
            FlashbackError: If a slot is empty or named twice.
        """
        slots = slots.to(self.count.device)
        numbers, filled = slots.tolist(), self.filled
        if len(set(numbers)) < len(numbers) or not set(numbers) <= set(range(filled)):
            raise FlashbackError(f"slots to keep must be distinct and below {filled}, the number of filled slots")
        for name in self.field_names:
            column = self[name]
            rows = column[slots]
            column.zero_()[: len(numbers)] = rows
        self.count.fill_(len(numbers))


@contextmanager
def _any_write_order() -> Iterator[None]:
    """Disable deterministic mode, which sorts before each indexed write; equal slots get equal values anyway."""
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
    """Slots for a batch of samples after `seen` others: sample n takes slot n while n < capacity, then r ~ U{0..n}.

    Slot `capacity` means that the sample is rejected.
    """
    n = seen + torch.arange(len(uniforms), device=uniforms.device)
    r = (uniforms * (n + 1)).floor().long()
    return torch.where(n < capacity, n, r).clamp(max=capacity)


def first_of_each_class(labels: Tensor, quotas: Sequence[int]) -> Tensor:
    """Return the positions, in order, of the first quotas[c] samples of each class c; other classes have none."""
    position = torch.arange(len(labels), device=labels.device)
    rows = [position[labels == label][:quota] for label, quota in enumerate(quotas)]
    return torch.cat([position[:0], *rows]).sort().values
