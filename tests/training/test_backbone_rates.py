"""A frozen backbone, and a smaller learning rate for it than for the head."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flashback as fb
from flashback.conformance import check_host
from flashback.hosts import HOSTS, Host
from flashback.knowledge import ModelKnowledge
from flashback.nets import Backbone
from flashback.training import Trainer, build_method
from flashback.training.step import TrainingStep, set_rate
from helpers import quick_config, quick_host, small_settings, tiny_benchmark

SEVERAL = [name for name in HOSTS if not HOSTS[name].has_one_backbone]
TRAINED = [name for name in HOSTS if HOSTS[name].has_one_backbone and HOSTS[name].family != "frozen"]
FAST = ("icarl", "der++", "ewc", "lucir")
EVERY_HOST = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in HOSTS]
EVERY_TRAINED = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in TRAINED]


@pytest.mark.parametrize("optimiser", ["sgd", "adam", "adamw"])
def test_the_update_is_that_of_two_groups_in_torch(optimiser: str) -> None:
    factor, lr = 0.1, 0.05
    settings = {"training__backbone_lr_factor": factor, "training__optimiser": optimiser, "training__views": []}
    settings |= {"training__weight_decay": 0.01, "training__momentum": 0.9 if optimiser == "sgd" else 0.0}
    host, reference = (quick_host("finetune", training__lr=lr, **settings) for _ in range(2))
    (stage,) = host.stages()
    host.train()
    reference.train()
    step = TrainingStep(host, stage, stage.stream(), "fp32")
    backbone, head = reference.net.backbone.parameters(), reference.net.head.parameters()
    groups = [{"params": [*backbone], "lr": factor * lr}, {"params": [*head]}]
    optimisers: Any = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimiser]
    plain = optimisers(groups, lr=lr, weight_decay=0.01, **({"momentum": 0.9} if optimiser == "sgd" else {}))
    images = host.task.train
    for k in range(4):
        rows = torch.arange(8 * k, 8 * k + 8) % len(images)
        rate = lr / (k + 1)
        set_rate(step.optimiser, rate)
        plain.param_groups[0]["lr"], plain.param_groups[1]["lr"] = factor * rate, rate
        step(rows)
        plain.zero_grad()
        logits = reference.net(reference.views.plain(images.x[rows])).logits
        torch.nn.functional.cross_entropy(logits, images.y[rows]).backward()
        plain.step()
    for first, second in zip(host.net.parameters(), reference.net.parameters(), strict=True):
        torch.testing.assert_close(first, second)


def test_without_a_factor_there_is_one_group() -> None:
    host = quick_host("finetune")
    (stage,) = host.stages()
    (group,) = TrainingStep(host, stage, stage.stream(), "fp32").optimiser.param_groups
    assert len(group["params"]) == len([*host.net.parameters()])


def test_a_later_stage_has_the_factor_too() -> None:
    host = quick_host("lucir", training__backbone_lr_factor=0.1, **small_settings("lucir"))
    host.task = host.benchmark.tasks[1]
    assert [stage.optimisation.backbone_lr_factor for stage in host.stages()] == [0.1, 0.1]


@pytest.mark.parametrize("name", ["icarl", pytest.param("der++", marks=pytest.mark.slow)])
@pytest.mark.parametrize("settings", [{"training.backbone_lr_factor": 0.1}, {"training.freeze_backbone": True}])
def test_every_promise_is_kept(name: str, settings: dict[str, Any]) -> None:
    """Among them exact resume, with the state of the optimiser in two groups."""
    assert not [check for check in check_host(name, settings=settings) if not check.kept]


@pytest.mark.parametrize("name", EVERY_TRAINED)
def test_a_frozen_backbone_does_not_change_in_any_host(name: str) -> None:
    settings = {"training__freeze_backbone": True, "training__weight_decay": 0.1, **small_settings(name)}
    benchmark = tiny_benchmark((2, 2), per_class=6, test_per_class=2)
    method = build_method(quick_config(name, flashback=HOSTS[name].has_knowledge, **settings), benchmark, "cpu")
    net = method.host.net
    before = {key: tensor.clone() for key, tensor in net.state_dict().items()}
    Trainer(method, benchmark).run()
    after = net.state_dict()
    frozen = [key for key in before if key.startswith("backbone.")]
    assert frozen
    assert all(torch.equal(after[key], before[key]) for key in frozen)
    assert any(not torch.equal(after[key], before[key]) for key in before.keys() - set(frozen))


@pytest.mark.parametrize("name", EVERY_TRAINED)
def test_a_factor_works_for_any_host_with_one_backbone(name: str) -> None:
    settings = {"training__backbone_lr_factor": 0.1, **small_settings(name)}
    benchmark = tiny_benchmark((2, 2), per_class=6, test_per_class=2)
    method = build_method(quick_config(name, flashback=HOSTS[name].has_knowledge, **settings), benchmark, "cpu")
    Trainer(method, benchmark).run()


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("setting", [{"training__backbone_lr_factor": 0.1}, {"training__freeze_backbone": True}])
def test_hosts_with_several_backbones_refuse_both(name: str, setting: dict[str, Any]) -> None:
    with pytest.raises(fb.FlashbackError, match=rf"need a host with one backbone, and {name.replace('+', '.')} builds"):
        quick_host(name, **setting)


@pytest.mark.parametrize("name", EVERY_HOST)
def test_hosts_say_whether_they_make_several_backbones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, new_backbone = [], Host.new_backbone
    monkeypatch.setattr(Host, "new_backbone", lambda *arguments: calls.append(arguments) or new_backbone(*arguments))
    benchmark = tiny_benchmark((2, 2), per_class=6, test_per_class=2)
    host = quick_host(name, benchmark, **small_settings(name))
    Trainer(host, benchmark).run()
    known = {part for module in host.modules() if isinstance(module, ModelKnowledge) for part in module.modules()}
    copies = [module for module in host.modules() if isinstance(module, Backbone) and module not in known]
    # Some keep the old modules in their knowledge; DyTox adds tokens to one backbone.
    adds_modules = host.family == "dynamic" and name != "dytox"
    built = [arguments for arguments in calls if arguments[0] is host]  # another host measures the untrained accuracies
    assert (adds_modules or max(len(built), len(copies)) > 1) != HOSTS[name].has_one_backbone


def test_a_frozen_backbone_has_no_rate() -> None:
    with pytest.raises(fb.FlashbackError, match=r"does nothing with training\.freeze_backbone=true"):
        quick_config("icarl", training__freeze_backbone=True, training__backbone_lr_factor=0.5)


def test_a_frozen_norm_layer_keeps_its_statistics_in_training_mode() -> None:
    host = quick_host("finetune", training__freeze_backbone=True)
    host.train()
    x = torch.randn(4, 1, 12, 12)
    before = host.net.backbone(x)
    assert torch.equal(host.net.backbone(torch.cat([x, 5 * x]))[:4], before)
