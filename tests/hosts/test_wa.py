"""WA: the two losses and their shares, the alignment of new rows, and what flashback does with it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from later_tasks import (
    Answers,
    batch_of,
    changed,
    in_later_task,
    made_step,
    slow_cross_entropy,
    slow_distillation,
    some_steps,
    state_of,
)

from flashback import FlashbackError, Trainer
from flashback.hosts.wa import align_new_rows
from flashback.knowledge import ModelKnowledge
from helpers import quick_config, quick_flashback, quick_host, tiny_benchmark


def lengths(host: Any) -> list[float]:
    """Of the rows of the head, one by one."""
    return [math.sqrt(sum(value**2 for value in row)) for row in host.net.head.weight.tolist()]


# ---------------------------------------------------------------- losses


@pytest.mark.parametrize(("task", "old", "seen"), [(1, 2, 5), (2, 5, 7)])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_losses_share_one_by_how_many_classes_are_old(task: int, old: int, seen: int, temperature: float) -> None:
    host = in_later_task("wa", task, host__temperature=temperature).host
    labels = [0, old - 1, old, seen - 1, 1]
    step, teacher = made_step(labels, 7), made_step(labels, 7, seed=1).output.logits.detach()
    host.stable = Answers(teacher)
    terms, z = host.losses(step), step.output.logits.detach()
    share = old / seen
    assert list(terms) == ["task", "stability"]
    assert terms["task"].item() == pytest.approx((1 - share) * slow_cross_entropy(z, labels, seen), rel=1e-12)
    assert terms["stability"].item() == pytest.approx(
        share * slow_distillation(z, teacher, old, temperature), rel=1e-12
    )


def test_the_first_task_is_plain_cross_entropy_over_its_own_columns() -> None:
    host = quick_host("wa")
    step = made_step([0, 1, 1], 7)
    terms = host.losses(step)
    expected = slow_cross_entropy(step.output.logits.detach(), [0, 1, 1], 2)
    assert {name: term.item() for name, term in terms.items()} == {"task": pytest.approx(expected, rel=1e-12)}
    (slope,) = torch.autograd.grad(terms["task"], step.output.logits)
    assert not slope[:, 2:].any()


def test_plasticity_is_the_same_distance_over_all_seen_columns() -> None:
    host = in_later_task("wa").host
    step = made_step([0, 2, 4], 7)
    primary = made_step([0, 2, 4], 7, seed=2).output.logits.detach()
    distance = host.weighted_distance(step, Answers(primary), host.plasticity_support())
    assert distance.item() == pytest.approx(slow_distillation(step.output.logits.detach(), primary, 5, 2.0), rel=1e-12)


# ---------------------------------------------------------------- alignment


@pytest.mark.parametrize("task", [1, 2])
def test_new_rows_end_as_long_as_old_ones_on_average_and_keep_their_directions(task: int) -> None:
    run = in_later_task("wa", task)
    stage, old, new = run.host.stages()[0], run.host.task.old, run.host.task.new
    some_steps(run.host, stage)
    before, was = lengths(run.host), state_of(run.host.net)
    stage.end()
    mean_old, mean_new = (sum(before[part]) / len(before[part]) for part in (old, new))
    expected = [
        length * mean_old / mean_new if k in run.host.task.classes else length for k, length in enumerate(before)
    ]
    assert mean_old != pytest.approx(mean_new)
    assert lengths(run.host) == pytest.approx(expected, rel=1e-5)
    assert changed(was, run.host.net) == {"head.weight"}  # biases and features stay
    weight = run.host.net.head.weight
    assert torch.equal(weight[old], was["head.weight"][old])
    torch.testing.assert_close(weight[new] * (mean_new / mean_old), was["head.weight"][new])


def test_the_first_task_is_not_aligned() -> None:
    host = quick_host("wa", host__memory_size=28)
    before = state_of(host.net)
    host.stages()[0].end()
    assert not changed(before, host.net)
    assert host.memory.filled == 24


def test_the_aligned_network_is_what_the_next_task_keeps() -> None:
    benchmark = tiny_benchmark()
    host = quick_host("wa", benchmark, host__memory_size=28)
    trainer = Trainer(host, benchmark)
    for task in benchmark.tasks[:2]:
        trainer.run_task(task)
    rows = lengths(host)
    assert sum(rows[:2]) / 2 == pytest.approx(sum(rows[2:5]) / 3, rel=1e-5)
    host.enter(benchmark.tasks[2])
    assert lengths(host)[:5] == rows, "new rows leave the old ones alone"
    aligned = state_of(host.net)
    trainer.allocate(host.stages()[0])
    assert isinstance(host.stable, ModelKnowledge)
    assert not changed(aligned, host.stable.model.module)


@pytest.mark.parametrize("positive", [False, True])
def test_the_head_is_clipped_at_zero_where_asked_for(positive: bool) -> None:
    run = in_later_task("wa", host__positive=positive)
    some_steps(run.host, run.host.stages()[0], steps=1)
    assert bool((run.host.net.head.weight >= 0).all()) == positive
    assert bool((run.host.net.head.bias < 0).any())  # biases are left alone


# ---------------------------------------------------------------- exemplars and knowledge


def test_it_learns_from_new_images_and_exemplars_together() -> None:
    run = in_later_task("wa", 2)
    labels = run.host.stages()[0].stream().labels
    assert torch.bincount(labels).tolist() == [5, 5, 5, 5, 5, 12, 12]
    assert quick_host("wa").settings.normalise


def test_it_keeps_the_old_model_and_exemplars_and_flashback_another_model() -> None:
    run = in_later_task("wa", flashback=True, stages=2)
    net = run.host.net
    model = sum(tensor.nbytes for tensor in net.state_dict().values())
    exemplar = 12 * 12 + 8 + 8  # an image, its label and its stamp
    assert run.method.knowledge_bytes() == {"stable": model + 24 * exemplar, "plastic": model}


def test_flashback_restores_head_and_statistics_and_aligns_once_at_the_end() -> None:
    run = in_later_task("wa", flashback=True)
    begun = state_of(run.host)
    phase_1, phase_2 = run.method.stages()
    some_steps(run.host, phase_1)
    changes = changed(begun, run.host)
    assert {"net.head.weight", "net.head.bias"} <= changes
    assert any("running_mean" in name for name in changes)
    phase_1.end()
    primary = state_of(run.host.net)
    run.trainer.allocate(phase_2)
    phase_2.begin()
    assert not changed(begun, run.host)
    assert not changed(primary, run.method.plastic.model.module)  # as it was trained, not aligned
    phase_2.before_epoch(0)
    some_steps(run.host, phase_2)
    before = state_of(run.host.net)
    phase_2.end()
    assert changed(before, run.host.net) == {"head.weight"}
    rows = lengths(run.host)
    assert sum(rows[:2]) / 2 == pytest.approx(sum(rows[2:5]) / 3, rel=1e-5)


def test_both_anchors_are_in_the_losses_of_phase_2() -> None:
    run = in_later_task("wa", flashback=True, stages=2)
    phase_2 = run.method.stages()[1]
    phase_2.before_epoch(0)
    batch = batch_of(run.host, phase_2)
    step = phase_2.forward(batch)
    terms = phase_2.losses(step)
    z_p = run.method.plastic(batch.x).logits
    expected = 0.1 * slow_distillation(step.output.logits.detach().double(), z_p.double(), 5, 2.0)
    assert set(terms) == {"task", "stability", "plasticity"}
    assert terms["plasticity"].item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_a_run_with_flashback_learns() -> None:
    benchmark = tiny_benchmark()
    longer = {"training__epochs": 6, "training__lr": 0.02, "training__momentum": 0.9, "training__views": []}
    result = Trainer(quick_flashback("wa", benchmark, host__memory_size=35, **longer), benchmark).run()
    assert result["class_incremental"]["average_accuracy"] > 90
    assert result["class_incremental"]["zero_shot"] is not None  # classes to come have a column


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"host__temperature": 0.0}, "host.temperature must be above 0, not 0.0"),
        ({"host__memory_size": 0}, "host.memory_size must be at least 1, not 0"),
        ({"host__memory_size": None}, "set host.memory_size .in all. or host.memory_per_class"),
        ({"host__positive": "perhaps"}, "host.positive must be true or false"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FlashbackError, match=sentence):
        quick_config("wa", **settings)


def test_a_memory_with_no_room_for_every_class_is_refused() -> None:
    with pytest.raises(FlashbackError, match="less than one exemplar for each of the 7 classes"):
        quick_host("wa", host__memory_size=6)


def test_rows_without_a_length_are_left_alone() -> None:
    head = torch.nn.Linear(4, 3)
    with torch.no_grad():
        head.weight[2] = 0
    align_new_rows(head, slice(0, 2), slice(2, 3))
    assert torch.equal(head.weight[2], torch.zeros(4))
