"""Tasks that end on averaged or merged weights: training.average and training.merge."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from flashback import Benchmark, Flashback, FlashbackError, Trainer
from flashback.conformance import check_host
from flashback.hosts import HOSTS, Host
from flashback.nets import BatchNorm2d
from flashback.training.trainer import Position
from helpers import quick_host, small_settings, tiny_benchmark

BOTH = {"training.average": 0.5, "training.merge": 0.3}


class Steps:
    """Copies the network after every step of a task."""

    def __init__(self, task: int) -> None:
        self.task, self.nets = task, list[dict[str, Tensor]]()
        self.trainer: Any = None

    def due(self, position: Position) -> bool:
        if position.task == self.task and position.step > 0:
            self.nets.append(copied(self.trainer.host))
        return False

    def save(self, state: Any) -> None:
        """Nothing: the trainer saves once at the end of every run."""


def copied(host: Host) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in host.net.state_dict().items()}


def trained(
    name: str, tasks: int, benchmark: Benchmark | None = None, **settings: Any
) -> tuple[Host, list[dict[str, Tensor]], Trainer]:
    """The host after so many tasks, and its network after each step of the last of them."""
    benchmark = benchmark or tiny_benchmark((2, 3), per_class=8)
    host = quick_host(name, benchmark, **{"training__momentum": 0.9, **small_settings(name), **settings})
    steps = Steps(tasks - 1)
    steps.trainer = Trainer(host, benchmark, checkpointer=steps)
    for task in benchmark.tasks[:tasks]:
        steps.trainer.run_task(task)
    return host, steps.nets, steps.trainer


def parameter_names(host: Host) -> list[str]:
    return [name for name, _ in host.net.named_parameters()]


def test_without_the_settings_the_stage_is_the_hosts_own() -> None:
    host, _, _ = trained("lwf-mc", 2)
    stage = host.main_stage()
    assert (stage.allocate, stage.begin, stage.end) == (host.allocate, host.fill_and_begin, host.end)
    assert stage.after_step == host.after_step
    assert not [name for name in host.state_dict() if name.startswith("ending")]


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.99])
def test_a_task_ends_on_the_running_average_of_its_steps(decay: float) -> None:
    host, nets, _ = trained("lwf-mc", 1, training__average=decay)
    expected = {name: nets[0][name].double() for name in parameter_names(host)}
    for count, net in enumerate(nets[1:], 2):
        share = max(1 / count, 1 - decay)
        expected = {name: (1 - share) * mean + share * net[name].double() for name, mean in expected.items()}
    assert len(nets) == 4
    for name, parameter in host.net.named_parameters():
        assert torch.allclose(parameter.double(), expected[name], rtol=1e-5, atol=1e-7), name
    assert torch.equal(host.net.head.weight, nets[-1]["head.weight"]) == (decay == 0)  # type: ignore[union-attr]


def test_both_settings_leave_the_steps_as_they_are() -> None:
    """They act when a stage has ended, so the first task takes the steps of the host alone."""
    _, _, trainer = trained("lwf-mc", 2, training__average=0.5, training__merge=0.3)
    assert trainer.history.budget == trained("lwf-mc", 2)[2].history.budget
    _, first, _ = trained("lwf-mc", 1, training__average=0.5, training__merge=0.3)
    _, alone, _ = trained("lwf-mc", 1)
    for averaged, plain in zip(first, alone, strict=True):
        assert all(torch.equal(averaged[name], plain[name]) for name in plain)


def test_merging_moves_back_the_attention_that_all_tasks_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HOSTS["dytox"], "stages", lambda self: [self.main_stage()])  # without the fine-tuning
    settings = {"training__merge": 0.25, **small_settings("dytox")}
    before, _, _ = trained("dytox", 1, **settings)
    host, nets, _ = trained("dytox", 2, **settings)
    key = "attention.key.weight"
    assert torch.allclose(copied(host)[key], 0.75 * nets[-1][key] + 0.25 * copied(before)[key], atol=1e-6)
    assert not torch.equal(copied(host)[key], nets[-1][key])


@pytest.mark.parametrize("name", ["lwf-mc", "oewc", "lucir"])
def test_merging_moves_back_the_backbone_and_the_rows_of_earlier_classes(name: str) -> None:
    """LwF.MC adds rows, oEWC has all of them from the start, LUCIR trains the block of new classes alone."""
    settings = {"training__merge": 0.25, **({"host__finetune": "none"} if name == "lucir" else {})}
    before, _, _ = trained(name, 1, **settings)
    host, nets, _ = trained(name, 2, **settings)
    began, last, now = copied(before), nets[-1], copied(host)
    for key in parameter_names(host):
        if key.startswith("backbone."):
            assert torch.allclose(now[key], 0.75 * last[key] + 0.25 * began[key], atol=1e-6), key
            assert not torch.allclose(now[key], last[key], atol=1e-6), key
        elif name == "lucir":
            assert torch.equal(now[key], last[key]), key
        else:
            merged = 0.75 * last[key][:2] + 0.25 * began[key][:2]
            assert torch.allclose(now[key][:2], merged, atol=1e-6), key
            assert torch.equal(now[key][2:], last[key][2:]), key


@pytest.mark.parametrize(
    ("name", "sizes", "settings", "new"),
    [
        ("dytox", (32, 32), {"host__memory_size": 64}, ("tokens.1", "head.1.")),
        ("podnet", (2, 2), {"host__proxies": 2}, ("head.parametrizations.weight.original1",)),
    ],
)
def test_the_part_of_a_new_task_is_not_merged_whatever_its_size(
    name: str, sizes: tuple[int, int], settings: dict[str, int], new: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The length of a weight does not make its rows classes, even if it is the number of classes."""
    monkeypatch.setattr(HOSTS[name], "stages", lambda self: [self.main_stage()])  # without the fine-tuning
    settings = {**small_settings(name), "training__merge": 0.5, **settings}
    host, nets, _ = trained(name, 2, tiny_benchmark(sizes, per_class=2), **settings)
    names = [key for key in parameter_names(host) if key.startswith(new)]
    assert names
    assert any(len(copied(host)[key]) == host.columns for key in names)
    for key in names:
        assert torch.equal(copied(host)[key], nets[-1][key]), key


def test_the_first_task_has_nothing_to_merge_with() -> None:
    host, nets, _ = trained("lwf-mc", 1, training__merge=0.25)
    assert all(torch.equal(tensor, nets[-1][name]) for name, tensor in copied(host).items())


def test_importance_is_measured_at_the_merged_weights() -> None:
    host: Any = trained("oewc", 2, training__merge=0.25)[0]
    assert torch.equal(host.stable.values, torch.cat([p.detach().flatten() for p in host.anchored_parameters()]))


def test_batch_norm_is_measured_again_on_all_training_images() -> None:
    host, _, _ = trained("lwf-mc", 1, training__average=0.5, training__views=[])
    convolution, norm = host.net.get_submodule("backbone.layers.0"), host.net.get_submodule("backbone.layers.1")
    assert isinstance(norm, BatchNorm2d)
    with torch.no_grad():
        maps = convolution(host.views.plain(host.task.train.x))  # two batches of eight
    assert torch.allclose(norm.running_mean, maps.mean((0, 2, 3)), atol=1e-5)  # type: ignore[arg-type]
    assert norm.num_batches_tracked == 2
    assert norm.momentum == 0.1


def test_batch_norm_sees_the_memory_as_in_training() -> None:
    host, _, _ = trained("der++", 2, training__average=0.5)
    norms = [norm for norm in host.net.modules() if isinstance(norm, BatchNorm2d)]
    assert [str(norm.num_batches_tracked) for norm in norms] == ["tensor(9)"] * 4  # three batches with two draws each


def test_frozen_statistics_stay() -> None:
    host, nets, _ = trained("lwf-mc", 2, training__average=0.9, training__freeze_backbone=True)
    now = copied(host)
    assert all(torch.equal(now[name], nets[0][name]) for name in now if name.startswith("backbone."))
    assert not torch.equal(now["head.weight"], nets[-1]["head.weight"])


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("lucir", "si")]


@pytest.mark.parametrize("name", ["icarl", "der++", *SLOW])
def test_every_promise_is_kept_with_both(name: str) -> None:
    """Exact resume, flashback and all else; with alpha = 0 flashback leaves nothing of the average of phase 1."""
    benchmark = tiny_benchmark(per_class=6, test_per_class=3)
    assert [check for check in check_host(name, settings=BOTH, benchmark=benchmark) if not check.kept] == []


def test_with_flashback_they_act_on_phase_2() -> None:
    benchmark = tiny_benchmark((2, 3), per_class=8)
    settings = {"training__epochs": 3, "training__average": 0.5, "training__merge": 0.3}
    method = Flashback(quick_host("lwf-mc", benchmark, **settings), epochs=1, alpha=0.1)
    trainer = Trainer(method, benchmark)
    trainer.run()
    spent = {entry["stage"]: entry["steps"] for entry in trainer.history.budget}
    assert method.host.ending is not None
    assert int(method.host.ending.steps) == spent["phase 2"] == 2 * spent["phase 1"]


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("foster", {"training__merge": 0.3}, "need a host with one backbone, and foster builds several"),
        ("afec", {"training__average": 0.9}, "need a host with one backbone, and afec builds several"),
        ("joint", {"training__merge": 0.3}, "joint learns all tasks at once; leave it out"),
        ("simplecil", {"training__average": 0.9}, "do nothing with simplecil, which trains no weights"),
    ],
)
def test_hosts_that_cannot_have_them_refuse_at_once(name: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FlashbackError, match=sentence):
        quick_host(name, **{**small_settings(name), **settings})
