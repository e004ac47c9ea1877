"""What a host may do around an update, in its main stage and in later ones, and what it has without saying so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flashback import Flashback, Host, Trainer, configure, train
from flashback.batches import split_batches
from flashback.config import RunConfig
from flashback.hosts import HOSTS, Stage, Step
from flashback.hosts.exemplars import ExemplarHost, ExemplarSettings
from flashback.hosts.finetune import Finetune
from flashback.hosts.lwf_mc import LwFMC
from flashback.hosts.replay import ReplayHost, ReplayStep
from flashback.hosts.stages import no_op
from flashback.training import build_host
from flashback.training.step import TrainingStep
from helpers import QUICK, quick_host, tiny_benchmark

MOST = 0.05  # the norm to which gradients are clipped


def made(host: type[Host], flashback: bool = False, **settings: Any) -> Host:
    """A host of this class, registered for the while of a test."""
    HOSTS.register("made")(host)
    overrides = {key.replace("__", "."): value for key, value in settings.items()}
    config: RunConfig = configure("made", "tiny", flashback=flashback, settings={**QUICK, **overrides})
    return build_host(config, tiny_benchmark(), "cpu")


# ---------------------------------------------------------------- before the update


class Clipping(Finetune):
    def before_update(self, step: Step) -> None:
        torch.nn.utils.clip_grad_norm_(self.trained_parameters(), MOST)


@pytest.mark.parametrize("host", [Clipping, Finetune])
def test_clipping_is_that_of_a_loop_by_hand(host: type[Host]) -> None:
    first, second = (made(host, training__views=[], training__momentum=0.9) for _ in range(2))
    (stage,) = first.stages()
    stream = stage.stream()
    step = TrainingStep(first, stage, stream, "fp32")
    plain = torch.optim.SGD(second.net.parameters(), lr=0.05, momentum=0.9)
    norms = []
    for indices in split_batches(torch.arange(len(stream)), 8):
        step(indices)
        x, y = second.views.plain(stream.images[indices]), stream.labels[indices]
        plain.zero_grad()
        F.cross_entropy(second.net(x).logits, y).backward()
        norms.append(
            float(torch.nn.utils.get_total_norm([p.grad for p in second.net.parameters() if p.grad is not None]))
        )
        if host is Clipping:
            torch.nn.utils.clip_grad_norm_(second.net.parameters(), MOST)
        plain.step()
    assert max(norms) > MOST  # there was something to clip
    for name, tensor in first.net.state_dict().items():
        torch.testing.assert_close(tensor, second.net.state_dict()[name], msg=name)


def test_another_pass_can_be_added_to_the_gradients() -> None:
    """The gradients of the step are there, and the hook may make more of them."""
    seen: list[bool] = []

    class Twice(Finetune):
        def before_update(self, step: Step) -> None:
            before = [p.grad.clone() for p in self.trained_parameters() if p.grad is not None]
            F.cross_entropy(self.net(step.batch.x).logits, step.batch.y).backward()
            after = [p.grad for p in self.trained_parameters() if p.grad is not None]
            seen.append(all(torch.allclose(two, 2 * one, atol=1e-6) for one, two in zip(before, after, strict=True)))

    host = made(Twice)
    Trainer(host, host.benchmark).run_task(host.benchmark.tasks[0])
    assert seen
    assert all(seen)


def test_both_phases_have_the_hook_and_each_step_once() -> None:
    class Counting(LwFMC):
        updates = 0

        def before_update(self, step: Step) -> None:
            self.updates += 1

    host = made(Counting, flashback=True)
    result = train(Flashback(host))
    assert isinstance(host, Counting)
    assert host.updates == result.steps


# ---------------------------------------------------------------- later stages


class TwoStages(ReplayHost):
    """Offers to its reservoir what it sees; a second stage sees the same images again."""

    def losses(self, step: ReplayStep) -> Mapping[str, Tensor]:
        return {"task": F.cross_entropy(step.output.logits, step.batch.y)}

    def before_update(self, step: Step) -> None:
        assert self.in_main_stage

    in_main_stage = True

    def stages(self) -> list[Stage]:
        def leave_main() -> None:
            self.in_main_stage = False

        return [self.main_stage(), self.extra_stage("again", 1, {}, begin=leave_main)]


def test_an_extra_stage_offers_nothing_to_the_reservoir() -> None:
    host = made(TwoStages, host__memory_size=10)
    trainer = Trainer(host, host.benchmark)
    trainer.run_task(host.benchmark.tasks[0])
    learn, again = trainer.history.budget
    assert (learn["stage"], again["stage"]) == ("learn", "again")
    assert again["images"] > 0
    assert host.memory is not None
    assert int(host.memory.seen) == learn["images"]


def test_a_later_stage_has_the_hooks_it_is_given() -> None:
    host = made(TwoStages)
    stage = host.extra_stage("again", 1, {}, before_update=host.before_update, after_step=host.after_step)
    assert (stage.before_update, stage.after_step) == (host.before_update, host.after_step)
    bare = host.extra_stage("again", 1, {})
    assert replace(stage, before_update=bare.before_update, after_step=bare.after_step) == bare


# ---------------------------------------------------------------- exemplars


def test_a_host_with_exemplars_needs_no_settings_of_its_own() -> None:
    class Plain(ExemplarHost):
        def losses(self, step: Step) -> Mapping[str, Tensor]:
            return {"task": F.cross_entropy(step.output.logits, step.batch.y)}

    assert Plain.Settings is ExemplarSettings
    host = made(Plain, host__memory_size=14)
    train(host)
    assert host.memory is not None
    assert host.memory.filled == 14


def test_a_later_stage_has_no_hook_of_the_main_one() -> None:
    later = quick_host("lucir").extra_stage("more", 1, {})
    hooks = (later.before_update, later.after_step, later.allocate, later.begin, later.end)
    assert all(hook is no_op for hook in hooks)
    assert not later.main


def test_the_first_task_has_its_own_schedule_and_epochs() -> None:
    settings = {"training__first_schedule": "none", "training__first_epochs": 5}
    host = quick_host("finetune", training__schedule="cosine", **settings)
    rates = []
    for task in host.benchmark.tasks[:2]:
        host.enter(task)
        (stage,) = host.stages()
        rates.append((stage.optimisation.schedule, stage.epochs))
    assert rates == [("none", 5), ("cosine", 2)]


@pytest.mark.parametrize(("epochs", "trained"), [(0, 0), (3, 3), (None, 2)])
def test_a_later_stage_has_the_epochs_it_is_given(epochs: int | None, trained: int) -> None:
    assert quick_host("lwf-mc", training__epochs=2).extra_stage("more", epochs, {}).epochs == trained
