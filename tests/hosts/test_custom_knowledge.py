"""Knowledge of kinds that only a host from outside has: filled and still, whatever the host overrides."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashback.conformance import check_host
from flashback.hosts import HOSTS, Host
from flashback.hosts.exemplars import ExemplarHost
from flashback.hosts.stages import Step
from flashback.knowledge import Knowledge, ReplayedTargets, Support, copy_state, squared_error
from flashback.training.trainer import Trainer
from helpers import forgetting, quick_flashback, quick_host, tiny_benchmark


class MeanOfFeatures(Knowledge):
    mean: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))


class CopiedBackbone(Knowledge):
    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(backbone)


class Held(Host):
    family = "distillation"

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        terms = {"task": F.cross_entropy(step.output.logits, step.batch.y)}
        return terms if self.stable is None else {**terms, "stability": self.stability(step)}


class HoldsMeans(Held):
    def blank_knowledge(self) -> MeanOfFeatures:
        return MeanOfFeatures(self.net.backbone.width)

    def fill_knowledge(self, knowledge: MeanOfFeatures) -> None:
        knowledge.mean.copy_(self.embed(self.task.train.x, lambda output: output.features).mean(0))

    def distance(self, step: Step, knowledge: MeanOfFeatures, support: Support) -> Tensor:
        return (step.output.features.mean(0) - knowledge.mean).square().mean()


class HoldsMeansAndGrows(HoldsMeans):
    def build(self) -> None:
        super().build()
        self.scales = nn.ParameterList()

    def allocate(self) -> None:
        super().allocate()
        self.scales.append(nn.Parameter(torch.ones(())))

    def begin(self) -> None:
        """Something of its own, and no word to the host it stands on."""


class HoldsOnlyTheFirst(HoldsMeans):
    """What it knew before the second task is its anchor for good."""

    def allocate(self) -> None:
        if self.task.index == 1:
            super().allocate()


class HoldsACopy(Held):
    def blank_knowledge(self) -> CopiedBackbone:
        return CopiedBackbone(self.net.backbone)

    def fill_knowledge(self, knowledge: CopiedBackbone) -> None:
        copy_state(self.net.backbone, knowledge.backbone)

    def distance(self, step: Step, knowledge: CopiedBackbone, support: Support) -> Tensor:
        return squared_error(step.output.features, knowledge.backbone(step.batch.x))


class HoldsAnswersToTheMemory(ExemplarHost):
    losses = Held.losses

    def stability_support(self) -> Support:
        return Support(columns=self.task.old, samples="memory")

    def plasticity_support(self) -> Support:
        return Support(columns=self.task.new, samples="memory")


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    with forgetting(HOSTS):
        for host in (HoldsMeans, HoldsMeansAndGrows, HoldsOnlyTheFirst, HoldsACopy, HoldsAnswersToTheMemory):
            HOSTS.register(host.__name__)(host)
        yield


@pytest.mark.parametrize("name", ["HoldsMeans", "HoldsMeansAndGrows"])
def test_stable_knowledge_is_filled_whatever_allocate_and_begin_do_too(name: str) -> None:
    host = quick_host(name)
    Trainer(host, host.benchmark).run()
    assert isinstance(host.stable, MeanOfFeatures)
    assert host.stable.mean.abs().sum() > 0


def test_knowledge_that_the_host_keeps_is_not_filled_again() -> None:
    host = quick_host("HoldsOnlyTheFirst", tiny_benchmark((2, 2, 2)))
    seen: list[Tensor] = []

    def note(event: Mapping[str, object]) -> None:
        if event["event"] == "evaluation" and isinstance(host.stable, MeanOfFeatures):
            seen.append(host.stable.mean.clone())

    Trainer(host, host.benchmark, [note]).run()
    assert len(seen) == 2
    assert torch.equal(*seen)
    assert seen[0].abs().sum() > 0


@pytest.mark.slow
def test_nor_is_it_in_a_run_that_is_resumed() -> None:
    """Which replays the allocation of a task that has begun, and does not begin it again."""
    assert [check.problem for check in check_host("HoldsOnlyTheFirst") if not check.kept] == []


def test_a_copied_network_stands_still_with_its_statistics() -> None:
    method = quick_flashback("HoldsACopy", tiny_benchmark((2, 3)), training__epochs=4)
    names: list[str] = []
    before: dict[str, Tensor] = {}

    def note(event: Mapping[str, object]) -> None:
        stable, plastic = method.host.stable, method.plastic
        if event["event"] == "epoch" and event["stage"] == "phase 2":
            assert isinstance(stable, CopiedBackbone)
            assert isinstance(plastic, CopiedBackbone)
            now = {**stable.state_dict(prefix="stable."), **plastic.state_dict(prefix="plastic.")}
            names.extend(name for name in before if not torch.equal(before[name], now[name]))
            before.update({name: tensor.clone() for name, tensor in now.items()})
            assert not any(module.training for one in (stable, plastic) for module in one.modules())

    Trainer(method, method.host.benchmark, [note]).run()
    assert any("running_mean" in name for name in before)
    assert names == []


def test_stability_may_act_on_the_memory_alone() -> None:
    host = quick_host("HoldsAnswersToTheMemory")
    terms: dict[str, float] = {}

    def note(event: Mapping[str, object]) -> None:
        losses = event.get("losses")
        if isinstance(losses, Mapping):
            terms.update(losses)

    Trainer(host, host.benchmark, [note]).run()
    assert isinstance(host.stable, ReplayedTargets)
    assert terms["stability"] > 0
