"""flashback.teacher=running: the plastic knowledge is a running average of the model that learns."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from conformance_runs import KNOWING, Watcher, few_images, method_of, mostly_slow, run
from torch import Tensor, nn

from flashback import Flashback, FlashbackError, Trainer, train
from flashback.conformance import check_host
from flashback.hosts import HOSTS, Stage
from flashback.knowledge import ReplayedTargets, Support
from helpers import forgetting, quick_flashback, small_settings

COPYING = [
    "bic",
    "connector",
    "dytox",
    "icarl",
    "icarl-aanets",
    "lucir",
    "lucir-aanets",
    "lwf",
    "lwf-mc",
    "podnet",
    "wa",
]
RUNNING: dict[str, Any] = {"flashback__teacher": "running", "flashback__decay": 0.6, "flashback__alpha": 0.5}


def copied(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


class Noting(Flashback):
    """Notes the network and the teacher when phase 2 begins, and the teacher when it ends."""

    def __init__(self, host: Any) -> None:
        super().__init__(host)
        self.begun: list[dict[str, Tensor]] = []
        self.first: list[dict[str, Tensor]] = []
        self.last: list[dict[str, Tensor]] = []

    def flash_back(self) -> None:
        super().flash_back()
        self.begun.append(copied(self.host.net))
        self.first.append(copied(self.teacher))

    def finish(self, main: Stage) -> None:
        self.last.append(copied(self.teacher))
        super().finish(main)

    @property
    def teacher(self) -> nn.Module:
        assert self.plastic is not None
        return self.plastic.get_submodule("model.module")


class Networks(Watcher):
    """Copies the network after every step of phase 2 of the second task."""

    def __init__(self) -> None:
        self.states: list[dict[str, Tensor]] = []

    def after_step(self, position: Any) -> None:
        step = self.trainer.step
        assert step is not None
        if position.task == 1 and step.stage.name == "phase 2":
            self.states.append(copied(self.trainer.host.net))


@pytest.mark.parametrize("name", mostly_slow(COPYING, ["icarl", "lucir"]))
def test_the_teacher_is_the_running_average_of_the_model(name: str) -> None:
    networks, benchmark = Networks(), few_images()
    method = method_of(name, benchmark, flashback=True, plugin=Noting, **RUNNING, training__epochs=3)
    assert isinstance(method, Noting)
    run(method, networks)
    assert method.begun[0].keys() == method.first[0].keys()
    assert all(torch.equal(tensor, method.first[0][key]) for key, tensor in method.begun[0].items())
    expected = networks.states[0]
    for count, state in enumerate(networks.states[1:], 2):
        share = max(1 / count, 0.4)
        for key, tensor in state.items():
            mixed = (1 - share) * expected[key].double() + share * tensor.double()
            expected[key] = mixed if tensor.is_floating_point() else tensor
    assert len(networks.states) > 5
    for key, tensor in method.last[0].items():
        assert torch.allclose(tensor.double(), expected[key].double(), rtol=1e-4, atol=1e-6), key
    assert any(not torch.equal(tensor, networks.states[-1][key]) for key, tensor in method.last[0].items())


@pytest.mark.parametrize("name", mostly_slow(COPYING, ["lwf-mc"]))
def test_every_promise_is_kept(name: str) -> None:
    """Exact resume, equal steps, and alpha = 0 is the host for all its epochs."""
    settings = {key.replace("__", "."): value for key, value in RUNNING.items()}
    assert [check for check in check_host(name, settings=settings, benchmark=few_images()) if not check.kept] == []


def test_without_alpha_it_is_the_host() -> None:
    ends = [
        run(method_of("lwf-mc", few_images(), flashback, **settings))
        for flashback, settings in ((True, {**RUNNING, "flashback__alpha": 0.0}), (False, {}))
    ]
    assert ends[0].differs_from(ends[1]) is None


def test_it_has_all_epochs_of_the_host_and_no_phase_1() -> None:
    method = quick_flashback("lwf-mc", **RUNNING, training__epochs=5, flashback__epochs=2)
    method.enter(method.host.benchmark.tasks[1])
    assert [stage.epochs for stage in method.stages()] == [0, 5]


@pytest.mark.parametrize("name", KNOWING)
def test_hosts_with_other_knowledge_refuse_at_once(name: str) -> None:
    host = method_of(name, few_images()).host
    if name in COPYING:
        Flashback(host, teacher="running")
    else:
        with pytest.raises(FlashbackError, match=f"a copy of the whole network, and {re.escape(name)} keeps"):
            Flashback(host, teacher="running")


def test_targets_for_the_memory_cannot_run() -> None:
    with pytest.raises(FlashbackError, match=r"with flashback\.support=memory it is targets"):
        quick_flashback("icarl", **small_settings("icarl"), **RUNNING, flashback__support="memory")


def test_a_host_that_does_not_declare_its_targets_is_refused_in_the_second_task() -> None:
    class Undeclared(HOSTS["icarl"]):  # type: ignore[misc]
        def plasticity_support(self) -> Support:
            return Support(samples="memory")

    with forgetting(HOSTS):
        HOSTS.register("undeclared")(Undeclared)
        with pytest.raises(FlashbackError, match="undeclared keeps other plastic knowledge"):
            train(quick_flashback("undeclared", **small_settings("icarl"), **RUNNING))


def test_hosts_declare_whether_they_replay_targets() -> None:
    for name in KNOWING:
        method = method_of(name, few_images(), flashback=True)
        assert isinstance(method, Flashback)
        trainer = Trainer(method, method.host.benchmark)
        trainer.run_task(method.host.benchmark.tasks[0])
        method.enter(method.host.benchmark.tasks[1])
        trainer.allocate(method.stages()[0])
        knowledge = method.host.blank_knowledge_for(method.support())
        assert isinstance(knowledge, ReplayedTargets) == method.host.replays_targets, name
