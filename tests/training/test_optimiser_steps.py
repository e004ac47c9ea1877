"""The choice of an optimiser: what it does to weights, where it starts anew, what is saved of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flashback import FlashbackError, Trainer
from flashback.config import CheckpointConfig, TrainingConfig, to_dict
from flashback.hosts import Host, Optimisation
from flashback.recipes import config_from_dict, resolved
from flashback.training import Checkpoints, build_method
from flashback.training.step import TrainingStep, build_optimiser, set_rate
from flashback.training.trainer import Position, RunState
from helpers import quick_config, quick_flashback, quick_host, tiny_benchmark

ADAMS = ("adam", "adamw")
KEPT = {"sgd": {"momentum"}, "adam": {"step", "exp_avg", "exp_avg_sq"}, "adamw": {"step", "exp_avg", "exp_avg_sq"}}


def step_of(host: Host, **changes: Any) -> TrainingStep:
    (stage,) = host.stages()
    return TrainingStep(host, replace(stage, **changes), stage.stream(), "fp32")


# ---------------------------------------------------------------- against the formulas


def by_hand(weight: Tensor, gradients: list[Tensor], rates: list[float], optimisation: Optimisation) -> Tensor:
    """Algorithm 1 of Kingma and Ba (2015); its weight decay is a part of the gradient, that of Loshchilov and Hutter
    (2019, Algorithm 2) is not."""
    theta = weight.double()
    first, second = torch.zeros_like(theta), torch.zeros_like(theta)
    beta1, beta2 = optimisation.betas
    for t, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        g = gradient.double()
        if optimisation.optimiser == "adam":
            g = g + optimisation.weight_decay * theta
        else:
            theta = theta - rate * optimisation.weight_decay * theta
        first = beta1 * first + (1 - beta1) * g
        second = beta2 * second + (1 - beta2) * g**2
        theta = theta - rate * (first / (1 - beta1**t)) / ((second / (1 - beta2**t)).sqrt() + optimisation.eps)
    return theta


@pytest.mark.parametrize("optimiser", ADAMS)
@pytest.mark.parametrize(
    "settings", [{}, {"weight_decay": 0.1}, {"betas": (0.5, 0.9)}, {"eps": 0.01}, {"weight_decay": 0.3, "eps": 1e-3}]
)
def test_steps_are_those_of_the_papers(optimiser: str, settings: dict[str, Any]) -> None:
    host = quick_host("finetune")
    optimisation = Optimisation(0.01, optimiser=optimiser, **settings)
    gradients: list[list[Tensor]] = []

    def note(_: Any) -> None:
        gradients.append([p.grad.clone() for p in host.net.parameters() if p.grad is not None])

    before = [parameter.detach().clone() for parameter in host.net.parameters()]
    step = step_of(host, optimisation=optimisation, before_update=note)
    rates = [0.01, 0.01, 0.002]
    for rate, indices in zip(rates, torch.arange(24).split(8), strict=True):
        set_rate(step.optimiser, rate)
        step(indices)
    for k, parameter in enumerate(host.net.parameters()):
        expected = by_hand(before[k], [gradients_of_step[k] for gradients_of_step in gradients], rates, optimisation)
        torch.testing.assert_close(parameter.detach().double(), expected, rtol=1e-5, atol=1e-6)
        assert not torch.equal(parameter, before[k])


def test_a_run_takes_its_settings_from_the_configuration() -> None:
    settings = {"optimiser": "adamw", "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.02, "lr": 0.004}
    host = quick_host("finetune", **{f"training__{key}": value for key, value in settings.items()})
    optimiser = build_optimiser(host.stages()[0])
    assert type(optimiser) is torch.optim.AdamW
    (group,) = optimiser.param_groups
    assert {key: group[key] for key in ("betas", "eps", "weight_decay", "lr")} == {
        "betas": (0.8, 0.95),
        "eps": 1e-6,
        "weight_decay": 0.02,
        "lr": 0.004,
    }


def test_a_stage_cannot_name_an_optimiser_that_is_none() -> None:
    (stage,) = quick_host("finetune").stages()
    with pytest.raises(FlashbackError, match=r"^unknown optimiser 'adamx'; did you mean 'adam"):
        build_optimiser(replace(stage, optimisation=Optimisation(0.1, optimiser="adamx")))


# ---------------------------------------------------------------- what it remembers


@pytest.mark.parametrize("optimiser", [*ADAMS, "sgd"])
def test_its_state_has_one_structure_from_the_start(optimiser: str) -> None:
    """A captured step and a checkpoint rely on it; a parameter that no loss reaches has its place, and stays."""
    host = quick_host("finetune")
    idle = nn.Parameter(torch.ones(3))
    optimisation = Optimisation(
        0.01, momentum=0.9 if optimiser == "sgd" else 0.0, weight_decay=0.1, optimiser=optimiser
    )
    step = step_of(host, optimisation=optimisation, parameters=lambda: [*host.trained_parameters(), idle])
    before = step.state()
    names = [f"{name}.{k}" for name in KEPT[optimiser] for k in range(len(host.trained_parameters()) + 1)]
    assert before.keys() == {*names, "finite", "finite_steps"}
    assert all(float(before[name].abs().sum()) == 0 for name in names)
    step(torch.arange(8))
    after = step.state()
    assert after.keys() - before.keys() == {"sums.task"}
    assert all(after[name] is before[name] for name in names)  # the very tensors
    last = len(host.trained_parameters())
    assert all(float(after[f"{name}.{last}"].abs().sum()) == 0 for name in KEPT[optimiser])
    assert all(float(after[f"{name}.0"].abs().sum()) > 0 for name in KEPT[optimiser])
    assert torch.equal(idle, torch.ones(3))


class Moments:
    """A checkpointer that keeps one moment, and notes the optimiser after the first step of every stage."""

    trainer: Trainer

    def __init__(self, folder: Path | None = None) -> None:
        self.files = Checkpoints(folder, CheckpointConfig()) if folder else None
        self.begun: list[bool] = []

    def due(self, position: Position) -> bool:
        step = self.trainer.step
        if step is not None and (position.epoch, position.step) == (0, 1):
            self.begun.append(all(self.is_fresh(step)))
        in_phase_2 = step is not None and step.stage.name == "phase 2"
        return in_phase_2 and (position.task, position.epoch, position.step) == (1, 1, 2)

    def save(self, state: RunState) -> None:
        if self.files is not None and state.values["position"]["begun"]:
            self.files.write(state)

    @staticmethod
    def is_fresh(step: TrainingStep) -> Iterator[bool]:
        """After one step from nothing, the means are a share of the gradient of that step."""
        for parameter in step.stage.parameters():
            state, grad = step.optimiser.state[parameter], parameter.grad
            assert grad is not None
            yield float(state["step"]) == 1
            yield torch.allclose(state["exp_avg"], 0.1 * grad, rtol=1e-4, atol=1e-12)
            yield torch.allclose(state["exp_avg_sq"], 0.001 * grad**2, rtol=1e-4, atol=1e-12)


@pytest.mark.parametrize("optimiser", ADAMS)
def test_every_stage_starts_from_nothing(optimiser: str) -> None:
    """The first task, and the two phases of the two others."""
    host, checkpointer = quick_flashback("lwf-mc", training__optimiser=optimiser, training__lr=0.01), Moments()
    checkpointer.trainer = Trainer(host, host.host.benchmark, checkpointer=checkpointer)
    checkpointer.trainer.run()
    assert checkpointer.begun == [True] * 5


def ended(
    optimiser: str, checkpointer: Moments, state: RunState | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A run of iCaRL with flashback, from the beginning or from a state, as a new process would make it."""
    settings = {"training__lr": 0.01, "training__weight_decay": 0.01, "training__epochs": 4, "flashback__epochs": 2}
    config = quick_config("icarl", True, training__optimiser=optimiser, host__memory_size=21, **settings)
    benchmark = tiny_benchmark()
    checkpointer.trainer = trainer = Trainer(
        build_method(config, benchmark, "cpu"), benchmark, checkpointer=checkpointer
    )
    if state is not None:
        trainer.resume(state)
    results = trainer.run().as_dict()
    return results, {name: tensor.clone() for name, tensor in trainer.host.state_dict().items()}


def saved(folder: Path) -> RunState:
    state = Checkpoints(folder, CheckpointConfig()).load()
    assert state is not None
    return state


@pytest.mark.parametrize("optimiser", ADAMS)
def test_stopped_in_the_middle_of_phase_2_it_goes_on_exactly(optimiser: str, tmp_path: Path) -> None:
    results, weights = ended(optimiser, Moments(tmp_path))
    state = saved(tmp_path)
    assert state.values["position"] == {"task": 1, "stage": 1, "begun": True, "epoch": 1, "step": 2}
    again, same = ended(optimiser, Moments(), state)
    assert again == results
    assert [name for name, tensor in weights.items() if not torch.equal(tensor, same[name])] == []
    for part in KEPT[optimiser]:
        state = saved(tmp_path)
        for name in (name for name in state.tensors if name.startswith(f"step.{part}.")):
            state.tensors[name].fill_(part == "step")
        _, other = ended(optimiser, Moments(), state)
        assert not torch.equal(other["net.head.weight"], weights["net.head.weight"]), f"{part} has no effect"


# ---------------------------------------------------------------- configurations


def test_an_older_configuration_means_sgd() -> None:
    now = to_dict(quick_config("icarl", training__momentum=0.9, training__nesterov=True))
    older = {key: value for key, value in now["training"].items() if key not in ("optimiser", "betas", "eps")}
    assert len(older) == len(now["training"]) - 3
    assert config_from_dict({**now, "training": older}).training.optimiser == "sgd"
    assert resolved({**now, "training": older}) == now


IDLE_IN_ADAM = (
    "training.momentum and training.nesterov do nothing with {}; set training.momentum=0 and training.nesterov=false"
)
IDLE_IN_SGD = (
    "training.betas and training.eps do nothing with sgd; leave them out, or choose another training.optimiser"
)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"optimiser": "adam", "momentum": 0.9}, IDLE_IN_ADAM.format("adam")),
        ({"optimiser": "adamw", "nesterov": True}, IDLE_IN_ADAM.format("adamw")),
        ({"betas": (0.9, 0.99)}, IDLE_IN_SGD),
        ({"eps": 1e-6}, IDLE_IN_SGD),
        ({"optimiser": "adam", "betas": (0.9,)}, "training.betas must be two numbers in [0, 1), not [0.9]"),
        ({"optimiser": "adam", "betas": (0.9, 1.0)}, "training.betas must be two numbers in [0, 1), not [0.9, 1.0]"),
        ({"optimiser": "adam", "betas": (-0.1, 0.9)}, "training.betas must be two numbers in [0, 1), not [-0.1, 0.9]"),
        ({"optimiser": "adam", "eps": 0.0}, "training.eps must be above 0, not 0.0"),
        ({"nesterov": True}, "training.nesterov needs training.momentum above 0"),
    ],
)
def test_what_an_optimiser_would_ignore_or_cannot_use_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FlashbackError) as caught:
        TrainingConfig(**settings).check()
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    "settings",
    [
        {"optimiser": "sgd", "momentum": 0.9, "nesterov": True},
        {"optimiser": "sgd", "betas": (0.9, 0.999), "eps": 1e-8},  # as config.yaml says them
        {"optimiser": "adam", "momentum": 0.0, "nesterov": False, "betas": (0.0, 0.5)},
        {"optimiser": "adamw", "weight_decay": 0.1, "eps": 1e-3},
    ],
)
def test_what_an_optimiser_uses_is_taken(settings: dict[str, Any]) -> None:
    TrainingConfig(**settings).check()
