"""SI: the path integral against a second backward pass, the importance it gives, and what flashback does with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from elastic_tasks import shuffle, sizes, slow_penalty, step_of
from torch import Tensor, nn

from flashback import FlashbackError, Trainer
from flashback.hosts import Stage
from flashback.knowledge import ImportantParameters, flat
from flashback.nets import NETS, Backbone, Shape
from flashback.nets.small import SmallCNN
from flashback.training.step import TrainingStep
from flashback.training.trainer import Position
from helpers import forgetting, quick_flashback, quick_host

HELD = {"host__strength": 20.0, "host__xi": 0.01, "flashback__alpha": 20.0}  # penalties that rival the task loss


def in_stage(method: Any, task: int, stage: int = 0) -> tuple[Trainer, Stage]:
    """Everything before a stage as a run goes, then that stage begun."""
    trainer = Trainer(method, method.host.benchmark)
    for earlier in method.host.benchmark.tasks[:task]:
        trainer.run_task(earlier)
    method.enter(method.host.benchmark.tasks[task])
    stages = method.stages()
    for index in range(stage):
        trainer.position = Position(task, index)
        trainer.run_stage(method.host.task, stages[index])
    trainer.allocate(stages[stage])
    stages[stage].begin()
    method.host.train()
    stages[stage].before_epoch(0)
    return trainer, stages[stage]


def some_steps(host: Any, stage: Stage, steps: int = 5, size: int = 8) -> None:
    step = TrainingStep(host, stage, stage.stream(), "fp32")
    for k in range(steps):
        step(torch.arange(k, k + size))


class Beside:
    """What the path should be: a second backward pass of the task loss alone, and the change that follows it."""

    def __init__(self, host: Any, stage: Stage) -> None:
        self.host, self.path, self.shares = host, torch.zeros_like(host.path, dtype=torch.float64), []
        self.stage = replace(stage, losses=self.losses, after_step=self.after_step)
        self.own = stage

    def losses(self, step: Any) -> Any:
        terms, parameters = self.own.losses(self.own.forward(step.batch)), list(self.host.net.parameters())
        self.slope, whole = (
            flat(torch.autograd.grad(loss, parameters, retain_graph=True)).double()
            for loss in (terms["task"], sum(terms.values()))
        )
        self.shares.append(float((whole - self.slope).norm() / self.slope.norm()))
        self.start = flat(parameters).detach().double()
        return self.own.losses(step)

    def after_step(self, step: Any) -> None:
        self.own.after_step(step)
        self.path -= self.slope * (flat(self.host.net.parameters()).double() - self.start)


PLACES = {"first task": (0, 0), "phase 1": (1, 0), "phase 2": (1, 1)}
OPTIMISERS = {
    "sgd": {},
    "momentum": {"training__momentum": 0.9, "training__weight_decay": 0.1},
    "nesterov": {"training__momentum": 0.9, "training__nesterov": True},  # writes over the gradient
    "adam": {"training__optimiser": "adam", "training__lr": 0.005},
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_the_path_is_that_of_a_second_backward_pass(place: str, optimiser: str) -> None:
    """The gradient of the task loss alone, whatever the penalties weigh, times the change whoever made it."""
    settings = {**HELD, "training__lr": 0.01, "flashback__phase1_stability": 0.5, **OPTIMISERS[optimiser]}
    method = quick_flashback("si", **settings)
    _, stage = in_stage(method, *PLACES[place])
    beside = Beside(method.host, stage)
    some_steps(method.host, beside.stage)
    if place != "first task":
        assert max(beside.shares) > 0.05
    assert beside.path.norm() > 0
    assert (method.host.path.double() - beside.path).norm() < 1e-4 * beside.path.norm()


def test_the_path_adds_up_to_what_the_loss_fell_by() -> None:
    """Where steps are small: the integral of the gradient along the way."""
    host: Any = quick_host("si", training__views=[], training__lr=1e-3)
    _, stage = in_stage(host, 0)
    fallen: list[float] = []

    def losses(step: Any) -> Any:
        terms = stage.losses(step)
        fallen.append(terms["task"].item())
        return terms

    step = TrainingStep(host, replace(stage, losses=losses), stage.stream(), "fp32")
    for _ in range(30):
        step(torch.arange(24))
    before_last = host.path.sum().item()
    step(torch.arange(24))
    assert fallen[0] - fallen[-1] > 0.05
    assert before_last == pytest.approx(fallen[0] - fallen[-1], rel=0.05)


# ---------------------------------------------------------------- importance


def made_path(host: Any, seed: int) -> Tensor:
    path = torch.randn(host.path.shape, generator=torch.Generator().manual_seed(seed))
    host.path.copy_(path)
    return path


@pytest.mark.parametrize("xi", [1.0, 0.01])
def test_importance_is_summed_up_over_the_tasks(xi: float) -> None:
    """Omega += max(omega, 0) / (Delta^2 + xi), Delta since the last task ended; the path starts anew."""
    host: Any = quick_host("si", host__xi=xi)
    total, start = torch.zeros_like(host.path), flat(host.net.parameters()).detach().clone()
    for task in host.benchmark.tasks:
        host.enter(task)
        host.allocate()
        host.begin()
        path = made_path(host, task.index)
        shuffle(host, task.index)
        end = flat(host.net.parameters()).detach().clone()
        total += torch.tensor([max(w, 0.0) for w in path.tolist()]) / ((end - start) ** 2 + xi)
        host.end()
        torch.testing.assert_close(host.stable.importance, total)
        assert torch.equal(host.stable.values, end)
        assert not host.path.any()
        start = end
    assert (total > 0).any()


def test_penalty_and_its_gradient() -> None:
    host: Any = quick_host("si", host__strength=3.0)
    in_stage(host, 1)
    shuffle(host, 9)
    host.stable.importance.uniform_(generator=torch.Generator().manual_seed(0))
    stability = host.losses(step_of(host))["stability"]
    assert stability.item() == pytest.approx(3.0 * slow_penalty(host, host.stable), rel=1e-4)
    slope = flat(torch.autograd.grad(stability, list(host.net.parameters())))
    offset = flat(host.net.parameters()).detach() - host.stable.values
    torch.testing.assert_close(slope, 6.0 * host.stable.importance * offset)
    assert slow_penalty(host, host.stable) > 0


# ---------------------------------------------------------------- with flashback


def test_plastic_importance_is_that_of_phase_1_and_the_path_of_phase_2_starts_anew() -> None:
    method = quick_flashback("si", **HELD)
    host: Any = method.host
    trainer, phase_1 = in_stage(method, 1)
    stable = {name: tensor.clone() for name, tensor in host.stable.state_dict().items()}
    assert not host.path.any()
    some_steps(host, phase_1)
    path, primary = host.path.clone(), flat(host.net.parameters()).detach().clone()
    phase_2 = method.stages()[1]
    trainer.allocate(phase_2)
    phase_2.begin()
    plastic: Any = method.plastic
    assert isinstance(plastic, ImportantParameters)
    assert torch.equal(plastic.values, primary)
    expected = path.clamp(min=0) / ((primary - stable["values"]) ** 2 + host.settings.xi)
    torch.testing.assert_close(plastic.importance, expected)
    assert plastic.importance.any()
    assert not host.path.any()
    assert torch.equal(flat(host.net.parameters()), stable["values"])
    phase_2.before_epoch(0)
    some_steps(host, phase_2)
    phase_path, end = host.path.clone(), flat(host.net.parameters()).detach().clone()
    phase_2.end()
    added = phase_path.clamp(min=0) / ((end - stable["values"]) ** 2 + host.settings.xi)
    torch.testing.assert_close(host.stable.importance, stable["importance"] + added)
    assert not torch.equal(phase_path, path)


# ---------------------------------------------------------------- settings and networks


@pytest.mark.parametrize(("setting", "value"), [("strength", -1.0), ("xi", 0.0), ("xi", -1.0)])
def test_refuses_values_that_cannot_work(setting: str, value: float) -> None:
    with pytest.raises(FlashbackError, match=rf"host\.{setting} must "):
        quick_host("si", **{f"host__{setting}": value})


def test_a_network_need_not_use_all_it_has() -> None:
    """What no loss depends on has no gradient, goes no way, and matters to nothing."""

    def made(shape: Shape) -> Backbone:
        backbone = SmallCNN(shape[0])
        backbone.idle = nn.Parameter(torch.ones(3))
        return backbone

    with forgetting(NETS):
        NETS.register("idle")(made)
        host: Any = quick_host("si", host__net="idle")
        trainer = Trainer(host, host.benchmark)
        trainer.run_task(host.benchmark.tasks[0])
    names = [name for name, _ in host.net.named_parameters()]
    parts = dict(zip(names, torch.split(host.stable.importance, sizes(host)), strict=True))
    assert not parts["backbone.idle"].any()
    assert parts["head.weight"].any()
