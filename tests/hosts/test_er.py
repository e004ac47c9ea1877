"""ER: one batch of new and stored images, a reservoir of images and labels alone, and what flashback does with it."""

from __future__ import annotations

import pytest
import torch
from later_tasks import batch_of, changed, in_later_task, made_step, slow_cross_entropy, some_steps, state_of

from flashback import FlashbackError, Trainer
from flashback.hosts.replay import Draw, ReplayStep
from flashback.knowledge import ReplayedTargets
from helpers import quick_config, quick_flashback, quick_host, tiny_benchmark

SMALL = {"host__memory_size": 20, "host__minibatch": 6}
LONGER = {"training__epochs": 6, "training__lr": 0.02, "training__momentum": 0.9, "training__views": []}


# ---------------------------------------------------------------- the loss


@pytest.mark.parametrize(("new", "old"), [([2, 4, 3, 3, 2, 4], [0, 1]), ([2, 3], [0, 1, 1, 4, 0, 2])])
def test_the_loss_is_the_mean_over_new_and_drawn_images_alike(new: list[int], old: list[int]) -> None:
    step, replay_step = made_step(new, 7), made_step(old, 7, seed=1)
    draw = Draw(torch.arange(len(old)), replay_step.batch.y, replay_step.batch.x)
    draw.output = replay_step.output
    terms = quick_host("er", **SMALL).losses(ReplayStep(step.batch, step.output, [draw]))
    assert list(terms) == ["task", "replay"]
    whole = torch.cat([step.output.logits, replay_step.output.logits]).detach()
    expected = slow_cross_entropy(whole, [*new, *old], 7)  # future classes take part, as in DER
    assert sum(terms.values()).item() == pytest.approx(expected, rel=1e-12)
    replayed = len(old) / (len(new) + len(old)) * slow_cross_entropy(replay_step.output.logits.detach(), old, 7)
    assert terms["replay"].item() == pytest.approx(replayed, rel=1e-12)


def test_an_empty_memory_is_not_replayed() -> None:
    host = quick_host("er", **SMALL)
    batch = batch_of(host, host.stages()[0])
    step = host.forward(batch)
    terms = host.losses(step)
    assert (step.draws, list(terms)) == ([], ["task"])
    expected = slow_cross_entropy(step.output.logits.detach().double(), batch.y.tolist(), 7)
    assert terms["task"].item() == pytest.approx(expected, rel=1e-5)


def test_new_and_drawn_images_are_one_batch_for_batch_norm() -> None:
    """Algorithm 1 of Chaudhry et al.; DER sends them through one by one."""
    host = in_later_task("er", training__views=[], **SMALL).host
    batch = batch_of(host, host.stages()[0])
    before = state_of(host.net)
    step = host.forward(batch)
    state, (draw,) = state_of(host.net), step.draws
    host.net.load_state_dict(before)
    whole = host.net(torch.cat([batch.x, host.views.plain(host.memory.images[draw.slots])])).logits
    assert not changed(state, host.net)
    torch.testing.assert_close(step.output.logits, whole[: len(batch)])
    torch.testing.assert_close(draw.output.logits, whole[len(batch) :])
    assert torch.equal(draw.labels, host.memory.labels[draw.slots])


# ---------------------------------------------------------------- the memory


def test_the_reservoir_gets_raw_images_and_labels_and_nothing_else() -> None:
    host = quick_host("er", host__memory_size=40)
    (stage,) = host.stages()
    some_steps(host, stage, steps=1)
    stream = stage.stream()
    assert host.memory.field_names == ("images", "labels", "stamps")
    assert torch.equal(host.memory.images[: host.memory.filled], stream.images[::2])
    assert torch.equal(host.memory.labels[: host.memory.filled], stream.labels[::2])


def test_it_keeps_no_old_model_and_no_old_answers() -> None:
    host = in_later_task("er", **SMALL).host
    assert host.stable is None
    assert not host.has_stability
    assert "stability" not in host.losses(host.forward(batch_of(host, host.stages()[0])))


# ---------------------------------------------------------------- flashback


def test_plastic_knowledge_are_the_answers_of_the_primary_model_to_the_memory_of_before_the_task() -> None:
    run = in_later_task("er", flashback=True, **SMALL)
    begun, memory = state_of(run.host), run.host.memory
    phase_1, phase_2 = run.method.stages()
    some_steps(run.host, phase_1)
    changes = changed(begun, run.host)
    assert {"memory.images", "memory.seen", "memory.clock"} <= changes
    assert any("running_mean" in name for name in changes)
    expected = run.host.embed(begun["memory.images"][:20], lambda output: output.logits)
    run.trainer.allocate(phase_2)
    phase_2.begin()
    assert not changed(begun, run.host)
    plastic = run.method.plastic
    assert isinstance(plastic, ReplayedTargets)
    assert memory.filled == 20
    assert torch.equal(plastic.targets[:20], expected)


def test_plasticity_is_the_squared_error_on_the_draw_over_all_columns() -> None:
    run = in_later_task("er", flashback=True, stages=2, **SMALL)
    phase_2, plastic = run.method.stages()[1], run.method.plastic
    plastic.targets.normal_(generator=torch.Generator().manual_seed(3))
    phase_2.before_epoch(0)
    step = phase_2.forward(batch_of(run.host, phase_2))
    (draw,) = step.draws
    pairs = zip(draw.output.logits.tolist(), plastic.targets[draw.slots].tolist(), strict=True)
    squares = [(first - other) ** 2 for row, target in pairs for first, other in zip(row, target, strict=True)]
    terms = phase_2.losses(step)
    assert set(terms) == {"task", "replay", "plasticity"}
    assert terms["plasticity"].item() == pytest.approx(0.1 * sum(squares) / len(squares), rel=1e-5)


@pytest.mark.parametrize("host", ["er", "agem"])
def test_bytes_of_the_memory_and_of_answers_to_each_image(host: str) -> None:
    run = in_later_task(host, flashback=True, stages=2, **SMALL)
    row = 12 * 12 + 8 + 8  # an image, its label and its stamp
    sizes = run.method.knowledge_bytes()
    assert sizes["stable"] == 21 * row + 3 * 8  # a row for writes masked out, and three counters
    assert sizes["plastic"] == 21 * (7 * 4 + 8)


def test_a_run_with_flashback_learns_and_remembers() -> None:
    benchmark = tiny_benchmark()
    result = Trainer(quick_flashback("er", benchmark, host__memory_size=35, **LONGER), benchmark).run()
    assert result["class_incremental"]["average_accuracy"] > 90
    plain = Trainer(quick_host("finetune", benchmark, **LONGER), benchmark).run()
    assert plain["class_incremental"]["average_accuracy"] < 60


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("setting", "value", "sentence"),
    [
        ("memory_size", 0, "host.memory_size must be at least 1, not 0"),
        ("minibatch", 0, "host.minibatch must be at least 1, not 0"),
        ("alpha", 0.1, "unknown key 'host.alpha'"),
    ],
)
@pytest.mark.parametrize("host", ["er", "agem"])
def test_settings_that_make_no_sense_are_refused(host: str, setting: str, value: float, sentence: str) -> None:
    with pytest.raises(FlashbackError, match=sentence):
        quick_config(host, **{f"host__{setting}": value})
