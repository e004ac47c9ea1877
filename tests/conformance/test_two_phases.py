"""Every host with knowledge, watched while Flashback splits its main stage in two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from conformance_runs import KNOWING, Watcher, assert_same_state, few_images, method_of, mostly_slow, run
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from flashback.hosts import HOSTS, Stage
from flashback.knowledge import ReplayedTargets
from flashback.plugin import Flashback

REMEMBERING = [name for name in KNOWING if hasattr(HOSTS[name].Settings, "memory_size")]


def copied(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


class Watched(Flashback):
    """Notes every state at the moments that Algorithm 1 speaks of."""

    def __init__(self, host: Any) -> None:
        super().__init__(host)
        self.begun: list[dict[str, Tensor]] = []
        self.primary: list[dict[str, Tensor]] = []
        self.restored: list[dict[str, Tensor]] = []
        self.plastic_at_first: list[dict[str, Tensor]] = []
        self.plastic_at_last: list[dict[str, Tensor]] = []
        self.expected_targets: list[Tensor] = []
        self.gradients: list[float] = []
        self.terms: list[tuple[set[str], set[str]]] = []

    def take_snapshot(self) -> None:
        super().take_snapshot()
        self.begun.append(copied(self.host))

    def flash_back(self) -> None:
        self.primary.append(copied(self.host))
        if isinstance(self.plastic, ReplayedTargets):
            # What the primary model says to the images that were in the memory when the task began.
            images = self.snapshot["memory.images"][: int(self.snapshot["memory.count"])]
            self.expected_targets.append(self.host.embed(images, self.host.response))
        super().flash_back()
        self.restored.append(copied(self.host))
        assert self.plastic is not None
        self.plastic_at_first.append(copied(self.plastic))

    def finish(self, main: Stage) -> None:
        plastic = self.plastic
        assert plastic is not None
        self.plastic_at_last.append(copied(plastic))
        assert not any(tensor.requires_grad or tensor.grad is not None for tensor in plastic.parameters())
        assert not any(module.training for module in plastic.modules() if isinstance(module, _BatchNorm))
        super().finish(main)

    def phases(self, main: Stage) -> list[Stage]:
        phase_1, phase_2 = super().phases(main)

        def losses(step: Any) -> Mapping[str, Tensor]:
            terms = phase_2.losses(step)
            self.terms.append((set(terms), set(main.losses(step))))
            parts = torch.autograd.grad(terms["plasticity"], main.parameters(), retain_graph=True, allow_unused=True)
            self.gradients.append(sum(float(part.abs().sum()) for part in parts if part is not None))
            return terms

        return [phase_1, replace(phase_2, losses=losses)]


class FirstRates(Watcher):
    """The learning rate of the first step of every stage, beside the base rate of the stage and of the run."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, float, float, float]] = []

    def after_step(self, position: Any) -> None:
        step = self.trainer.step
        assert step is not None
        if (position.epoch, position.step) == (0, 1):
            rate = float(step.optimiser.param_groups[0]["lr"])
            lr = self.trainer.host.config.training.lr
            self.seen.append((step.stage.name, rate, step.stage.optimisation.lr, lr))


@cache
def watched(name: str, **settings: Any) -> tuple[Watched, FirstRates]:
    # A cosine over E instead of E2 epochs, or one that goes on where another stage stopped, would show in the rates.
    shape = {"training__epochs": 3, "flashback__epochs": 1, "training__schedule": "cosine"}
    method = method_of(name, few_images(), flashback=True, plugin=Watched, **shape, **settings)
    assert isinstance(method, Watched)
    rates = FirstRates()
    run(method, rates)
    return method, rates


@pytest.mark.parametrize("name", KNOWING)
def test_the_phase_switch_restores_every_tensor(name: str) -> None:
    method, _ = watched(name)
    assert len(method.begun) == len(method.restored) == 2
    for begun, primary, restored in zip(method.begun, method.primary, method.restored, strict=True):
        assert_same_state(begun, restored)
        assert any(not torch.equal(begun[key], primary[key]) for key in begun)  # phase 1 did train


@pytest.mark.parametrize("name", KNOWING)
def test_plastic_knowledge_stands_still_in_phase_2(name: str) -> None:
    method, _ = watched(name)
    assert len(method.plastic_at_first) == 2
    for first, last in zip(method.plastic_at_first, method.plastic_at_last, strict=True):
        assert_same_state(first, last)


@pytest.mark.parametrize("name", mostly_slow(REMEMBERING, ["icarl", "der++", "xder", "foster"]))
def test_replayed_targets_answer_the_memory_of_before_the_task(name: str) -> None:
    """Eq. 10: o_p = f_p(x) for x in M_{t-1}, though phase 1 may have put other images into the memory."""
    method, _ = watched(name, flashback__support="memory")
    assert len(method.expected_targets) == 2
    for before, plastic, expected in zip(method.begun, method.plastic_at_first, method.expected_targets, strict=True):
        assert torch.equal(plastic["stamps"], before["memory.stamps"])
        assert len(expected) > 0
        assert torch.equal(plastic["targets"][: len(expected)], expected)
    assert_pulls(method)


@pytest.mark.parametrize("name", KNOWING)
def test_plasticity_is_one_more_term_and_pulls(name: str) -> None:
    method, _ = watched(name)
    assert all(with_plasticity == host | {"plasticity"} for with_plasticity, host in method.terms)
    assert_pulls(method)


def assert_pulls(method: Watched) -> None:
    """Not in every step: a batch may hold no sample that has a plastic target."""
    assert sum(gradient > 0 for gradient in method.gradients) > len(method.gradients) / 2


@pytest.mark.parametrize("name", KNOWING)
def test_every_stage_starts_with_its_base_rate(name: str) -> None:
    _, rates = watched(name)
    names = [stage for stage, *_ in rates.seen]
    assert names.count("phase 1") == names.count("phase 2") == 2
    for stage, first, base, lr in rates.seen:
        assert first == base
        if stage.startswith("phase"):
            assert first == lr
