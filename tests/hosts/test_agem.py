"""A-GEM: the projection against its definition, a memory of earlier tasks alone, and what flashback does with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from later_tasks import batch_of, changed, in_later_task, slow_cross_entropy, state_of
from torch import Tensor

from flashback import FlashbackError, Trainer
from flashback.hosts.agem import opposed_share
from flashback.knowledge import ReplayedTargets, flat
from flashback.training.step import TrainingStep
from helpers import quick_flashback, quick_host, tiny_benchmark

SMALL = {"host__memory_size": 20, "host__minibatch": 6, "training__momentum": 0.0, "training__weight_decay": 0.0}


def dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def slow_projection(gradient: list[float], reference: list[float]) -> list[float]:
    """Of all vectors that do not oppose the reference, the nearest."""
    if dot(gradient, reference) >= 0:
        return gradient
    share = dot(gradient, reference) / dot(reference, reference)
    return [a - share * b for a, b in zip(gradient, reference, strict=True)]


def noise(size: int, seed: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---------------------------------------------------------------- the projection


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("sign", [1, -1])
def test_a_gradient_that_opposes_the_reference_becomes_orthogonal_to_it(seed: int, sign: int) -> None:
    gradient, reference = noise(9, seed), noise(9, seed + 100)
    gradient = sign * gradient * (gradient @ reference).sign()  # with it, or against it
    projected = gradient - opposed_share(gradient, reference) * reference
    assert projected.tolist() == pytest.approx(slow_projection(gradient.tolist(), reference.tolist()), rel=1e-12)
    if sign > 0:
        assert torch.equal(projected, gradient)
    else:
        assert (projected @ reference).item() == pytest.approx(0, abs=1e-12)
        assert projected.norm() < gradient.norm()


def test_a_reference_of_nothing_changes_nothing() -> None:
    assert opposed_share(noise(5, 0), torch.zeros(5, dtype=torch.float64)).item() == 0


class Watched:
    """The gradients of steps before and after the hook, and the reference apart."""

    def __init__(self, host: Any) -> None:
        self.host, self.before, self.after, self.reference = host, [], [], []
        self.hook, self.read = host.before_update, host.reference_gradient
        host.before_update, host.reference_gradient = self.before_update, self.reference_gradient

    def gradient(self) -> Tensor:
        return flat([parameter.grad.clone() for parameter in self.host.trained_parameters()])

    def before_update(self, step: Any) -> None:
        self.before.append(self.gradient())
        self.hook(step)
        self.after.append(self.gradient())

    def reference_gradient(self, step: Any, parameters: Any) -> Any:
        parts = self.read(step, parameters)
        self.reference.append(flat(parts).clone())
        return parts


def steps_of(host: Any, count: int = 8) -> Watched:
    watched = Watched(host)
    (stage,) = host.stages()
    step = TrainingStep(host, stage, stage.stream(), "fp32")
    host.train()
    for k in range(count):
        step(torch.arange(k, len(step.stream), 5))
    return watched


@pytest.mark.parametrize("opposed", [True, False])
def test_updates_are_projected_in_real_steps(opposed: bool) -> None:
    host = in_later_task("agem", **SMALL).host
    if not opposed:  # as if the task were an old one
        rows = torch.arange(0, 36, 2)
        host.memory.write(torch.arange(18), host.task.train.x[rows], host.task.train.y[rows])
    steps = steps_of(host, count=2)
    for gradient, projected, reference in zip(steps.before, steps.after, steps.reference, strict=True):
        assert (float(gradient @ reference) < 0) == opposed
        expected = slow_projection(gradient.tolist(), reference.tolist())
        torch.testing.assert_close(projected, torch.tensor(expected), rtol=1e-3, atol=1e-6)
        assert torch.equal(projected, gradient) != opposed


def test_the_reference_is_the_gradient_of_the_loss_on_the_draw() -> None:
    host = in_later_task("agem", training__views=[], **SMALL).host
    batch, before = batch_of(host, host.stages()[0]), state_of(host.net)
    step = host.forward(batch)
    after = state_of(host.net)
    (draw,) = step.draws
    parameters = host.trained_parameters()
    reference = flat(host.reference_gradient(step, parameters))
    host.net.load_state_dict(before)
    host.net(batch.x)  # batch-norm statistics take in both batches, one after the other, as in DER
    logits = host.net(host.views.plain(host.memory.images[draw.slots])).logits
    assert not changed(after, host.net)
    rows = [-row.log_softmax(0)[label] for row, label in zip(logits, host.memory.labels[draw.slots], strict=True)]
    expected = flat(torch.autograd.grad(sum(rows) / len(rows), parameters))
    torch.testing.assert_close(reference, expected, rtol=1e-4, atol=1e-6)


def test_the_loss_is_that_of_finetuning() -> None:
    host = in_later_task("agem", **SMALL).host
    step = host.forward(batch_of(host, host.stages()[0]))
    terms = host.losses(step)
    expected = slow_cross_entropy(step.output.logits.detach().double(), step.batch.y.tolist(), 7)
    assert {name: term.item() for name, term in terms.items()} == {"task": pytest.approx(expected, rel=1e-5)}


def test_the_first_task_is_not_projected() -> None:
    host = quick_host("agem", **SMALL)
    steps = steps_of(host, count=2)
    assert not steps.reference
    assert all(torch.equal(a, b) for a, b in zip(steps.before, steps.after, strict=True))


def test_with_flashback_all_that_is_descended_is_projected() -> None:
    run = in_later_task("agem", flashback=True, stages=2, **SMALL)
    phase_2 = run.method.stages()[1]
    phase_2.before_epoch(0)
    watched = Watched(run.host)
    step = TrainingStep(run.host, run.method.stages()[1], phase_2.stream(), "fp32")
    for k in range(3):
        step(torch.arange(k, 36, 5))
    assert set(step.sums) == {"task", "plasticity"}
    for projected, reference in zip(watched.after, watched.reference, strict=True):
        assert float(projected @ reference) > -1e-5


# ---------------------------------------------------------------- the memory


def test_images_enter_the_memory_at_the_end_of_a_task_as_many_of_each_class() -> None:
    host = quick_host("agem", **SMALL)
    counts = []
    for task in host.benchmark.tasks:
        host.enter(task)
        steps_of(host, count=2)
        before = host.memory.filled
        host.end()
        memory = host.memory
        counts.append((before, torch.bincount(memory.labels[: memory.filled], minlength=7).tolist()))
        for image, label in zip(memory.images[: memory.filled], memory.labels[: memory.filled], strict=True):
            task_of_class = next(t for t in host.benchmark.tasks if int(label) in t.classes).train
            assert (task_of_class.x[task_of_class.y == label] == image).flatten(1).all(dim=1).any()
    assert [before for before, _ in counts] == [0, 20, 20]  # steps store nothing
    assert counts[0][1] == [10, 10, 0, 0, 0, 0, 0]
    assert counts[1][1] == [4, 4, 4, 4, 4, 0, 0]
    assert counts[2][1][:5] == [2, 2, 2, 2, 2]
    assert sum(counts[2][1]) == 20
    assert host.memory.field_names == ("images", "labels", "stamps")


def test_draws_come_from_earlier_tasks_alone() -> None:
    host = in_later_task("agem", **SMALL).host
    steps_of(host, count=2)
    (draw,) = host.forward(batch_of(host, host.stages()[0])).draws
    assert len(set(draw.slots.tolist())) == 6
    assert set(draw.labels.tolist()) <= {0, 1}


def test_a_memory_without_room_for_every_class_is_refused() -> None:
    with pytest.raises(FlashbackError, match=r"host\.memory_size is 6, less than one image for each of the 7 classes"):
        quick_host("agem", host__memory_size=6)


# ---------------------------------------------------------------- flashback


def test_plasticity_is_the_squared_error_on_the_draw_and_moves_no_statistics() -> None:
    run = in_later_task("agem", flashback=True, stages=2, training__views=[], **SMALL)
    phase_2, plastic, host = run.method.stages()[1], run.method.plastic, run.host
    assert isinstance(plastic, ReplayedTargets)
    plastic.targets.normal_(generator=torch.Generator().manual_seed(3))
    phase_2.before_epoch(0)
    step = phase_2.forward(batch_of(host, phase_2))
    before, (draw,) = state_of(host), step.draws
    terms = phase_2.losses(step)
    assert not changed(before, host)
    pairs = zip(draw.output.logits.tolist(), plastic.targets[draw.slots].tolist(), strict=True)
    squares = [(first - other) ** 2 for row, target in pairs for first, other in zip(row, target, strict=True)]
    assert set(terms) == {"task", "plasticity"}
    assert terms["plasticity"].item() == pytest.approx(0.1 * sum(squares) / len(squares), rel=1e-4)


def test_phase_2_starts_where_phase_1_did_with_the_answers_of_the_primary_model() -> None:
    run = in_later_task("agem", flashback=True, **SMALL)
    begun = state_of(run.host)
    phase_1, phase_2 = run.method.stages()
    step = TrainingStep(run.host, phase_1, phase_1.stream(), "fp32")
    for k in range(3):
        step(torch.arange(k, 36, 5))
    changes = changed(begun, run.host)
    assert any("running_mean" in name for name in changes)
    assert not any(name.startswith("memory.") for name in changes)
    phase_1.end()
    expected = run.host.embed(run.host.memory.images[:20], lambda output: output.logits)
    run.trainer.allocate(phase_2)
    phase_2.begin()
    assert not changed(begun, run.host)
    assert torch.equal(run.method.plastic.targets[:20], expected)


@pytest.mark.slow
def test_it_forgets_less_than_finetuning() -> None:
    """Where tasks are told; with all classes to choose from it is known to keep little."""
    settings = {"training__epochs": 6, "training__lr": 0.3, "training__momentum": 0.0, "training__views": []}
    benchmark, memory = tiny_benchmark(), {"host__memory_size": 35, "host__minibatch": 16}
    methods = {
        "finetune": quick_host("finetune", benchmark, **settings),
        "agem": quick_host("agem", benchmark, **settings, **memory),
        "with flashback": quick_flashback("agem", benchmark, **settings, **memory),
    }
    results = {name: Trainer(method, benchmark).run() for name, method in methods.items()}
    accuracy = {name: result["task_incremental"]["average_accuracy"] for name, result in results.items()}
    assert min(accuracy["agem"], accuracy["with flashback"]) > accuracy["finetune"] + 10
