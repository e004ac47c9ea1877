"""AANets on iCaRL and LUCIR: two networks from one, the weights that mix them, and what flashback does with both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from later_tasks import changed, in_later_task, slow_cross_entropy, state_of
from torch import Generator, Tensor

from flashback import FlashbackError, Trainer
from flashback.batches import Batch, Views
from flashback.hosts import aanets
from flashback.nets import NETS, Backbone, Net
from flashback.nets.combined import AggregatedBackbone
from flashback.training.trainer import Position
from helpers import forgetting, quick_host, tiny_benchmark

BOTH = pytest.mark.parametrize("name", ["icarl-aanets", "lucir-aanets"])
WHOLE_RUNS = pytest.mark.parametrize("name", ["icarl-aanets", pytest.param("lucir-aanets", marks=pytest.mark.slow)])
ORIGINAL = ".conv.weight"  # of a convolution with scales


def plain_weights(branch: Backbone) -> dict[str, Tensor]:
    """The state of a branch by the names of an ordinary network, scales multiplied in."""
    state = branch.state_dict()
    scales = {key.removesuffix(".scale"): state.pop(key) for key in list(state) if key.endswith(".scale")}
    filters = {f"{key}.weight": scale * state.pop(key + ORIGINAL) for key, scale in scales.items()}
    return {key: value.clone() for key, value in state.items()} | filters


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[key]) for key, tensor in one.items())


def through_task(run: Any) -> None:
    """All stages of the task that was entered, from the beginning."""
    task = run.host.task
    run.trainer.position = Position(task.index)
    run.trainer.run_task(task)


def run_stage(run: Any, stage: Any, index: int = 0) -> None:
    run.trainer.position = Position(run.host.task.index, index)
    run.trainer.run_stage(run.host.task, stage)


@torch.no_grad()
def move_apart(host: Any) -> None:
    """Weights as if some steps had been made; while both networks are the same, it does not matter how they mix."""
    generator = torch.Generator().manual_seed(1)
    for parameter in host.net.parameters():
        parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))


def see_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Views give float64 without drawing, and nets leave it so."""
    to_float, plain = torch.Tensor.float, Views.plain

    def weak(views: Views, raw: Tensor, generator: Generator) -> Tensor:
        return plain(views, raw).double()

    monkeypatch.setattr(torch.Tensor, "float", lambda x: x if x.dtype == torch.float64 else to_float(x))
    monkeypatch.setattr(Views, "weak", weak)


# ---------------------------------------------------------------- the network over the tasks


@BOTH
def test_the_first_task_is_that_of_the_host_bit_for_bit(name: str) -> None:
    runs = [in_later_task(host, stages=0) for host in (name, name.removesuffix("-aanets"))]
    states = [state_of(run.host) for run in runs]
    assert same(*states)
    combined, plain = (run.trainer.history for run in runs)
    assert combined.matrices == plain.matrices
    assert not isinstance(runs[0].host.net.backbone, AggregatedBackbone)


@BOTH
def test_both_networks_start_as_that_of_the_first_task(name: str) -> None:
    run = in_later_task(name, stages=0)
    first = state_of(run.host.net.backbone)
    (stage, *_) = run.host.stages()
    run.trainer.allocate(stage)
    stage.begin()
    backbone = run.host.net.backbone
    assert isinstance(backbone, AggregatedBackbone)
    assert same(plain_weights(backbone.stable), first)
    assert same(state_of(backbone.plastic), first)
    assert backbone.mix.tolist() == [0.5] * 4


@BOTH
def test_losses_begin_as_those_of_the_host(name: str) -> None:
    """At the start of the second task, in evaluation mode, where all three networks are the same."""
    combined, plain = (in_later_task(host) for host in (name, name.removesuffix("-aanets")))
    stream = combined.host.stages()[0].stream()
    batch = Batch(combined.host.views.plain(stream.images), stream.labels, stream.images, stream.slots)
    terms = []
    for run in (combined, plain):
        run.host.eval()
        terms.append(run.host.losses(run.host.forward(batch)))
    assert terms[0].keys() == terms[1].keys() >= {"task", "stability"}
    assert all(torch.equal(value, terms[1][term]) for term, value in terms[0].items())


@BOTH
def test_the_stable_network_keeps_its_filters_and_all_else_learns(name: str) -> None:
    """Over two tasks, with momentum and weight decay; old class vectors of LUCIR stand still as ever."""
    run = in_later_task(name)
    host = run.host
    filters = {key: value.clone() for key, value in host.net.state_dict().items() if key.endswith(ORIGINAL)}
    assert {key.split(".")[1] for key in filters if key.startswith("backbone.")} == {"stable"}
    for task in (1, 2):
        if task == 2:
            run.method.enter(run.benchmark.tasks[task])
            run.trainer.allocate(host.stages()[0])
        before = state_of(host.net.backbone)
        run.trainer.host.train()
        stage = replace(host.stages()[0], allocate=lambda: None, end=lambda: None)
        run_stage(run, stage)
        stood = {key for key in before if key.endswith(ORIGINAL)}
        assert changed(before, host.net.backbone) == set(before) - stood
        host.end()
    kept = {key: value for key, value in host.net.state_dict().items() if key in filters and "backbone" in key}
    assert kept
    assert all(torch.equal(value, filters[key]) for key, value in kept.items())


@WHOLE_RUNS
def test_later_tasks_go_on_with_both_networks_and_their_weights(name: str) -> None:
    run = in_later_task(name, 2, stages=0)
    before = state_of(run.host.net.backbone)
    assert (before["mix"] != 0.5).all()
    stage = run.host.stages()[0]
    run.trainer.allocate(stage)
    stage.begin()
    assert not changed(before, run.host.net.backbone)


# ---------------------------------------------------------------- the weights


@BOTH
def test_a_pass_over_the_balanced_set_descends_on_its_cross_entropy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against differences of the loss itself; classes to come take no part, and nothing else moves."""
    run = in_later_task(name, host__mixing_lr=0.05, training__batch_size=1000)
    host, rate = run.host.double(), 0.05
    stage = host.stages()[0]
    see_float64(monkeypatch)
    move_apart(host)
    host.net.backbone.mix.copy_(torch.tensor([0.3, 0.45, 0.6, 0.7]))
    balanced, mix, seen = host.balanced_stream(), host.net.backbone.mix, host.task.seen.stop
    x = host.views.plain(balanced.images).double()

    @torch.no_grad()
    def loss(weights: Tensor) -> float:
        rest = mix.clone()
        mix.copy_(weights)
        host.net.eval()
        logits = host.net(x).logits
        host.net.train()
        mix.copy_(rest)
        return slow_cross_entropy(logits, balanced.labels.tolist(), seen)

    expected, small = mix.clone(), 1e-7  # where a ReLU turns between both ends the difference is off by as much
    for level in range(4):
        shift = torch.zeros(4, dtype=torch.float64)
        shift[level] = small
        expected[level] -= rate * (loss(mix + shift) - loss(mix - shift)) / (2 * small)
    before = state_of(host)
    host.zero_grad()
    stage.after_epoch(0)
    assert changed(before, host) == {"net.backbone.mix"}
    torch.testing.assert_close(mix, expected, rtol=0, atol=1e-7)
    assert (mix - before["net.backbone.mix"]).abs().min() > 1e-6
    assert host.net.training
    assert all(parameter.grad is None for parameter in host.parameters())


@BOTH
def test_batches_of_a_pass_follow_one_another(name: str) -> None:
    """As many steps as batches, so with small ones the weights move further; every epoch has an order of its own."""

    def after(size: int, epoch: int = 0) -> Tensor:
        run = in_later_task(name, host__mixing_lr=0.05, training__views=[])
        run.host.config = replace(run.host.config, training=replace(run.host.config.training, batch_size=size))
        move_apart(run.host)
        run.host.stages()[0].after_epoch(epoch)
        weights: Tensor = run.host.net.backbone.mix
        return weights

    whole, pieces = after(1000), after(8)
    assert (pieces - 0.5).abs().sum() > 2 * (whole - 0.5).abs().sum() > 0
    assert torch.equal(after(8), pieces)
    assert not torch.equal(after(8, epoch=1), pieces)


@BOTH
def test_steps_of_the_main_stage_leave_the_weights_alone(name: str) -> None:
    run = in_later_task(name)
    stage = replace(run.host.stages()[0], after_epoch=lambda epoch: None, allocate=lambda: None)
    run_stage(run, stage)
    assert run.host.net.backbone.mix.tolist() == [0.5] * 4


@WHOLE_RUNS
def test_a_pass_follows_every_epoch_of_the_main_stage_and_no_other(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same balanced set, as many images of every class seen."""
    heard: list[tuple[int, int]] = []
    sets: list[Any] = []
    learn = aanets.AANets.learn_mixing

    def listening(host: Any, balanced: Any, epoch: int) -> None:
        heard.append((host.task.index, epoch))
        sets.append(balanced())
        learn(host, balanced, epoch)

    monkeypatch.setattr(aanets.AANets, "learn_mixing", listening)
    finetuning = {"host__finetune_epochs": 2} if name.startswith("lucir") else {}
    host = quick_host(name, host__memory_size=21, training__epochs=3, **finetuning)
    Trainer(host, host.benchmark).run()
    assert heard == [(task, epoch) for task in (1, 2) for epoch in range(3)]
    assert sets[0] is sets[1] is sets[2]
    assert torch.bincount(sets[0].labels).tolist() == [10] * 5
    assert torch.bincount(sets[3].labels).tolist() == [4] * 7


@BOTH
@pytest.mark.parametrize(("rate", "ends"), [(0.0, [0.5] * 4), (1e6, None)])
def test_the_weights_stay_where_they_mix(name: str, rate: float, ends: list[float] | None) -> None:
    run = in_later_task(name, host__mixing_lr=rate)
    move_apart(run.host)
    run.host.stages()[0].after_epoch(0)
    mix = run.host.net.backbone.mix.tolist()
    assert mix == ends if ends else set(mix) <= {0.0, 1.0}


# ---------------------------------------------------------------- knowledge, with flashback too


@BOTH
def test_stable_knowledge_is_the_network_before_the_task(name: str) -> None:
    """One network before the second task; then both, with the weights that mix them."""
    run = in_later_task(name, stages=0)
    for task in (1, 2):
        run.method.enter(run.benchmark.tasks[task])
        host = run.host
        before, x = state_of(host.net), host.views.plain(run.benchmark.tasks[0].test.x)
        host.eval()
        expected = host.net(x)
        through_task(run)
        known = host.stable.model.module
        assert isinstance(known.backbone, AggregatedBackbone) == (task == 2)
        assert same(state_of(known), before)
        assert torch.equal(host.stable(x).features, expected.features)
        assert torch.equal(host.stable(x).logits, expected.logits)


@WHOLE_RUNS
def test_flashback_anchors_and_restores_both_networks_and_the_weights(name: str) -> None:
    run = in_later_task(name, 2, stages=0, flashback=True, training__epochs=3, flashback__epochs=2)
    host = run.host
    phase_1, phase_2, *_ = run.method.stages()
    run_stage(run, phase_1)
    primary, begun = state_of(host.net), run.method.snapshot
    assert not torch.equal(primary["backbone.mix"], begun["net.backbone.mix"])
    run.trainer.allocate(phase_2)
    phase_2.begin()
    assert not changed({key: value.clone() for key, value in begun.items()}, host)
    plastic = run.method.plastic.model.module
    assert isinstance(plastic.backbone, AggregatedBackbone)
    assert same(state_of(plastic), primary)
    phase_2.before_epoch(0)
    phase_2.after_epoch(0)
    assert torch.equal(plastic.backbone.mix, primary["backbone.mix"])  # it stands still while those of the host move
    assert not torch.equal(host.net.backbone.mix, begun["net.backbone.mix"])


@WHOLE_RUNS
def test_bytes_count_both_networks(name: str) -> None:
    run = in_later_task(name, 2, stages=2, flashback=True)
    network = sum(tensor.numel() * tensor.element_size() for tensor in run.host.net.state_dict().values())
    assert run.method.knowledge_bytes() == {"stable": network + run.host.memory.nbytes(), "plastic": network}


# ---------------------------------------------------------------- refused


@BOTH
def test_a_negative_rate_is_refused(name: str) -> None:
    with pytest.raises(FlashbackError, match=r"host\.mixing_lr must not be negative"):
        quick_host(name, host__mixing_lr=-0.1)


@BOTH
def test_a_network_without_levels_is_refused_before_training(name: str) -> None:
    class Flat(Backbone):
        width = 4

        def __init__(self, shape: tuple[int, int, int]) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(shape[0], 4)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x.mean((2, 3)))
            return out

    with forgetting(NETS):
        NETS.register("flat")(Flat)
        with pytest.raises(
            FlashbackError, match=r"between the levels of a network, but Flat does not define them; .*levels\(\)"
        ):
            quick_host(name, host__net="flat")


@pytest.mark.slow
@BOTH
def test_a_resnet_has_its_stages_as_levels(name: str) -> None:
    """A short run on the network of the comparison."""
    net = "resnet32-cosine" if name.startswith("lucir") else "resnet32"
    benchmark = tiny_benchmark((2, 2), per_class=3, test_per_class=2, shape=(3, 8, 8))
    run = in_later_task(name, 1, stages=0, benchmark=benchmark, host__net=net, training__epochs=1)
    through_task(run)
    assert isinstance(run.host.net, Net)
    assert len(run.host.net.backbone.mix) == 3
