"""DER and DER++: every term against a slow, obvious computation, the reservoir's content, and runs with Flashback."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from later_tasks import in_later_task
from torch import nn

from flashback import FlashbackError, Trainer
from flashback.batches import Batch
from flashback.hosts import HOSTS, Host
from flashback.hosts.replay import StoredTargets
from flashback.knowledge import ReplayedTargets, Support
from flashback.nets import Output
from flashback.plugin import Flashback
from flashback.training.step import TrainingStep
from flashback.training.trainer import Position
from helpers import quick_config, quick_flashback, quick_host, tiny_benchmark

SMALL = {"host__memory_size": 20, "host__minibatch": 6}


def batch_of(host: Host, task: int = 0, size: int = 8) -> Batch:
    """Spread over the classes of a task."""
    images = host.benchmark.tasks[task].train
    rows = torch.arange(0, len(images), len(images) // size)[:size]
    raw, y = images.x[rows], images.y[rows]
    return Batch(host.views.weak(raw, host.generator), y, raw, torch.full_like(y, -1))


def ready(name: str, offered: int = 24, **settings) -> Host:
    """A host whose memory has seen some images, in the middle of the second task."""
    host = quick_host(name, **{**SMALL, **settings})
    host.generator.manual_seed(3)
    images, width = host.benchmark.tasks[0].train, host.response_width()
    targets = torch.randn(offered, width, generator=torch.Generator().manual_seed(5))
    host.memory.reservoir(images.x[:offered], images.y[:offered], host.generator, targets=targets)
    host.enter(host.benchmark.tasks[1])
    return host


def slow_squared_error(answers: torch.Tensor, targets: torch.Tensor) -> float:
    total = 0.0
    for row, target in zip(answers.tolist(), targets.tolist(), strict=True):
        total += sum((a - b) ** 2 for a, b in zip(row, target, strict=True)) / len(row)
    return total / len(answers)


def slow_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> float:
    rows = [-row.log_softmax(0)[label].item() for row, label in zip(logits, labels.tolist(), strict=True)]
    return sum(rows) / len(rows)


# ---------------------------------------------------------------- the terms of the loss


@pytest.mark.parametrize("name", ["der", "der++"])
def test_losses_by_hand(name: str) -> None:
    host = ready(name, host__alpha=0.7, **({"host__beta": 0.3} if name == "der++" else {}))
    step = host.forward(batch_of(host, 1))
    terms = host.losses(step)
    first = step.draws[0]
    expected = {
        "task": slow_cross_entropy(step.output.logits, step.batch.y),
        "stability": 0.7 * slow_squared_error(first.output.logits, host.memory["targets"][first.slots]),
    }
    if name == "der++":
        second = step.draws[1]
        assert not torch.equal(first.slots, second.slots)
        expected["replay"] = 0.3 * slow_cross_entropy(second.output.logits, second.labels)
    assert {key: value.item() for key, value in terms.items()} == pytest.approx(expected, rel=1e-5)


def test_a_draw_is_distinct_slots_with_their_own_images_and_labels() -> None:
    host = ready("der", training__views=[])
    host.net.eval()
    with torch.no_grad():
        (draw,) = host.forward(batch_of(host, 1)).draws
        logits = host.net(host.views.plain(host.memory.images[draw.slots])).logits
    assert len(set(draw.slots.tolist())) == 6
    assert torch.equal(draw.labels, host.memory.labels[draw.slots])
    torch.testing.assert_close(draw.output.logits, logits)


def test_draws_are_augmented_anew() -> None:
    host = ready("der", host__minibatch=20)
    host.net.eval()
    batch = batch_of(host, 1)
    with torch.no_grad():
        answers = [host.forward(batch).draws[0] for _ in range(2)]
    ordered = [draw.output.logits[draw.slots.argsort()] for draw in answers]
    assert not torch.allclose(*ordered)


@pytest.mark.parametrize(("name", "passes"), [("der", 1), ("der++", 2)])
def test_an_empty_memory_is_not_replayed(name: str, passes: int) -> None:
    host = quick_host(name, **SMALL)
    batch = batch_of(host)
    step = host.forward(batch)
    assert (host.variant(), step.draws, list(host.losses(step))) == (0, [], ["task"])
    with torch.no_grad():
        host.after_step(step)
    assert host.variant() == 6
    assert [len(draw.slots) for draw in host.forward(batch).draws] == [6] * passes


@pytest.mark.parametrize(("offered", "filling"), [(0, True), (1, True), (5, True), (6, False), (20, False)])
def test_a_memory_fills_until_it_can_give_a_whole_draw(offered: int, filling: bool) -> None:
    assert ready("der", offered=offered).filling() is filling


def test_a_memory_smaller_than_a_draw_is_full_at_its_own_size() -> None:
    assert not ready("der", offered=8, host__memory_size=4).filling()


def test_a_half_filled_memory_gives_what_it_has() -> None:
    host = ready("der", offered=4)
    assert host.variant() == 4
    assert sorted(host.forward(batch_of(host, 1)).draws[0].slots.tolist()) == [0, 1, 2, 3]


# ---------------------------------------------------------------- what the reservoir gets


@pytest.mark.parametrize("targets", ["logits", "embeddings"])
def test_the_reservoir_gets_raw_images_and_answers_from_before_the_step(targets: str) -> None:
    host = quick_host("der", **SMALL, host__targets=targets, training__lr=1.0)
    stage = host.stages()[0]
    step = TrainingStep(host, stage, stage.stream(), "fp32")
    host.train()
    outputs = []
    hook = host.net.register_forward_hook(lambda *args: outputs.append(args[-1]))
    indices = torch.arange(0, 24, 3)
    step(indices)
    hook.remove()
    train = host.benchmark.tasks[0].train
    (output,) = outputs
    stored = output.logits if targets == "logits" else output.features
    assert torch.equal(host.memory.images[:8], train.x[indices])
    assert torch.equal(host.memory.labels[:8], train.y[indices])
    assert torch.equal(host.memory["targets"][:8], stored.detach())
    after = host.response(host.net(host.views.plain(train.x[indices])))
    assert not torch.allclose(after, stored, atol=1e-3)


# ---------------------------------------------------------------- plasticity


def plastic_of(host: Host) -> ReplayedTargets:
    knowledge = host.blank_knowledge_for(host.plasticity_support())
    assert isinstance(knowledge, ReplayedTargets)
    host.fill_for_support(knowledge)
    return knowledge


@pytest.mark.parametrize("name", ["der", "der++"])
def test_overwritten_slots_lose_their_plastic_target(name: str) -> None:
    host = ready(name)
    plastic = plastic_of(host)
    new = host.benchmark.tasks[1].train
    overwritten = torch.arange(0, 20, 2)
    host.memory.write(overwritten, new.x[:10], new.y[:10], targets=torch.zeros(10, 7))
    step = host.forward(batch_of(host, 1))
    draw = step.draws[0]
    rows = [k for k, slot in enumerate(draw.slots.tolist()) if slot % 2]
    assert 0 < len(rows) < 6
    expected = slow_squared_error(draw.output.logits[rows], plastic.targets[draw.slots[rows]])
    distance = host.weighted_distance(step, plastic, host.plasticity_support())
    assert distance.item() == pytest.approx(expected, rel=1e-5)
    host.memory.write(torch.arange(20), new.x[:20], new.y[:20], targets=torch.zeros(20, 7))
    assert host.weighted_distance(step, plastic, host.plasticity_support()).item() == 0


def test_plastic_targets_are_plain_answers_in_evaluation_mode() -> None:
    host = ready("der")
    plastic = plastic_of(host)
    host.net.eval()
    with torch.no_grad():
        logits = host.net(host.views.plain(host.memory.images[:20])).logits
    torch.testing.assert_close(plastic.targets[:20], logits)


@pytest.mark.parametrize("support", ["host", "all", "memory"])
def test_embeddings_are_met_whole(support: str) -> None:
    host = ready("der", host__targets="embeddings", flashback__support=support)
    width = host.net.backbone.width
    assert host.memory["targets"].shape[1] == width
    plastic, step = plastic_of(host), host.forward(batch_of(host, 1))
    draw = step.draws[0]
    stable = 0.3 * slow_squared_error(draw.output.features, host.memory["targets"][draw.slots])
    assert host.losses(step)["stability"].item() == pytest.approx(stable, rel=1e-5)
    distance = host.weighted_distance(step, plastic, Flashback(host).support())
    expected = slow_squared_error(draw.output.features, plastic.targets[draw.slots])
    assert distance.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["der", "der++", "xder", "er", "agem"])
def test_stability_and_plasticity_are_one_distance(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host calls it with the stored targets, if it stores any, and Flashback with those of the primary model."""
    knowledges: list[type] = []
    distance = HOSTS[name].distance

    def noting(host: Host, step: Any, knowledge: Any, support: Support) -> torch.Tensor:
        knowledges.append(type(knowledge))
        return distance(host, step, knowledge, support)

    monkeypatch.setattr(HOSTS[name], "distance", noting)
    run = in_later_task(name, stages=2, flashback=True, **{**SMALL, "training__epochs": 2})
    phase_2 = run.method.stages()[1]
    knowledges.clear()
    phase_2.losses(phase_2.forward(batch_of(run.host, 1)))
    stored = [StoredTargets] if HOSTS[name].has_stability else []
    assert knowledges == [*stored, ReplayedTargets]


class DoubleNet(nn.Module):
    """Networks of the package answer in float32; this one is as exact as float64."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 9), nn.Tanh()).double()
        self.head = nn.Linear(9, classes).double()

    def forward(self, x: torch.Tensor) -> Output:
        features = self.layers(x.double())
        return Output(features, self.head(features))


@pytest.mark.parametrize("name", ["der", "der++"])
def test_gradient_pulls_to_the_weighted_target(name: str) -> None:
    """Theorem 2: stability and plasticity together are one pull towards the weighted mean of their targets."""
    alpha_s, alpha_p = 0.6, 0.25
    host = ready(name, host__alpha=alpha_s).double()
    host.net = DoubleNet(144, 7)
    plastic = ReplayedTargets(host.memory, 7).double()
    plastic.stamps.copy_(host.memory.stamps)
    plastic.targets.normal_(generator=torch.Generator().manual_seed(1))
    step = host.forward(batch_of(host, 1))
    loss = host.losses(step)["stability"]
    loss = loss + alpha_p * host.weighted_distance(step, plastic, host.plasticity_support())
    parameters = list(host.net.parameters())
    gradients = torch.autograd.grad(loss, parameters, retain_graph=True)

    draw = step.draws[0]
    f, stable, primary = draw.output.logits, host.memory["targets"][draw.slots], plastic.targets[draw.slots]
    target = (alpha_s * stable + alpha_p * primary) / (alpha_s + alpha_p)
    pull = (alpha_s + alpha_p) * 2 / f.numel() * (f - target)  # J^T of this; means over samples and columns, no 1/2
    expected = torch.autograd.grad(f, parameters, pull.detach())
    assert max(gradient.abs().max() for gradient in gradients) > 1e-3
    torch.testing.assert_close(gradients, expected, rtol=1e-12, atol=1e-14)


# ---------------------------------------------------------------- whole runs


def flash_back(name: str, **settings) -> tuple[Flashback, dict[str, torch.Tensor], nn.Module]:
    """A method at the start of phase 2 of the second task, its state before phase 1, and the primary model."""
    method = quick_flashback(name, **{**SMALL, **settings})
    trainer = Trainer(method, method.host.benchmark)
    trainer.run_task(method.host.benchmark.tasks[0])
    task = method.host.benchmark.tasks[1]
    method.enter(task)
    before = {key: tensor.clone() for key, tensor in method.host.state_dict().items()}
    phase_1, phase_2 = method.stages()
    trainer.run_stage(task, phase_1)
    changed = method.host.state_dict()
    assert not torch.equal(before["memory.images"], changed["memory.images"])
    primary = copy.deepcopy(method.host.net).eval()
    trainer.position = Position(1, 1)
    trainer.allocate(phase_2)
    phase_2.begin()
    return method, before, primary


@pytest.mark.parametrize("name", ["der", "der++"])
def test_phase_2_finds_the_memory_of_the_task_before_with_primary_targets_for_all_of_it(name: str) -> None:
    method, before, primary = flash_back(name)
    host = method.host
    for key, tensor in host.state_dict().items():
        assert torch.equal(tensor, before[key]), key
    assert torch.equal(method.plastic.stamps, host.memory.stamps)
    with torch.no_grad():
        logits = primary(host.views.plain(host.memory.images[:20])).logits
    torch.testing.assert_close(method.plastic.targets[:20], logits)


@pytest.mark.parametrize("targets", ["logits", "embeddings"])
@pytest.mark.parametrize("name", ["der", "der++"])
def test_a_small_run_with_flashback(name: str, targets: str) -> None:
    method = quick_flashback(name, **SMALL, host__targets=targets, training__epochs=3)
    log = []
    trainer = Trainer(method, method.host.benchmark, [log.append])
    result = trainer.run()
    assert [len(row) for row in result["class_incremental"]["matrix"]] == [1, 2, 3]
    last = next(event for event in reversed(log) if event["event"] == "epoch")["losses"]
    assert set(last) == {"task", "stability", "plasticity"} | ({"replay"} if name == "der++" else set())
    assert all(0 < value < 100 for value in last.values())
    assert int(method.host.memory.count) == 20
    assert {0, 1} & set(method.host.memory.labels[:20].tolist())
    assert 0 < trainer.history.bytes["plastic"] < trainer.history.bytes["stable"]


@pytest.mark.slow
def test_nothing_is_remembered_without_alpha_and_beta() -> None:
    """Replay is what keeps old classes: without its weights the same run forgets."""
    accuracy = {}
    for weight in (0.0, 1.0):
        settings = {"host__alpha": weight, "host__beta": weight, "training__epochs": 6, "host__memory_size": 20}
        host = quick_host("der++", tiny_benchmark((2, 2)), **settings)
        accuracy[weight] = Trainer(host, host.benchmark).run()["class_incremental"]["matrix"][-1][0]
    assert accuracy[1.0] > accuracy[0.0] + 20


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [("der", "memory_size", 0), ("der", "alpha", -1.0), ("der++", "beta", -0.1), ("der", "minibatch", 0)],
)
def test_settings_that_cannot_work(name: str, setting: str, value: float) -> None:
    with pytest.raises(FlashbackError, match=f"host.{setting}"):
        quick_config(name, **{f"host__{setting}": value})
