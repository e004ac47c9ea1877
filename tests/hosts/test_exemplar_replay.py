"""Exemplar replay: its one loss, its exemplars, and the primary model's answers that flashback anchors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from later_tasks import batch_of, changed, in_later_task, made_step, slow_cross_entropy, some_steps, state_of

from flashback import FlashbackError, Trainer
from flashback.knowledge import ReplayedTargets
from helpers import herd, quick_config, quick_flashback, quick_host, tiny_benchmark

# ---------------------------------------------------------------- the loss and the exemplars


@pytest.mark.parametrize(("task", "labels", "seen"), [(0, [0, 1, 1], 2), (1, [0, 4, 2], 5), (2, [0, 6, 3], 7)])
def test_the_loss_is_cross_entropy_over_the_seen_classes_alone(task: int, labels: list[int], seen: int) -> None:
    host = quick_host("replay", host__memory_size=28)
    host.enter(host.benchmark.tasks[task])
    step = made_step(labels, 7)
    terms = host.losses(step)
    expected = slow_cross_entropy(step.output.logits.detach(), labels, seen)
    assert {name: term.item() for name, term in terms.items()} == {"task": pytest.approx(expected, rel=1e-12)}
    (slope,) = torch.autograd.grad(terms["task"], step.output.logits)
    assert slope[:, :seen].any()
    assert not slope[:, seen:].any()


def test_it_learns_from_new_images_and_exemplars_together_in_one_stage() -> None:
    run = in_later_task("replay", 2)
    (stage,) = run.host.stages()
    stream = stage.stream()
    assert (stage.name, stage.main) == ("learn", True)
    assert torch.bincount(stream.labels).tolist() == [5, 5, 5, 5, 5, 12, 12]
    assert (stream.slots >= 0).tolist() == [False] * 24 + [True] * 25


def test_exemplars_are_herded_from_features_of_unit_length() -> None:
    host = quick_host("replay", host__memory_size=8)
    host.enter(host.benchmark.tasks[0])
    host.end()
    images, labels = host.task.train.x, host.task.train.y
    features = host.embed(images, lambda output: output.features)
    expected = [images[labels == c][herd(features[labels == c], 4, normalise=True)] for c in (0, 1)]
    assert torch.equal(host.memory.images[:8], torch.cat(expected))


def test_it_keeps_no_old_model() -> None:
    host = in_later_task("replay").host
    assert host.stable is None
    assert "stability" not in host.losses(host.forward(batch_of(host, host.stages()[0])))


# ---------------------------------------------------------------- flashback


def test_plastic_knowledge_are_the_answers_of_the_primary_model_to_the_exemplars() -> None:
    run = in_later_task("replay", flashback=True)
    begun = state_of(run.host)
    phase_1, phase_2 = run.method.stages()
    some_steps(run.host, phase_1)
    changes = changed(begun, run.host)
    assert any("running_mean" in name for name in changes)
    assert not any(name.startswith("memory.") for name in changes)
    phase_1.end()
    memory = run.host.memory
    expected = run.host.embed(memory.images[: memory.filled], lambda output: output.logits)
    run.trainer.allocate(phase_2)
    phase_2.begin()
    assert not changed(begun, run.host)
    plastic = run.method.plastic
    assert isinstance(plastic, ReplayedTargets)
    assert torch.equal(plastic.targets[: memory.filled], expected)


def test_plasticity_is_the_squared_error_on_exemplars_and_seen_columns() -> None:
    run = in_later_task("replay", flashback=True, stages=2)
    phase_2, plastic = run.method.stages()[1], run.method.plastic
    plastic.targets.normal_(generator=torch.Generator().manual_seed(3))
    phase_2.before_epoch(0)
    batch = batch_of(run.host, phase_2)
    step = phase_2.forward(batch)
    stored = [(row, slot) for row, slot in enumerate(batch.slots.tolist()) if slot >= 0]
    assert 0 < len(stored) < len(batch)
    logits, targets = step.output.logits.tolist(), plastic.targets.tolist()
    squares = [(logits[row][c] - targets[slot][c]) ** 2 for row, slot in stored for c in range(5)]
    terms = phase_2.losses(step)
    assert set(terms) == {"task", "plasticity"}
    assert terms["plasticity"].item() == pytest.approx(0.1 * sum(squares) / len(squares), rel=1e-5)


def test_a_batch_without_exemplars_is_not_pulled() -> None:
    run = in_later_task("replay", flashback=True, stages=2)
    phase_2 = run.method.stages()[1]
    phase_2.before_epoch(0)
    batch = batch_of(run.host, phase_2)
    batch.slots.fill_(-1)
    assert phase_2.losses(phase_2.forward(batch))["plasticity"].item() == 0


def test_bytes_of_the_exemplars_and_of_answers_to_each() -> None:
    run = in_later_task("replay", flashback=True, stages=2)
    exemplar = 12 * 12 + 8 + 8  # an image, its label and its stamp
    sizes = run.method.knowledge_bytes()
    assert sizes["stable"] == 29 * exemplar + 3 * 8  # a row for writes masked out, and three counters
    assert sizes["plastic"] == 29 * (5 * 4 + 8)  # of the classes so far


@pytest.mark.slow
def test_a_run_with_flashback_learns_and_remembers() -> None:
    longer = {"training__epochs": 6, "training__lr": 0.02, "training__momentum": 0.9, "training__views": []}
    benchmark = tiny_benchmark()
    result = Trainer(quick_flashback("replay", benchmark, host__memory_size=35, **longer), benchmark).run()
    assert result["class_incremental"]["average_accuracy"] > 90
    plain = Trainer(quick_host("finetune", benchmark, **longer), benchmark).run()
    assert plain["class_incremental"]["average_accuracy"] < 60


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"host__memory_size": 0}, "host.memory_size must be at least 1, not 0"),
        ({"host__memory_size": None}, "set host.memory_size .in all. or host.memory_per_class"),
        ({"host__minibatch": 4}, "unknown key 'host.minibatch'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FlashbackError, match=sentence):
        quick_config("replay", **settings)
