"""BiC: the images held out, the corrected network, its two stages, and what flashback does with it."""

from __future__ import annotations

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

from flashback import FlashbackError, Trainer, build_host
from flashback.nets import build_backbone
from flashback.nets.heads import BiasCorrectedNet
from helpers import quick_config, quick_flashback, quick_host, tiny_benchmark


@torch.no_grad()
def correct(net: BiasCorrectedNet, *pairs: tuple[float, float]) -> None:
    for task, pair in enumerate(pairs):
        net.corrections[task].copy_(torch.tensor(pair))


def counts(labels: torch.Tensor) -> list[int]:
    return torch.bincount(labels, minlength=7).tolist()


# ---------------------------------------------------------------- the network


def made_net() -> BiasCorrectedNet:
    return BiasCorrectedNet(build_backbone("smallcnn", (1, 12, 12)), [2, 3, 2]).eval()


def test_logits_of_each_task_have_a_scale_and_a_shift() -> None:
    net, x = made_net(), torch.rand(4, 1, 12, 12)
    features = net.backbone(x)
    raw = net.head(features)
    assert torch.equal(net(x).logits, raw)  # the corrections start as none
    pairs = [(0.5, 1.0), (2.0, -0.25), (-1.0, 3.0)]
    correct(net, *pairs)
    output = net(x)
    assert torch.equal(output.features, features)
    task_of = [0, 0, 1, 1, 1, 2, 2]
    for row in range(4):
        for column, task in enumerate(task_of):
            scale, shift = pairs[task]
            expected = scale * raw[row, column].item() + shift
            assert output.logits[row, column].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("task", [None, 0, 2])
def test_either_one_correction_is_trained_or_all_but_the_corrections(task: int | None) -> None:
    net = made_net()
    net.train_only(task)
    trained = {name for name, parameter in net.named_parameters() if parameter.requires_grad}
    if task is None:
        assert trained == {name for name, _ in net.named_parameters() if not name.startswith("corrections")}
    else:
        assert trained == {f"corrections.{task}"}


# ---------------------------------------------------------------- images held out


@pytest.mark.parametrize(("share", "memory", "task", "count"), [
    (0.1, 28, 1, 1), (0.25, 28, 1, 3), (0.5, 28, 1, 6), (0.5, 28, 2, 2), (0.29, 700, 1, 29), (0.1, 14, 2, 1),
])  # fmt: skip
def test_as_many_of_every_class_are_held_out(share: float, memory: int, task: int, count: int) -> None:
    """A share of what an old class has, rounded down, and at least one."""
    benchmark = tiny_benchmark(per_class=100 if memory == 700 else 12)
    run = in_later_task(
        "bic", task, 0, benchmark=benchmark, host__held_out=share, host__memory_size=memory, training__epochs=1,
        host__correction_epochs=1,
    )  # fmt: skip
    host, seen = run.host, run.host.task.seen.stop
    stored, new = host.memory_stream().labels, host.task.train.y
    learned, held_out = host.split_stream()
    assert counts(held_out.labels) == [count] * seen + [0] * (7 - seen)
    assert [sum(pair) for pair in zip(counts(learned.labels), counts(held_out.labels), strict=True)] == counts(
        torch.cat([stored, new])
    )


def test_no_image_is_in_both_parts_and_none_is_lost() -> None:
    run = in_later_task("bic", 2, 0, host__held_out=0.4)
    stored = run.host.memory.images[: run.host.memory.filled]
    everything = torch.cat([run.host.task.train.x, stored]).flatten(1)
    parts = torch.cat([part.images for part in run.host.split_stream()]).flatten(1)
    assert sorted(map(tuple, everything.tolist())) == sorted(map(tuple, parts.tolist()))
    for part in run.host.split_stream():
        old = part.slots >= 0
        assert torch.equal(old, part.labels < 5)
        assert torch.equal(part.images[old], run.host.memory.images[part.slots[old]])
        assert torch.equal(part.labels[old], run.host.memory.labels[part.slots[old]])


def test_the_parts_of_a_task_are_the_same_whenever_they_are_asked_for() -> None:
    run = in_later_task("bic", host__held_out=0.4)
    first = run.host.split_stream()
    torch.rand(3, generator=run.host.generator)
    for one, other in zip(first, run.host.split_stream(), strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.slots, other.slots)
    other_seed = in_later_task("bic", host__held_out=0.4, seed=1).host.split_stream()
    assert not torch.equal(first[1].images, other_seed[1].images)


def test_the_first_task_holds_nothing_out() -> None:
    host = quick_host("bic", host__memory_size=28)
    (stage,) = host.stages()
    assert counts(stage.stream().labels) == [12, 12, 0, 0, 0, 0, 0]
    stage.end()
    assert host.memory.filled == 24


# ---------------------------------------------------------------- stages


def test_stages_and_their_settings() -> None:
    run = in_later_task("bic", stages=0, host__correction_epochs=3, host__correction_lr=0.5)
    learn, correction = run.host.stages()
    assert (learn.name, learn.main) == ("learn", True)
    assert (correction.name, correction.main, correction.epochs) == ("bias correction", False, 3)
    assert (correction.optimisation.lr, correction.optimisation.weight_decay) == (0.5, 0.01)
    like_main = in_later_task("bic", stages=0).host.stages()[1]
    assert (like_main.epochs, like_main.optimisation.lr) == (learn.epochs, learn.optimisation.lr)


@pytest.mark.parametrize("index", [0, 1])
def test_what_each_stage_moves(index: int) -> None:
    run = in_later_task("bic", 2, stages=index + 1)
    before = state_of(run.host)
    some_steps(run.host, run.host.stages()[index])
    changes = changed(before, run.host)
    if index == 0:
        assert {name for name in changes if "num_batches" not in name} == {
            f"net.{name}" for name in run.host.net.state_dict() if not name.startswith("corrections")
            and "num_batches" not in name
        }  # fmt: skip
    else:
        assert changes == {"net.corrections.2"}  # neither earlier corrections nor batch-norm statistics


def test_everything_trains_again_after_a_correction() -> None:
    run = in_later_task("bic", 2)
    trained = {id(parameter) for parameter in run.host.stages()[0].parameters()}
    assert trained == {id(p) for p in [*run.host.net.backbone.parameters(), *run.host.net.head.parameters()]}


def test_the_memory_is_refilled_after_the_correction_alone() -> None:
    run = in_later_task("bic", stages=1)
    learn, correction = run.host.stages()
    stored = state_of(run.host.memory)
    learn.end()
    assert not changed(stored, run.host.memory)
    correction.end()
    assert counts(run.host.memory_stream().labels) == [5, 5, 5, 5, 5, 0, 0]


def test_the_correction_takes_back_what_new_classes_are_favoured_by() -> None:
    """With logits of new classes that are raised by 2, it learns to shift them down again."""
    run = in_later_task("bic", stages=2, host__held_out=0.5)
    host, stage = run.host, run.host.stages()[1]
    with torch.no_grad():
        host.net.head.weight.zero_()
        host.net.head.bias.copy_(torch.tensor([1.0, 1, 3, 3, 3]))
    some_steps(host, stage, steps=200, lr=0.1, every=1)
    scale, shift = host.net.corrections[1].tolist()
    # Held out are as many of each class: every seen class is as likely as any other.
    assert 3 * scale + shift == pytest.approx(1.0, abs=0.05)


# ---------------------------------------------------------------- losses


@pytest.mark.parametrize(("task", "old", "seen"), [(1, 2, 5), (2, 5, 7)])
def test_losses_of_both_stages_against_their_definitions(task: int, old: int, seen: int) -> None:
    host = in_later_task("bic", task, host__temperature=3.0).host
    labels = [0, old - 1, old, seen - 1, 1]
    step, teacher = made_step(labels, 7), made_step(labels, 7, seed=1).output.logits.detach()
    host.stable = Answers(teacher)
    learn, correction = host.stages()
    terms, z = learn.losses(step), step.output.logits.detach()
    classification, share = slow_cross_entropy(z, labels, seen), old / seen
    distillation = slow_distillation(z, teacher, old, 3.0)
    assert list(terms) == ["task", "stability"]
    assert terms["task"].item() == pytest.approx((1 - share) * classification, rel=1e-12)
    assert terms["stability"].item() == pytest.approx(share * distillation, rel=1e-12)
    (term,) = correction.losses(step).values()
    assert term.item() == pytest.approx(classification, rel=1e-12)


def test_old_answers_are_the_corrected_ones() -> None:
    """The old model is kept with its corrections, and old classes are learned with theirs."""
    run = in_later_task("bic", 2, stages=0)
    correct(run.host.net, (1.0, 0.0), (0.7, -0.4))
    run.host.eval()
    x = run.host.views.plain(run.benchmark.tasks[2].test.x)
    before = run.host.net(x).logits
    run.trainer.allocate(run.host.stages()[0])
    run.host.eval()
    assert torch.equal(run.host.stable(x).logits, before)
    raw = run.host.net.head(run.host.net.backbone(x))
    torch.testing.assert_close(run.host.net(x).logits[:, 2:5], 0.7 * raw[:, 2:5] - 0.4)
    assert torch.equal(run.host.scores(x), before)


# ---------------------------------------------------------------- knowledge


def test_flashback_splits_the_first_stage_and_corrects_once() -> None:
    run = in_later_task("bic", flashback=True)
    begun = state_of(run.host)
    phase_1, phase_2, _ = run.method.stages()
    assert [stage.name for stage in run.method.stages()] == ["phase 1", "phase 2", "bias correction"]
    assert torch.equal(phase_1.stream().images, phase_2.stream().images)
    some_steps(run.host, phase_1)
    primary = state_of(run.host.net)
    assert changed(begun, run.host)
    run.trainer.allocate(phase_2)
    phase_2.begin()
    assert not changed(begun, run.host)
    assert not changed(primary, run.method.plastic.model.module)
    phase_2.before_epoch(0)
    batch = batch_of(run.host, phase_2)
    step = phase_2.forward(batch)
    terms, z_p = phase_2.losses(step), run.method.plastic(batch.x).logits
    expected = 0.1 * slow_distillation(step.output.logits.detach().double(), z_p.double(), 5, 2.0)
    assert terms["plasticity"].item() == pytest.approx(expected, rel=1e-4)
    phase_2.end()
    assert torch.equal(run.host.net.corrections[1], torch.tensor([1.0, 0.0]))


def test_it_keeps_the_old_model_and_exemplars_and_flashback_another_model() -> None:
    run = in_later_task("bic", flashback=True, stages=2)
    model = sum(tensor.nbytes for tensor in run.host.net.state_dict().values())
    exemplar = 12 * 12 + 8 + 8  # an image, its label and its stamp
    assert run.method.knowledge_bytes() == {"stable": model + 24 * exemplar, "plastic": model}


@pytest.mark.slow
def test_a_run_with_flashback_learns() -> None:
    benchmark = tiny_benchmark()
    longer = {"training__epochs": 6, "training__lr": 0.02, "training__momentum": 0.9, "training__views": []}
    method = quick_flashback("bic", benchmark, host__memory_size=35, **longer)
    result = Trainer(method, benchmark).run()
    assert result["class_incremental"]["average_accuracy"] > 90
    pairs = [pair.tolist() for pair in method.host.net.corrections]
    assert pairs[0] == [1.0, 0.0]  # the first task is never corrected
    assert all(pair != [1.0, 0.0] for pair in pairs[1:])


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"host__held_out": 0.0}, "host.held_out must lie in \\(0, 1\\), not 0.0"),
        ({"host__held_out": 1.0}, "host.held_out must lie in \\(0, 1\\), not 1.0"),
        ({"host__correction_epochs": 0}, "host.correction_epochs must be at least 1, not 0"),
        ({"host__correction_lr": 0.0}, "host.correction_lr must be above 0, not 0.0"),
        ({"host__temperature": -1.0}, "host.temperature must be above 0, not -1.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FlashbackError, match=sentence):
        quick_config("bic", **settings)


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"host__memory_size": 9}, "host.memory_size"), ({"host__memory_per_class": 1}, "host.memory_per_class")],
)
def test_a_memory_without_two_exemplars_of_an_old_class_is_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(FlashbackError, match=f"it needs two at least; raise {named}$"):
        quick_host("bic", **settings)
    build_host(quick_config("bic", host__memory_size=10), tiny_benchmark(), "cpu")


def test_a_class_of_a_single_image_is_refused() -> None:
    """It would be held out, and never learned."""
    host = quick_host("bic", tiny_benchmark((2, 2), per_class=1), host__memory_size=8)
    with pytest.raises(FlashbackError, match="holds out an image of every class"):
        Trainer(host, host.benchmark).run()
