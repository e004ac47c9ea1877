"""X-DER's five ingredients, each against a slow, obvious computation, its memory policy, and runs with Flashback."""

from __future__ import annotations

import copy
import math
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from flashback import FlashbackError, Trainer
from flashback.batches import Batch
from flashback.hosts.replay import Draw
from flashback.hosts.xder import XDER, XDERStep, attenuated, mean_violation, supervised_contrastive
from flashback.nets import Output
from flashback.training.trainer import Position
from helpers import quick_config, quick_flashback, quick_host, tiny_benchmark

SMALL = {"host__memory_size": 14, "host__minibatch": 5, "host__contrastive_batch": 4}
SIZES = (2, 3, 2)  # columns 0-1, 2-4, 5-6


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def batch_of(host: XDER, task: int, size: int = 8) -> Batch:
    """Spread over the classes of a task."""
    images = host.benchmark.tasks[task].train
    rows = torch.arange(0, len(images), len(images) // size)[:size]
    raw, y = images.x[rows], images.y[rows]
    return Batch(host.views.weak(raw, host.generator), y, raw, torch.full_like(y, -1))


def host_in(task: int, **changes) -> XDER:
    """A host at the beginning of a task, with a memory filled by the ends of the tasks before, untrained."""
    host = quick_host("xder", **{**SMALL, **changes})
    host.generator.manual_seed(3)
    for past in host.benchmark.tasks[:task]:
        host.enter(past)
        host.end()
    host.enter(host.benchmark.tasks[task])
    return host


def made_step(host: XDER, *slots: list[int], stream: torch.Tensor | None = None) -> XDERStep:
    """A step with given slots in its draws and random answers."""
    batch = batch_of(host, host.task.index)
    draws = []
    for k, slot in enumerate(slots):
        index = torch.tensor(slot)
        draws.append(Draw(index, host.memory.labels[index], host.memory.images[index]))
        draws[-1].output = Output(noise(len(slot), 3), 2 * noise(len(slot), 7, seed=k + 1))
    return XDERStep(batch, Output(noise(8, 3), 2 * noise(8, 7, seed=9) if stream is None else stream), draws, None)


# ---------------------------------------------------------------- memory editing


def slow_attenuated(rows: list[list[float]], truths: list[float], gamma: float) -> list[list[float]]:
    result = []
    for row, truth in zip(rows, truths, strict=True):
        scale = min(gamma * truth / max(row), 1.0) if max(row) > truth > 0 else 1.0
        result.append([scale * value for value in row])
    return result


@given(st.integers(0, 10_000), st.integers(1, 5), st.floats(0.1, 1.0))
@settings(max_examples=40)
def test_attenuation_row_by_row(seed: int, width: int, gamma: float) -> None:
    logits, truth = 3 * noise(30, width, seed=seed), 2 * noise(30, 1, seed=seed + 1)
    result = attenuated(logits, truth, gamma)
    expected = torch.tensor(slow_attenuated(logits.tolist(), truth[:, 0].tolist(), gamma))
    torch.testing.assert_close(result, expected)
    largest, before = result.amax(1), logits.amax(1)
    exceeded = (before > truth[:, 0]) & (truth[:, 0] > 0)
    assert (largest[exceeded] <= gamma * truth[exceeded, 0] + 1e-5).all()
    assert torch.equal(result[~exceeded], logits[~exceeded])


def test_editing_writes_the_first_answer_to_each_slot_once() -> None:
    host = host_in(1)
    memory = host.memory
    before = {name: memory[name].clone() for name in memory.field_names}
    step = made_step(host, [4, 1, 7], [1, 9, 4])
    host.after_step(step)
    edited = {4: step.draws[0].output.logits[0], 1: step.draws[0].output.logits[1], 7: step.draws[0].output.logits[2]}
    edited[9] = step.draws[1].output.logits[1]
    for slot in range(14):
        row = before["targets"][slot].clone()
        if slot in edited:
            truth = row[before["labels"][slot]].item()
            row[2:] = torch.tensor(slow_attenuated([edited[slot][2:].tolist()], [truth], 0.85)[0])
        torch.testing.assert_close(memory["targets"][slot], row)
        assert memory["replays"][slot].item() == (slot in edited)
    for name in ("images", "labels", "stamps"):
        assert torch.equal(memory[name], before[name])


@pytest.mark.parametrize("times", [1, 2, 4, 10])
def test_a_slot_is_edited_with_probability_one_over_its_replays(times: int) -> None:
    host = host_in(1)
    start = host.memory["targets"].clone()
    edits, rounds = 0, 150
    for _ in range(rounds):
        host.memory["targets"].copy_(start)
        host.memory["replays"].fill_(times - 1)
        host.after_step(made_step(host, list(range(7)), list(range(7, 14))))
        edits += (host.memory["targets"][:14] != start[:14]).any(dim=1).sum().item()
        assert (host.memory["replays"][:14] == times).all()
    share, n = 1 / times, 14 * rounds
    assert abs(edits / n - share) <= 4 * math.sqrt(share * (1 - share) / n)


# ---------------------------------------------------------------- the terms of the loss


def test_cross_entropies_are_separated() -> None:
    host = host_in(1)
    step = made_step(host, [0, 3, 5], [2, 8, 13])
    terms = host.losses(step)
    logits, second = step.output.logits, step.draws[1]
    task = [-row[2:5].log_softmax(0)[y - 2] for row, y in zip(logits, step.batch.y.tolist(), strict=True)]
    replay = [-row[:2].log_softmax(0)[y] for row, y in zip(second.output.logits, second.labels.tolist(), strict=True)]
    assert terms["task"].item() == pytest.approx(sum(task).item() / 8, rel=1e-5)
    assert terms["replay"].item() == pytest.approx(0.9 * sum(replay).item() / 3, rel=1e-5)
    stored = host.memory["targets"][[0, 3, 5]]
    stability = 0.6 * (step.draws[0].output.logits - stored).square().sum().item() / 21
    assert terms["stability"].item() == pytest.approx(stability, rel=1e-5)


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (0, {"task", "preparation", "future constraint"}),
        (1, {"task", "stability", "replay", "past constraint", "preparation", "future constraint"}),
        (2, {"task", "stability", "replay", "past constraint"}),
    ],
)
def test_terms_and_passes_of_each_task(task: int, expected: set[str]) -> None:
    host = host_in(task)
    passes = []
    host.net.register_forward_pre_hook(lambda _, args: passes.append(len(args[0])))
    step = host.forward(batch_of(host, task))
    assert set(host.losses(step)) == expected
    assert passes == [sum({0: [8, 8], 1: [8, 5, 5, 16], 2: [8, 5, 5]}[task])]  # stream, draws, two strong views
    assert (len(step.draws), host.variant()[0]) == ((2, 5) if task else (0, 0))
    assert all(len(set(draw.slots.tolist())) == 5 for draw in step.draws)


def test_strong_views_leave_batchnorm_statistics_alone() -> None:
    host = host_in(0)
    alone = copy.deepcopy(host.net)
    batch = batch_of(host, 0)
    alone(batch.x)
    host.forward(batch)
    buffers = dict(host.net.named_buffers())
    for name, buffer in alone.named_buffers():
        torch.testing.assert_close(buffer, buffers[name], msg=name)


def test_strong_views_are_of_the_first_new_and_of_stored_images() -> None:
    host = host_in(1)
    batch = batch_of(host, 1)
    views, labels = host.strong_views(batch)
    assert views.shape == (16, *batch.x.shape[1:])
    assert torch.equal(labels[:8], labels[8:])
    assert torch.equal(labels[:4], batch.y[:4])
    assert set(labels[4:8].tolist()) <= {0, 1}


@given(st.integers(0, 1000), st.integers(1, 4), st.sampled_from([0.5, 5.0]))
@settings(max_examples=20)
def test_contrastive_loss_by_two_loops(seed: int, width: int, temperature: float) -> None:
    samples = 6
    vectors = noise(2 * samples, width, seed=seed)
    labels = torch.randint(0, 3, (samples,), generator=torch.Generator().manual_seed(seed)).repeat(2)
    unit = F.normalize(vectors, dim=1)
    per_sample = [0.0] * samples
    for a in range(2 * samples):
        others = [c for c in range(2 * samples) if c != a]
        total = math.log(sum(math.exp((unit[a] @ unit[c]).item() / temperature) for c in others))
        positives = [b for b in others if labels[b] == labels[a]]
        value = -sum((unit[a] @ unit[b]).item() / temperature - total for b in positives) / len(positives)
        per_sample[a % samples] += value / 2
    expected = sum(per_sample) / samples
    assert supervised_contrastive(vectors, labels, temperature).item() == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_preparation_is_the_mean_over_future_heads_of_unequal_width() -> None:
    host = host_in(0)
    logits, labels = noise(8, 7), torch.tensor([0, 1, 1, 0] * 2)
    heads = [supervised_contrastive(logits[:, columns], labels, 5.0) for columns in (slice(2, 5), slice(5, 7))]
    assert host.preparation(logits, labels).item() == pytest.approx((heads[0] + heads[1]).item() / 2)
    logits.requires_grad_()
    host.preparation(logits, labels).backward()
    assert (logits.grad[:, :2] == 0).all()
    assert (logits.grad[:, 2:] != 0).any(dim=0).all()


def test_past_constraint_by_a_loop() -> None:
    host = host_in(1)
    logits = (2 * noise(8, 7, seed=4)).requires_grad_()
    loss = host.past_constraint(made_step(host, [0], [1], stream=logits))
    hinges = []
    for row in logits.detach():
        share = row[:5].softmax(0)
        hinges.append((share[:2].max() + 0.2 - share[2:].max()).item())
    violations = [value for value in hinges if value > 0]
    assert 0 < len(violations) < 8
    assert loss.item() == pytest.approx(sum(violations) / len(violations), rel=1e-5)
    # The past probability is no variable: the gradient is that of the present one alone.
    loss.backward()
    gradient, logits.grad = logits.grad, None
    share = logits[:, :5].softmax(dim=1)[:, 2:].amax(dim=1)
    (-share[torch.tensor(hinges) > 0].mean()).backward()
    torch.testing.assert_close(gradient, logits.grad)


def test_future_constraint_by_a_loop() -> None:
    host = host_in(1, host__margin=0.7)
    step = made_step(host, [4, 1, 7], [1, 9, 4])
    heads = {0: slice(0, 2), 1: slice(2, 5), 2: slice(5, 7)}
    rows = [(row, 1) for row in step.output.logits]
    seen: set[int] = set()
    for draw in step.draws:
        for slot, row in zip(draw.slots.tolist(), draw.output.logits, strict=True):
            rows += [(row, 0)] if slot not in seen else []
            seen.add(slot)
    assert len(rows) == 12
    hinges = [(row[5:].max() + 0.7 - row[heads[task]].max()).item() for row, task in rows]
    violations = [value for value in hinges if value > 0]
    assert 0 < len(violations) < 12
    assert host.future_constraint(step).item() == pytest.approx(sum(violations) / len(violations), rel=1e-5)


def test_no_violation_costs_nothing() -> None:
    hinge = -noise(5).abs()
    assert mean_violation(hinge.requires_grad_()).item() == 0


def test_constraints_and_preparation_have_their_weights() -> None:
    host = host_in(1, host__constraint_weight=0.3, host__contrastive_weight=0.4)
    step = host.forward(batch_of(host, 1))
    terms = host.losses(step)
    assert terms["past constraint"].item() == pytest.approx(0.3 * host.past_constraint(step).item())
    assert terms["future constraint"].item() == pytest.approx(0.3 * host.future_constraint(step).item())
    assert terms["preparation"].item() == pytest.approx(0.4 * host.preparation(*step.strong).item())


# ---------------------------------------------------------------- the end of a task


def test_quotas_fill_the_memory() -> None:
    """2000 images after the third task of ten classes: 66 for every old class, 68 for every new one."""
    host = quick_host("xder", tiny_benchmark((10, 10, 10), per_class=200, shape=(1, 4, 4)), host__memory_size=2000)
    for task, expected in enumerate([[200] * 10, [100] * 20, [66] * 20 + [68] * 10]):
        before = host.memory.labels[: host.memory.filled].clone(), host.memory.images[: host.memory.filled].clone()
        host.enter(host.benchmark.tasks[task])
        host.end()
        labels = host.memory.labels[: host.memory.filled]
        assert [Counter(labels.tolist())[c] for c in range(10 * task + 10)] == expected
        for c in range(10 * task):
            images = host.memory.images[:2000][labels == c]
            assert torch.equal(images, before[1][before[0] == c][: expected[c]])


@pytest.mark.parametrize("capacity", [7, 14, 23])
def test_the_memory_stays_full_with_unequal_tasks(capacity: int) -> None:
    host = quick_host("xder", host__memory_size=capacity)
    for task in host.benchmark.tasks:
        host.enter(task)
        host.end()
        counts = Counter(host.memory.labels[: host.memory.filled].tolist())
        assert sum(counts.values()) == capacity
        assert all(counts[c] == capacity // task.seen.stop for c in task.before)
        assert max(counts[c] for c in task.classes) - min(counts[c] for c in task.classes) <= 1


def test_a_class_with_few_images_gives_what_it_has() -> None:
    host = quick_host("xder", tiny_benchmark((2, 2), per_class=3), host__memory_size=40)
    for task in host.benchmark.tasks:
        host.enter(task)
        host.end()
    assert Counter(host.memory.labels[: host.memory.filled].tolist()) == {0: 3, 1: 3, 2: 3, 3: 3}


def test_the_end_of_a_task_stores_attenuated_answers_and_edits_past_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    host = host_in(1)
    host.memory["replays"].fill_(5)
    old = {
        stamp.item(): row.clone() for stamp, row in zip(host.memory.stamps[:14], host.memory["targets"], strict=False)
    }
    table = {}  # by image: what the network says to it

    def answers(raw: torch.Tensor) -> torch.Tensor:
        rows = 2 * noise(len(raw), 7, seed=len(table) + 1)
        table.update({image.numpy().tobytes(): row for image, row in zip(raw, rows, strict=True)})
        return rows.clone()

    monkeypatch.setattr(host, "training_logits", answers)
    host.end()
    memory, kinds = host.memory, Counter()
    for slot in range(14):
        label, fresh = memory.labels[slot].item(), table[memory.images[slot].numpy().tobytes()].tolist()
        if label < 2:  # a past image: its own past columns stay, the others are fresh
            row = old[memory.stamps[slot].item()].tolist()
            expected = row[:2] + slow_attenuated([fresh[2:]], [row[label]], 0.85)[0]
        else:
            expected = slow_attenuated([fresh[:2]], [fresh[label]], 0.85)[0] + fresh[2:]
        torch.testing.assert_close(memory["targets"][slot], torch.tensor(expected))
        kinds[label < 2, expected != fresh] += 1
    assert kinds[True, True] == 4
    assert kinds[False, True] > 0
    assert (memory["replays"] == 0).all()


def test_stored_images_are_of_the_task_and_random() -> None:
    samples = []
    for seed in (1, 2):
        host = quick_host("xder", **SMALL)
        host.generator.manual_seed(seed)
        host.end()
        train = host.benchmark.tasks[0].train
        known = {image.numpy().tobytes(): label for image, label in zip(train.x, train.y.tolist(), strict=True)}
        images = [image.numpy().tobytes() for image in host.memory.images[:14]]
        assert [known[image] for image in images] == host.memory.labels[:14].tolist()
        assert len(set(images)) == 14
        samples.append(set(images))
    assert samples[0] != samples[1]


def test_the_end_of_a_task_uses_batch_statistics_and_leaves_the_running_ones() -> None:
    host = host_in(1, training__views=[], training__batch_size=100)
    host.net.eval()
    before = {name: buffer.clone() for name, buffer in host.net.named_buffers()}
    raw = host.benchmark.tasks[1].train.x[:12]
    with torch.no_grad():
        logits = host.training_logits(raw)
    for name, buffer in host.net.named_buffers():
        assert torch.equal(buffer, before[name]), name
    torch.testing.assert_close(logits, copy.deepcopy(host.net).train()(host.views.plain(raw)).logits)


# ---------------------------------------------------------------- whole runs


def test_phase_2_finds_targets_and_counts_as_they_were() -> None:
    method = quick_flashback("xder", **SMALL)
    host, task = method.host, method.host.benchmark.tasks[1]
    trainer = Trainer(method, host.benchmark)
    trainer.run_task(host.benchmark.tasks[0])
    method.enter(task)
    before = {key: tensor.clone() for key, tensor in host.state_dict().items()}
    phase_1, phase_2 = method.stages()
    trainer.run_stage(task, phase_1)
    assert not torch.equal(before["memory.targets"], host.memory["targets"])
    assert (host.memory["replays"] > 0).any()
    trainer.position = Position(1, 1)
    trainer.allocate(phase_2)
    phase_2.begin()
    for key, tensor in host.state_dict().items():
        assert torch.equal(tensor, before[key]), key
    assert torch.equal(method.plastic.stamps, host.memory.stamps)
    # Editing targets does not touch images: every replayed image still has its plastic target.
    step = host.forward(batch_of(host, 1))
    host.after_step(step)
    output, slots = host.replayed(step)
    assert slots is step.draws[0].slots
    distance = host.weighted_distance(step, method.plastic, method.support())
    expected = F.mse_loss(output.logits, method.plastic.targets[slots])
    assert distance.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(
    "sizes", [SIZES, *(pytest.param(sizes, marks=pytest.mark.slow) for sizes in ((3, 1), (1, 2, 1)))]
)
def test_a_small_run_with_flashback(sizes: tuple[int, ...]) -> None:
    method = quick_flashback("xder", tiny_benchmark(sizes), **SMALL, training__epochs=3)
    log = []
    trainer = Trainer(method, method.host.benchmark, [log.append])
    result = trainer.run()
    assert [len(row) for row in result["class_incremental"]["matrix"]] == list(range(1, len(sizes) + 1))
    last = next(event for event in reversed(log) if event["event"] == "epoch")["losses"]
    assert set(last) == {"task", "stability", "replay", "past constraint", "plasticity"}
    assert all(math.isfinite(value) for value in last.values())
    assert last["plasticity"] > 0
    assert set(method.host.memory.labels[:14].tolist()) == set(range(sum(sizes)))
    assert 0 < trainer.history.bytes["plastic"] < trainer.history.bytes["stable"]


def test_benchmarks_that_cannot_work() -> None:
    with pytest.raises(FlashbackError, match="only one task"):
        quick_host("xder", tiny_benchmark((4,)))
    with pytest.raises(FlashbackError, match=r"memory_size is 6.*7 classes"):
        quick_host("xder", host__memory_size=6)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("memory_size", 0),
        ("gamma", 1.2),
        ("gamma", 0.0),
        ("margin", -0.1),
        ("temperature", 0.0),
        ("contrastive_batch", 0),
    ],
)
def test_settings_that_cannot_work(setting: str, value: float) -> None:
    with pytest.raises(FlashbackError, match=f"host.{setting}"):
        quick_config("xder", **{f"host__{setting}": value})


def test_images_need_not_be_square() -> None:
    benchmark = tiny_benchmark(shape=(1, 12, 16))
    host = quick_host("xder", benchmark, **SMALL)
    Trainer(host, benchmark).run()
    assert host.memory.filled == 14
