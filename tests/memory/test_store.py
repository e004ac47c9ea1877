"""Memory against a Python list that does the same, one sample at a time."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flashback.errors import FlashbackError
from flashback.hosts.xder import first_occurrences
from flashback.memory import Memory, reservoir_slots

SHAPE = (1, 1, 2)
FIELDS = {"logits": ((3,), torch.float32), "task": ((), torch.int64)}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def samples(start: int, n: int) -> dict[str, Tensor]:
    """n samples that can be told apart: sample i has i in every column."""
    i = torch.arange(start, start + n)
    return {
        "images": (i % 256).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, *SHAPE),
        "labels": i,
        "logits": i[:, None].float().expand(-1, 3),
        "task": i,
    }


def filled_memory(capacity: int, n: int) -> Memory:
    memory = Memory(capacity, SHAPE, FIELDS)
    memory.append(**samples(0, n))
    return memory


def sequential_reservoir(capacity: int, uniforms: list[float]) -> dict[int, int]:
    """The rule as papers write it: slot -> the number of the sample in it."""
    content: dict[int, int] = {}
    for n, u in enumerate(uniforms):
        slot = n if n < capacity else math.floor(u * (n + 1))
        if slot < capacity:
            content[slot] = n
    return content


@settings(max_examples=60)
@given(st.integers(1, 7), st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 10_000))
def test_reservoir_equals_the_sequential_rule(capacity: int, batches: list[int], seed: int) -> None:
    memory, random, start = Memory(capacity, SHAPE, FIELDS), generator(seed), 0
    for n in batches:
        memory.reservoir(**samples(start, n), generator=random)
        start += n

    random = generator(seed)
    uniforms = torch.cat([torch.rand(n, generator=random, dtype=torch.float64) for n in batches])
    expected = sequential_reservoir(capacity, uniforms.tolist())

    assert memory.filled == len(expected) == min(capacity, start)
    assert int(memory.seen) == start
    for slot, sample in expected.items():
        assert memory.labels[slot] == sample
        assert memory.stamps[slot] == sample + 1
        assert (memory["logits"][slot] == sample).all()
        assert (memory.images[slot] == sample % 256).all()
    for name in memory.field_names:  # empty rows and the trash row stay zero
        assert not memory[name][memory.filled :].any()


def test_reservoir_keeps_every_sample_with_equal_probability() -> None:
    capacity, n, trials, random = 5, 20, 600, generator(1)
    counts = torch.zeros(n)
    for _ in range(trials):
        memory = Memory(capacity, SHAPE)
        for start in range(0, n, 10):
            batch = samples(start, 10)
            memory.reservoir(batch["images"], batch["labels"], random)
        counts[memory.labels[:capacity]] += 1
    probability = capacity / n
    spread = math.sqrt(probability * (1 - probability) / trials)
    assert (counts / trials - probability).abs().max() < 4.5 * spread


def test_of_several_writers_to_one_slot_the_last_wins() -> None:
    memory = Memory(1, SHAPE, FIELDS)
    slots = reservoir_slots(memory.seen, 1, torch.tensor([0.9, 0.1, 0.1, 0.9], dtype=torch.float64))
    assert slots.tolist() == [0, 0, 0, 1]  # sample 1: floor(.1 * 2) = 0; sample 3: floor(.9 * 4) = 3, rejected
    memory.write(slots, **samples(10, 4))
    assert memory.labels.tolist() == [12, 0]
    assert memory.images[0].unique().tolist() == [12]
    assert memory.stamps.tolist() == [3, 0]


@pytest.mark.parametrize("seed", range(5))
def test_the_order_in_which_the_device_writes_does_not_matter(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def state() -> dict[str, Tensor]:
        memory = Memory(3, SHAPE, FIELDS)
        memory.reservoir(**samples(0, 20), generator=generator(seed))
        return memory.state_dict()

    forwards, index_copy = state(), Tensor.index_copy_

    def backwards(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
        return index_copy(self, dim, index.flip(0), source.flip(0))

    monkeypatch.setattr(Tensor, "index_copy_", backwards)
    for name, tensor in state().items():
        assert torch.equal(tensor, forwards[name]), name


@pytest.mark.parametrize("warn_only", [False, True])
def test_deterministic_mode_is_left_as_it_was(warn_only: bool) -> None:
    free, strict = Memory(3, SHAPE, FIELDS), Memory(3, SHAPE, FIELDS)
    free.reservoir(**samples(0, 20), generator=generator())
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        strict.reservoir(**samples(0, 20), generator=generator())
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled() == warn_only
    finally:
        torch.use_deterministic_algorithms(False)
    for name, tensor in free.state_dict().items():
        assert torch.equal(tensor, strict.state_dict()[name]), name


def test_reservoir_slots_never_exceed_the_trash_row() -> None:
    largest = torch.full((6,), 1 - 2**-53, dtype=torch.float64)
    assert reservoir_slots(torch.tensor(0), 3, largest).tolist() == [0, 1, 2, 3, 3, 3]
    assert reservoir_slots(torch.tensor(9), 3, torch.zeros(2, dtype=torch.float64)).tolist() == [0, 0]


@settings(max_examples=40)
@given(st.lists(st.integers(0, 8), min_size=1, max_size=20))
def test_first_of_each(slots: list[int]) -> None:
    expected = [slot not in slots[:k] for k, slot in enumerate(slots)]
    assert first_occurrences(torch.tensor(slots)).tolist() == expected


def test_a_new_image_gets_a_new_stamp_and_an_edit_does_not() -> None:
    memory = filled_memory(4, 3)
    before = memory.stamps.clone()
    memory.write(torch.tensor([1]), logits=torch.full((1, 3), 7.0))
    assert torch.equal(memory.stamps, before)
    assert (memory["logits"][1] == 7).all()
    memory.write(torch.tensor([1]), **samples(9, 1))
    assert memory.stamps[1] > before.max()
    assert torch.equal(memory.stamps[[0, 2]], before[[0, 2]])
    assert memory.filled == 3


def test_stamps_are_never_given_twice() -> None:
    memory, given_out = Memory(3, SHAPE), []
    for step in range(5):
        batch = samples(4 * step, 4)
        memory.reservoir(batch["images"], batch["labels"], generator(step))
        given_out.append(dict(zip(memory.stamps.tolist(), memory.labels.tolist(), strict=True)))
    owner: dict[int, int] = {}
    for row in given_out:
        for stamp, label in row.items():
            assert owner.setdefault(stamp, label) == label


def test_masked_writes_touch_nothing() -> None:
    memory = filled_memory(4, 2)
    before = copy.deepcopy(memory.state_dict())
    memory.write(torch.tensor([4, 4]), logits=torch.ones(2, 3))
    memory.write(torch.tensor([], dtype=torch.int64), **samples(0, 0))
    for name, tensor in memory.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_write_fills_the_next_slots() -> None:
    memory = Memory(4, SHAPE, FIELDS)
    memory.write(torch.tensor([1, 0, 4]), **samples(5, 3))
    assert memory.filled == 2
    assert memory.labels.tolist() == [6, 5, 0, 0, 0]


@settings(max_examples=30)
@given(st.integers(1, 12), st.data())
def test_draws_are_distinct_and_filled(filled: int, data: st.DataObject) -> None:
    memory = filled_memory(12, filled)
    n = data.draw(st.integers(0, filled))
    slots = memory.draw(n, generator(data.draw(st.integers(0, 99)))).tolist()
    assert len(set(slots)) == len(slots) == n
    assert all(0 <= slot < filled for slot in slots)


def test_draws_are_uniform_and_repeatable() -> None:
    memory, random, trials = filled_memory(9, 6), generator(3), 3000
    first, any_place = torch.zeros(6), torch.zeros(6)
    for _ in range(trials):
        slots = memory.draw(2, random)
        first[slots[0]] += 1
        any_place[slots] += 1
    assert (first / trials - 1 / 6).abs().max() < 4.5 * math.sqrt(5 / 36 / trials)
    assert (any_place / trials - 1 / 3).abs().max() < 4.5 * math.sqrt(2 / 9 / trials)
    assert torch.equal(memory.draw(4, generator(5)), memory.draw(4, generator(5)))


def test_keep_and_append() -> None:
    memory = filled_memory(5, 5)
    stamps = memory.stamps.clone()
    memory.keep(torch.tensor([3, 1]))
    assert memory.filled == 2
    assert memory.labels.tolist() == [3, 1, 0, 0, 0, 0]
    assert memory.stamps.tolist() == [int(stamps[3]), int(stamps[1]), 0, 0, 0, 0]
    assert (memory["logits"][:2, 0] == torch.tensor([3.0, 1.0])).all()
    memory.append(**samples(20, 3))
    assert memory.labels.tolist() == [3, 1, 20, 21, 22, 0]
    assert memory.stamps[2:5].min() > stamps.max()
    with pytest.raises(FlashbackError, match="do not fit"):
        memory.append(**samples(30, 1))
    memory.keep(torch.tensor([], dtype=torch.int64))
    assert memory.filled == 0
    assert not memory.images.any()


@pytest.mark.parametrize("slots", [[0, 0], [3], [-1]])
def test_keep_refuses_what_is_not_there(slots: list[int]) -> None:
    with pytest.raises(FlashbackError, match="distinct and below 3"):
        filled_memory(5, 3).keep(torch.tensor(slots))


def test_rows_must_be_whole_raw_and_of_the_right_shape() -> None:
    memory, rows = Memory(4, SHAPE, FIELDS), samples(0, 2)
    with pytest.raises(FlashbackError, match="needs its task too"):
        memory.append(**{name: value for name, value in rows.items() if name != "task"})
    with pytest.raises(FlashbackError, match="uint8"):
        memory.append(**{**rows, "images": rows["images"].float()})
    with pytest.raises(FlashbackError, match="expects logits of shape"):
        memory.append(**{**rows, "logits": torch.zeros(2, 4)})
    with pytest.raises(FlashbackError, match="did you mean 'logits'"):
        memory.write(torch.tensor([0]), logit=torch.zeros(1, 3))
    assert not any(tensor.any() for tensor in memory.state_dict().values())  # what is refused leaves no trace
    with pytest.raises(FlashbackError, match="cannot be named 'stamps'"):
        Memory(4, SHAPE, {"stamps": ((), torch.int64)})
    with pytest.raises(FlashbackError, match="a capacity of at least 1, not"):
        Memory(0, SHAPE)


class CountsReads(Memory):
    """A memory that counts how often it waits for the device."""

    reads = 0

    @property
    def filled(self) -> int:
        self.reads += 1
        return Memory.filled.fget(self)


def test_available_reads_the_device_only_until_enough_is_known() -> None:
    memory, random = CountsReads(6, SHAPE), generator()
    batch = samples(0, 2)
    assert [memory.available(4), memory.available(4)] == [0, 0]
    for expected in (2, 4):
        memory.reservoir(batch["images"], batch["labels"], random)
        assert memory.available(4) == expected
    memory.reads = 0
    for _ in range(3):
        memory.reservoir(batch["images"], batch["labels"], random)
        assert memory.available(4) == 4
    assert memory.reads == 0
    assert memory.available(6) == 6
    assert memory.reads == 1


@pytest.mark.parametrize("how", ["load", "assign", "copy", "foreach", "keep"])
def test_what_is_known_to_be_filled_is_dropped_when_state_changes(how: str) -> None:
    memory = Memory(6, SHAPE, FIELDS)
    memory.append(**samples(0, 2))
    snapshot = {name: tensor.clone() for name, tensor in memory.state_dict().items()}
    memory.append(**samples(2, 3))
    assert memory.available(5) == 5
    if how == "load":
        memory.load_state_dict(snapshot)
    elif how == "assign":
        memory.load_state_dict(snapshot, assign=True)
    elif how == "copy":
        for name, tensor in memory.state_dict().items():
            tensor.copy_(snapshot[name])
    elif how == "foreach":
        torch._foreach_copy_(list(memory.state_dict().values()), list(snapshot.values()))
    else:
        memory.keep(torch.tensor([0, 1]))
    assert memory.available(5) == 2


def test_state_dict_round_trip_continues_alike() -> None:
    memory = Memory(4, SHAPE, FIELDS)
    memory.reservoir(**samples(0, 7), generator=generator(1))
    other = Memory(4, SHAPE, FIELDS)
    other.load_state_dict(memory.state_dict())
    for one in (memory, other):
        one.reservoir(**samples(7, 7), generator=generator(2))
    for name, tensor in memory.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    assert set(memory.state_dict()) == {"images", "labels", "stamps", "logits", "task", "count", "seen", "clock"}


def test_bytes() -> None:
    row = 2 + 8 + 8 + 3 * 4 + 8
    memory = filled_memory(5, 3)
    assert memory.nbytes() == 3 * row
    assert memory.nbytes(allocated=True) == 6 * row + 3 * 8


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_step_equals_the_eager_one() -> None:
    """Draw and insertion run inside a CUDA graph, in deterministic mode, and end in the same state bit for bit."""
    device = torch.device("cuda")
    torch.use_deterministic_algorithms(True)
    try:
        eager, captured = (filled_memory(8, 4).to(device) for _ in range(2))
        randoms = [torch.Generator(device).manual_seed(3) for _ in range(2)]
        batch = {name: value.to(device).contiguous() for name, value in samples(0, 16).items()}
        for memory in (eager, captured):
            memory.seen.fill_(4)
        assert captured.available(3) == 3
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(randoms[1])
        start = randoms[1].get_state()
        with torch.cuda.graph(graph):
            slots = captured.draw(captured.available(3), randoms[1])
            captured.reservoir(**batch, generator=randoms[1])
        randoms[1].set_state(start)
        for _ in range(4):
            expected = eager.draw(3, randoms[0])
            eager.reservoir(**batch, generator=randoms[0])
            graph.replay()
            assert torch.equal(slots, expected)
        for name, tensor in eager.state_dict().items():
            assert torch.equal(tensor, captured.state_dict()[name]), name
    finally:
        torch.use_deterministic_algorithms(False)


def rows(memory: Memory) -> dict[str, Tensor]:
    return {name: memory[name][: memory.filled].clone() for name in memory.field_names}


def test_widened_fields_keep_their_values_and_are_zero_beyond() -> None:
    memory = filled_memory(6, 4)
    before = rows(memory)
    memory.widen("logits", 5)
    assert torch.equal(memory["logits"][:4, :3], before.pop("logits"))
    assert not memory["logits"][:, 3:].any()
    assert all(torch.equal(memory[name][:4], values) for name, values in before.items())


def test_an_enlarged_memory_keeps_its_rows_and_goes_on() -> None:
    memory = filled_memory(4, 4)
    before = rows(memory)
    memory.enlarge(7)
    assert memory.capacity == 7
    assert memory.filled == 4
    assert all(torch.equal(values, before[name]) for name, values in rows(memory).items())
    memory.append(**samples(4, 3))
    assert memory.labels[:7].tolist() == list(range(7))
    assert memory.stamps[:7].unique().numel() == 7
