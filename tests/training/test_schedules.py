"""Learning rates over the epochs of a stage, seeds, and the streams they order."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashback.batches import NOT_STORED, Stream
from flashback.benchmarks import Images
from flashback.config import TrainingConfig
from flashback.hosts import Optimisation
from flashback.seeds import derive_seed, seeded_generator, seeded_initialisation

# ---------------------------------------------------------------- learning rates


def drops(epochs: int, **settings: object) -> list[int]:
    """The epochs (from 0) at which the rate is lower than in the one before."""
    optimisation = Optimisation(lr=0.3, schedule="step", **settings)  # type: ignore[arg-type]
    rates = [optimisation.rate(epoch, epochs) for epoch in range(epochs)]
    return [epoch for epoch in range(1, epochs) if rates[epoch] < rates[epoch - 1]]


@pytest.mark.parametrize(
    ("epochs", "expected"), [(50, [35, 45]), (60, [42, 54]), (10, [7, 9]), (100, [70, 90]), (30, [21, 27]), (1, [])]
)
def test_steps_at_70_and_90_percent(epochs: int, expected: list[int]) -> None:
    assert drops(epochs) == expected


def test_each_step_multiplies_by_gamma() -> None:
    optimisation = Optimisation(lr=0.3, schedule="step", milestones=(0.5, 0.5, 0.75), gamma=0.1)
    rates = [optimisation.rate(epoch, 4) for epoch in range(4)]
    assert rates == pytest.approx([0.3, 0.3, 0.003, 0.0003])


def test_cosine_from_the_base_rate_towards_zero() -> None:
    optimisation = Optimisation(lr=0.2, schedule="cosine")
    rates = [optimisation.rate(epoch, 4) for epoch in range(5)]
    assert rates == pytest.approx([0.2, 0.2 * 0.853553, 0.1, 0.2 * 0.146447, 0.0], abs=1e-7)
    assert rates[0] == 0.2


@given(
    st.sampled_from(["none", "step", "cosine"]),
    st.integers(1, 200),
    st.lists(st.floats(0.001, 1.0), max_size=4).map(tuple),
)
def test_the_first_epoch_has_the_base_rate_and_rates_never_rise(
    schedule: str, epochs: int, milestones: tuple[float, ...]
) -> None:
    optimisation = Optimisation(lr=0.1, schedule=schedule, milestones=milestones)
    rates = [optimisation.rate(epoch, epochs) for epoch in range(epochs)]
    assert rates[0] == 0.1
    assert all(later <= earlier for earlier, later in pairwise(rates))
    assert all(rate > 0 for rate in rates)
    if schedule == "none":
        assert set(rates) == {0.1}


def test_the_first_task_may_have_its_own_schedule() -> None:
    training = TrainingConfig(lr=0.1, momentum=0.9, weight_decay=1e-4, schedule="none", first_schedule="step")
    assert Optimisation.of(training, first_task=True).schedule == "step"
    later = Optimisation.of(training, first_task=False)
    assert later == Optimisation(0.1, 0.9, 1e-4, False, "none", (0.7, 0.9), 0.1)
    without = dataclasses.replace(training, first_schedule=None)
    assert Optimisation.of(without, first_task=True) == later


# ---------------------------------------------------------------- seeds


def test_derived_seeds_never_change() -> None:
    """Another value here would mean that no earlier run can be repeated."""
    assert derive_seed(0, 1, "learn") == 7909009639693403771
    assert derive_seed() == 5911644737314724887
    assert derive_seed(123, 0, "learn", "begin") == 2668494715936782999


def test_derived_seeds_tell_their_parts_apart() -> None:
    keys = [(1, 23), (12, 3), ("1", 23), (1, "23"), (1, 23, ""), ((1, 23),), (1,), ("learn", 1), (1, "learn")]
    assert len({derive_seed(*key) for key in keys}) == len(keys)
    assert all(0 <= derive_seed(*key) < 2**63 for key in keys)


def test_seeded_generators_agree() -> None:
    one, other = (torch.rand(5, generator=seeded_generator("a", 3)) for _ in range(2))
    assert torch.equal(one, other)
    assert not torch.equal(one, torch.rand(5, generator=seeded_generator("a", 4)))


def test_seeded_initialisation_puts_the_global_generator_back() -> None:
    before = torch.get_rng_state()
    with seeded_initialisation(0, "net"):
        first = torch.nn.Linear(3, 3).weight
    with seeded_initialisation(0, "net"):
        again = torch.nn.Linear(3, 3).weight
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), before)


# ---------------------------------------------------------------- streams


def stream(start: int, count: int) -> Stream:
    labels = torch.arange(start, start + count)
    pixels = labels.to(torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2)
    return Stream.of(Images(pixels, labels), torch.device("cpu"))


def test_a_stream_of_images_is_not_stored_anywhere() -> None:
    images = stream(0, 3)
    assert len(images) == 3
    assert images.slots.tolist() == [NOT_STORED] * 3


def test_joined_streams_keep_images_labels_and_slots_together() -> None:
    first, second = stream(0, 3), stream(10, 2)
    stored = Stream(second.images, second.labels, torch.tensor([7, 8]))
    both = first.joined(stored)
    assert both.labels.tolist() == [0, 1, 2, 10, 11]
    assert both.images[:, 0, 0, 0].tolist() == [0, 1, 2, 10, 11]
    assert both.slots.tolist() == [NOT_STORED] * 3 + [7, 8]


def test_joining_an_empty_stream_changes_nothing() -> None:
    first = stream(0, 3)
    both = first.joined(stream(0, 0))
    assert torch.equal(both.images, first.images)
    assert torch.equal(both.labels, first.labels)


def test_the_order_of_an_epoch_depends_on_its_key_alone() -> None:
    images = stream(0, 30)
    torch.rand(3)
    order = images.order(0, 1, "learn", 2)
    assert sorted(order.tolist()) == list(range(30))
    assert torch.equal(order, stream(5, 30).order(0, 1, "learn", 2))
    for other in [(1, 1, "learn", 2), (0, 2, "learn", 2), (0, 1, "phase 1", 2), (0, 1, "learn", 3)]:
        assert not torch.equal(order, images.order(*other))


def test_rounding_moves_no_step_to_the_next_epoch() -> None:
    optimisation = Optimisation(lr=0.3, schedule="step", milestones=(0.55,))
    assert 0.55 * 100 > 55  # in floating point
    assert [optimisation.rate(epoch, 100) < 0.3 for epoch in (54, 55)] == [False, True]
