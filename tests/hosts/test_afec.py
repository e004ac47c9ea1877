"""AFEC: the empty network, its anchor, both penalties by hand, and what is left of it without its strength."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from flashback import FlashbackError, Trainer
from flashback.batches import Batch
from flashback.hosts import Host, Stage, Step
from flashback.hosts.afec import TwinStep
from flashback.knowledge import ImportantParameters
from flashback.knowledge.importance import fisher_diagonal
from flashback.nets import Output
from flashback.training.step import TrainingStep
from helpers import quick_flashback, quick_host

STRENGTHS = {"host__strength": 3.0, "host__empty_strength": 5.0}


def in_task(host: Host, task: int = 1) -> Stage:
    """Through the tasks before it as a run goes, then with its main stage begun and all weights somewhere else."""
    trainer = Trainer(host, host.benchmark)
    for earlier in host.benchmark.tasks[:task]:
        trainer.run_task(earlier)
    host.enter(host.benchmark.tasks[task])
    stage = host.stages()[-1]
    trainer.allocate(stage)
    stage.begin()
    move(host, seed=task)
    host.train()
    return stage


@torch.no_grad()
def move(host: Host, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in host.parameters():
        parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))


def batch_of(host: Host, size: int = 6) -> Batch:
    images = host.task.train
    rows = torch.arange(0, len(images), len(images) // size)[:size]
    raw, y = images.x[rows], images.y[rows]
    return Batch(host.views.plain(raw), y, raw, torch.full_like(y, -1))


def by_name(host: Any, flat_vector: Tensor, names: list[str]) -> dict[str, Tensor]:
    """Pieces of a flat vector, named and shaped as the parameters of the network."""
    parameters = dict(host.net.named_parameters())
    pieces = torch.split(flat_vector, [parameters[name].numel() for name in names])
    return {name: piece.view_as(parameters[name]) for name, piece in zip(names, pieces, strict=True)}


def weights(net: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


# ---------------------------------------------------------------- losses


@pytest.mark.parametrize("loss", ["ce_all", "ce_current", "bce_current"])
def test_every_term_against_a_slow_reference(loss: str) -> None:
    """In float64: the two anchors of EWC over all parameters, that of the empty network over the backbone."""
    host: Any = quick_host("afec", host__loss=loss, **STRENGTHS)
    stage = in_task(host, task=2)
    host.double()
    with torch.no_grad():
        for knowledge in (host.stable[0], host.stable[1], host.expanded):
            knowledge.importance.copy_(torch.rand_like(knowledge.importance))
    batch = batch_of(host)
    outputs, empty_outputs = (Output(torch.zeros(0), 3 * torch.randn(6, 7, dtype=torch.float64)) for _ in range(2))
    terms = stage.losses(TwinStep(batch, outputs, empty_outputs))
    assert list(terms) == ["task", "stability", "expansion", "convergence"]

    parameters = dict(host.net.named_parameters())
    backbone = [name for name in parameters if name.startswith("backbone.")]
    assert len(backbone) == len(parameters) - 2

    def slow_form(knowledge: ImportantParameters, names: list[str]) -> float:
        anchor, importance = (by_name(host, part, names) for part in (knowledge.values, knowledge.importance))
        return sum((importance[name] * (parameters[name] - anchor[name]) ** 2).sum().item() for name in names)

    stability = sum(slow_form(host.stable[task], list(parameters)) for task in range(2))
    assert terms["stability"].item() == pytest.approx(3.0 / 2 * stability, rel=1e-9)
    assert terms["convergence"].item() == pytest.approx(5.0 / 2 * slow_form(host.expanded, backbone), rel=1e-9)

    def slow_loss(logits: Tensor) -> float:
        y, new = batch.y.tolist(), host.task.new
        if loss != "bce_current":
            first = 0 if loss == "ce_all" else new.start
            new_logits = logits if loss == "ce_all" else logits[:, new]
            return sum(
                -row.log_softmax(0)[label - first].item() for row, label in zip(new_logits, y, strict=True)
            ) / len(y)
        p = logits.sigmoid()[:, new]
        hit = [p[i, k] if new.start + k == label else 1 - p[i, k] for i, label in enumerate(y) for k in range(2)]
        return sum(-value.log().item() for value in hit) / len(hit)

    assert terms["task"].item() == pytest.approx(slow_loss(outputs.logits), rel=1e-9)
    assert terms["expansion"].item() == pytest.approx(slow_loss(empty_outputs.logits), rel=1e-9)


def test_each_network_descends_on_its_own_terms() -> None:
    """The empty network on its task loss alone; the head of the network feels no convergence."""
    host: Any = quick_host("afec", **STRENGTHS)
    stage = in_task(host)
    stage.before_epoch(0)
    move(host, seed=7)
    terms = stage.losses(stage.forward(batch_of(host)))

    def reached(term: str) -> set[str]:
        named = {name: p for name, p in host.named_parameters() if name.startswith(("net.", "empty."))}
        slopes = torch.autograd.grad(terms[term], list(named.values()), retain_graph=True, allow_unused=True)
        return {name for name, slope in zip(named, slopes, strict=True) if slope is not None and slope.any()}

    names = [name for name, _ in host.net.named_parameters()]
    assert reached("expansion") == {f"empty.{name}" for name in names}
    assert reached("task") == {f"net.{name}" for name in names}
    assert reached("convergence") == {f"net.{name}" for name in names if name.startswith("backbone.")}
    assert {id(p) for p in stage.parameters()} == {id(p) for net in (host.net, host.empty) for p in net.parameters()}


# ---------------------------------------------------------------- the empty network and its anchor


@pytest.mark.parametrize("estimator", ["empirical", "mammoth"])
def test_the_anchor_is_the_empty_network_as_it_is_before_an_epoch(estimator: Any) -> None:
    host: Any = quick_host("afec", host__fisher=estimator)
    stage = in_task(host)
    for epoch in range(2):
        move(host, seed=10 + epoch)
        stage.before_epoch(epoch)
        names = [name for name, _ in host.net.named_parameters() if name.startswith("backbone.")]
        values = by_name(host, host.expanded.values, names)
        empty = dict(host.empty.named_parameters())
        assert all(torch.equal(values[name], empty[name]) for name in names)
        train = host.task.train
        whole = fisher_diagonal(host.empty, train.x, train.y, host.views.plain, estimator)
        expected = by_name(host, whole, list(empty))
        importance = by_name(host, host.expanded.importance, names)
        assert all(torch.equal(importance[name], expected[name]) for name in names)
        assert host.expanded.importance.any()


def test_going_on_within_an_epoch_keeps_its_anchor() -> None:
    """The trainer asks again when it goes on in the middle of an epoch: the empty network has moved since."""
    host: Any = quick_host("afec")
    stage = in_task(host)
    stage.before_epoch(0)
    anchor = weights(host.expanded)
    move(host, seed=3)
    stage.before_epoch(0)
    assert same(weights(host.expanded), anchor)
    stage.begin()  # the next task begins with an epoch of the same number
    stage.before_epoch(0)
    assert not torch.equal(host.expanded.values, anchor["values"])


def test_the_empty_network_learns_each_task_freely_and_is_never_reset() -> None:
    """Its weights after a task come of plain descent from those before it, whatever holds the network."""

    def run(strength: float, empty_strength: float) -> list[dict[str, Tensor]]:
        host: Any = quick_host("afec", host__strength=strength, host__empty_strength=empty_strength)
        trainer, after = Trainer(host, host.benchmark), []
        for task in host.benchmark.tasks:
            trainer.run_task(task)
            after.append(weights(host.empty))
        return after

    free, penalised = run(0.0, 0.0), run(2.0, 2.0)
    assert all(same(one, other) for one, other in zip(free, penalised, strict=True))
    assert not same(free[0], free[1])


def test_the_first_task_is_that_of_both_networks() -> None:
    host: Any = quick_host("afec")
    assert same(weights(host.net), weights(host.empty))
    trainer = Trainer(host, host.benchmark)
    trainer.run_task(host.benchmark.tasks[0])
    assert same(weights(host.net), weights(host.empty))
    assert {entry["stage"] for entry in trainer.history.budget} == {"learn"}
    host.enter(host.benchmark.tasks[1])
    assert [(stage.name, stage.main) for stage in host.stages()] == [("empty network", False), ("learn", True)]


def test_the_empty_network_is_one_epoch_ahead() -> None:
    """The stage before the main one moves it alone; the main stage then moves both."""
    host: Any = quick_host("afec")
    trainer = Trainer(host, host.benchmark)
    trainer.run_task(host.benchmark.tasks[0])
    host.enter(host.benchmark.tasks[1])
    host.train()
    for stage, networks in zip(host.stages(), ({"empty"}, {"net", "empty"}), strict=True):
        trainer.allocate(stage)
        stage.begin()
        stage.before_epoch(0)
        before = {name: weights(getattr(host, name)) for name in ("net", "empty")}
        stream = stage.stream()
        TrainingStep(host, stage, stream, "fp32")(torch.arange(8))
        assert {name for name in before if not same(before[name], weights(getattr(host, name)))} == networks


def test_real_steps_pull_the_network_towards_the_empty_one() -> None:
    def apart(strength: float) -> Any:
        host: Any = quick_host("afec", host__strength=0.0, host__empty_strength=strength)
        stage = in_task(host)
        host.expanded.importance.fill_(1.0)  # as if every parameter mattered: a few steps tell
        step = TrainingStep(host, stage, stage.stream(), "fp32")
        for indices in torch.arange(32).split(8):
            step(indices)
        return host.expanded.distance(host.net.backbone.parameters()).item()

    assert apart(5.0) < 0.5 * apart(0.0)


# ---------------------------------------------------------------- beside EWC, and with flashback


@pytest.mark.parametrize("flashback", [False, True])
@pytest.mark.parametrize("loss", ["ce_all", pytest.param("bce_current", marks=pytest.mark.slow)])
def test_without_its_strength_it_is_ewc_bit_for_bit(flashback: bool, loss: str) -> None:
    build: Any = quick_flashback if flashback else quick_host
    common = {"host__loss": loss, "host__strength": 3.0, "training__momentum": 0.9, "flashback__alpha": 1.0}

    def run(name: str, **settings: Any) -> tuple[list[list[float]], dict[str, Tensor]]:
        method = build(name, **common, **settings)
        matrix = Trainer(method, method.host.benchmark).run()["task_incremental"]["matrix"]
        state = method.host.state_dict()
        return matrix, {name: state[name].clone() for name in state if name.startswith(("net.", "stable."))}

    ewc, plain, pulled = run("ewc"), run("afec", host__empty_strength=0.0), run("afec", host__empty_strength=50.0)
    assert plain[0] == ewc[0]
    assert same(plain[1], ewc[1])
    assert not same(pulled[1], ewc[1])


def test_flashback_anchors_all_parameters_of_the_network_and_restores_both() -> None:
    """Plastic knowledge is EWC's. What phase 1 did to the empty network and its anchor is gone in phase 2."""
    method = quick_flashback("afec", training__epochs=3, flashback__epochs=2)
    host: Any = method.host
    trainer = Trainer(method, host.benchmark)
    trainer.run_task(host.benchmark.tasks[0])
    method.enter(host.benchmark.tasks[1])
    ahead, phase_1, phase_2 = method.stages()
    assert [stage.name for stage in (ahead, phase_1, phase_2)] == ["empty network", "phase 1", "phase 2"]
    trainer.run_stage(host.task, ahead)
    trainer.position = type(trainer.position)(1, 1)
    before = weights(host)
    trainer.run_stage(host.task, phase_1)
    primary = weights(host.net)
    assert host.anchored_epoch == 1
    assert not same(weights(host.empty), {n: before[f"empty.{n}"] for n in weights(host.empty)})
    trainer.allocate(phase_2)
    phase_2.begin()
    after = weights(host)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    plastic: Any = method.plastic
    assert isinstance(plastic, ImportantParameters)
    anchor = by_name(host, plastic.values, [name for name, _ in host.net.named_parameters()])
    assert all(torch.equal(anchor[name], primary[name]) for name in anchor)
    phase_2.before_epoch(0)
    assert host.anchored_epoch == 0


def test_bytes_count_the_empty_network() -> None:
    """EWC's anchors, two vectors for each earlier task, and the network that is carried beside them."""
    method = quick_flashback("afec")
    trainer = Trainer(method, method.host.benchmark)
    trainer.run()
    host: Any = method.host
    floats = sum(parameter.numel() for parameter in host.net.parameters())
    network = sum(tensor.numel() * tensor.element_size() for tensor in host.net.state_dict().values())
    assert trainer.history.bytes == {"stable": 2 * (2 * 4 * floats) + network, "plastic": 2 * 4 * floats}


@pytest.mark.parametrize("setting", ["strength", "empty_strength"])
def test_refuses_values_that_cannot_work(setting: str) -> None:
    with pytest.raises(FlashbackError, match=rf"host\.{setting} must not be negative"):
        quick_host("afec", **{f"host__{setting}": -1.0})


def test_steps_of_the_first_task_run_one_network() -> None:
    host: Any = quick_host("afec")
    step = host.forward(batch_of(host))
    assert type(step) is Step
    assert list(host.losses(step)) == ["task"]
