"""LwF: its two losses without a memory, which columns they train, and what flashback does with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from later_tasks import (
    Answers,
    changed,
    in_later_task,
    made_step,
    slow_cross_entropy,
    slow_distillation,
    some_steps,
    state_of,
)

from flashback import FlashbackError, Trainer
from flashback.knowledge import ModelKnowledge
from helpers import quick_flashback, quick_host, tiny_benchmark

SMALL = {"training__momentum": 0.9, "training__weight_decay": 0.01}


def in_task(task: int = 1, stages: int = 1, flashback: bool = False, **settings: Any) -> Any:
    return in_later_task("lwf", task, stages, flashback, small=SMALL, **settings)


# ---------------------------------------------------------------- losses


@pytest.mark.parametrize(("task", "old", "seen"), [(1, 2, 5), (2, 5, 7)])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("columns", ["new", "seen"])
def test_losses_by_hand(task: int, old: int, seen: int, temperature: float, columns: str) -> None:
    host = in_task(task, host__temperature=temperature, host__columns=columns, host__strength=0.7).host
    labels = [old, seen - 1, old]
    step, teacher = made_step(labels, 7), made_step(labels, 7, seed=1).output.logits.detach()
    host.stable = Answers(teacher)
    terms, z = host.losses(step), step.output.logits.detach()
    assert list(terms) == ["task", "stability"]
    first = old if columns == "new" else 0
    expected = slow_cross_entropy(z[:, first:], [label - first for label in labels], seen - first)
    assert terms["task"].item() == pytest.approx(expected, rel=1e-12)
    expected = 0.7 * slow_distillation(z, teacher, old, temperature)
    assert terms["stability"].item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("columns", "trained"), [("new", [2, 3, 4]), ("seen", [0, 1, 2, 3, 4])])
def test_classification_leaves_old_columns_alone_unless_asked_for(columns: str, trained: list[int]) -> None:
    host = in_task(host__columns=columns).host
    step = made_step([2, 4, 3], 7)
    host.stable = Answers(step.output.logits.detach())
    (slope,) = torch.autograd.grad(host.losses(step)["task"], step.output.logits)
    assert torch.nonzero(slope.abs().sum(dim=0)).flatten().tolist() == trained


def test_the_first_task_is_plain_cross_entropy_over_its_own_columns() -> None:
    host = quick_host("lwf")
    step = made_step([0, 1, 1], 7)
    terms = host.losses(step)
    expected = slow_cross_entropy(step.output.logits.detach(), [0, 1, 1], 2)
    assert {name: term.item() for name, term in terms.items()} == {"task": pytest.approx(expected, rel=1e-12)}


def test_it_has_no_memory_and_learns_from_new_images_alone() -> None:
    run = in_task(2)
    (stage,) = run.host.stages()
    assert run.host.memory is None
    assert torch.bincount(stage.stream().labels).tolist() == [0, 0, 0, 0, 0, 12, 12]


# ---------------------------------------------------------------- knowledge and flashback


def test_it_keeps_the_model_before_the_task_and_flashback_another() -> None:
    run = in_task(flashback=True, stages=2)
    assert isinstance(run.host.stable, ModelKnowledge)
    model = sum(tensor.nbytes for tensor in run.host.net.state_dict().values())
    assert run.method.knowledge_bytes() == {"stable": model, "plastic": model}


def test_plasticity_is_the_same_distance_over_all_seen_columns() -> None:
    host = in_task(host__strength=0.3).host
    step = made_step([2, 3, 4], 7)
    primary = made_step([2, 3, 4], 7, seed=2).output.logits.detach()
    distance = host.weighted_distance(step, Answers(primary), host.plasticity_support())
    assert distance.item() == pytest.approx(slow_distillation(step.output.logits.detach(), primary, 5, 2.0), rel=1e-12)


def test_phase_2_starts_where_phase_1_did_with_the_primary_model_as_plastic_knowledge() -> None:
    run = in_task(flashback=True)
    begun = state_of(run.host)
    phase_1, phase_2 = run.method.stages()
    some_steps(run.host, phase_1)
    primary = state_of(run.host.net)
    assert any("running_mean" in name for name in changed(begun, run.host))
    phase_1.end()
    run.trainer.allocate(phase_2)
    phase_2.begin()
    assert not changed(begun, run.host)
    assert not changed(primary, run.method.plastic.model.module)


def test_answers_for_old_classes_stay_nearer_with_distillation() -> None:
    distances = {}
    for strength in (0.0, 20.0):
        host = in_task(host__strength=strength, training__views=[]).host
        stage, old = host.stages()[0], host.task.old
        some_steps(host, stage, steps=8)
        x = host.views.plain(host.task.train.x)
        with torch.no_grad():
            now, before = host.net.eval()(x).logits, host.stable(x).logits
        entropy = slow_distillation(before, before, old.stop, 2.0)  # what remains where nothing moves
        distances[strength] = slow_distillation(now, before, old.stop, 2.0) - entropy
    assert 0 < distances[20.0] < 0.5 * distances[0.0]


def test_a_run_with_flashback_learns_new_classes() -> None:
    benchmark = tiny_benchmark()
    method = quick_flashback("lwf", benchmark, training__epochs=4, training__views=[])
    log: list[Any] = []
    result = Trainer(method, benchmark, [log.append]).run()
    assert all(row[-1] > 80 for row in result["task_incremental"]["matrix"])
    last = next(event for event in reversed(log) if event["event"] == "epoch")["losses"]
    assert set(last) == {"task", "stability", "plasticity"}


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"host__temperature": 0.0}, r"host\.temperature must be above 0"),
        ({"host__strength": -1.0}, r"host\.strength"),
        ({"host__columns": "all"}, r"host\.columns"),
        ({"host__memory_size": 20}, r"unknown key 'host\.memory_size'"),
        ({"flashback__support": "memory"}, r"flashback\.support=memory needs a host with a memory; lwf has none"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FlashbackError, match=sentence):
        quick_flashback("lwf", **settings)
