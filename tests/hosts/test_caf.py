"""CAF: learners side by side, active forgetting and co-learning by hand, and what is left of it with one learner."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from elastic_tasks import at_task, slow_penalty, step_of
from torch import Tensor

from flashback import FlashbackError, Trainer
from flashback.hosts import Host
from flashback.hosts.caf import divergences
from flashback.knowledge import ImportantParameters, flat
from flashback.nets import NETS
from flashback.nets.small import SmallCNN
from helpers import forgetting, quick_flashback, quick_host, tiny_benchmark

WEIGHTS = {"host__strength": 3.0, "host__forgetting": 0.25, "host__co_learning": 0.5}


def weights(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@torch.no_grad()
def move(host: Host, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in host.parameters():
        parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))


def begun(task: int, **settings: Any) -> Any:
    """A host that has begun a task, with all of its parameters somewhere else."""
    host = at_task(quick_host("caf", **WEIGHTS, **settings), task)
    move(host, seed=20 + task)
    return host


def softmax(numbers: list[float]) -> list[float]:
    powers = [torch.tensor(number, dtype=torch.float64).exp().item() for number in numbers]
    return [power / sum(powers) for power in powers]


# ---------------------------------------------------------------- losses


@pytest.mark.parametrize("learners", [1, 3])
def test_active_forgetting_against_a_slow_sum(learners: int) -> None:
    """lambda / 2 * (sum_l sum_j a_jl ||W_jl||^2 + ||head||^2), a_jl = learners * softmax over l of the numbers of j."""
    host = begun(1, host__learners=learners)
    numbers, total = host.forget_logits.tolist(), 0.0
    for index, learner in enumerate(host.net.backbone.learners):
        tensors = list(learner.parameters())
        assert len(tensors) == len(numbers) == 12  # four convolutions, four norms with weight and bias
        for row, tensor in zip(numbers, tensors, strict=True):
            total += learners * softmax(row)[index] * (tensor.double() ** 2).sum().item()
    total += sum((tensor.double() ** 2).sum().item() for tensor in host.net.head.parameters())
    assert host.losses(step_of(host))["forgetting"].item() == pytest.approx(0.25 / 2 * total, rel=1e-5)


@pytest.mark.parametrize(("task", "loss"), [(0, "ce_all"), (1, "ce_all"), (1, "ce_current"), (2, "ce_current")])
def test_co_learning_against_a_loop_over_pairs(task: int, loss: str) -> None:
    """lambda * sum_(k != l) g_kl KL(p_l || p_k), g_kl = learners * softmax over l of 100 v_kl, and 1 in the first."""
    host = begun(task, host__loss=loss)
    with torch.no_grad():
        host.follow_logits.mul_(0.02 if task else 0.0)  # keeps the sharp softmax from being one-hot
    step = step_of(host)
    new = host.task.new
    columns = range(host.benchmark.classes) if loss == "ce_all" else range(new.start, new.stop)
    answers = [learner(step.batch.x) for learner in host.net.backbone.learners]
    p = [host.net.head(features)[:, list(columns)].double().softmax(1).tolist() for features in answers]
    total = 0.0
    for k in range(5):
        g = [5 * share for share in softmax([100 * number for number in host.follow_logits[k].tolist()])]
        assert task or g == pytest.approx([1.0] * 5)
        for other in set(range(5)) - {k}:
            for image in range(6):
                for second, first in zip(p[other][image], p[k][image], strict=True):
                    total += g[other] * second * float(torch.tensor(second / first).log()) / 6
    assert total > 0
    assert host.losses(step)["co-learning"].item() == pytest.approx(0.5 * total, rel=1e-3)


def test_a_learner_moves_towards_others_that_stand_still() -> None:
    """The gradient at the logits of k is p_k - p_l for each l; that of KL(p_k || p_l) has no part in it."""
    torch.manual_seed(0)
    logits = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
    shares = torch.rand(3, 3, dtype=torch.float64)
    (slope,) = torch.autograd.grad((shares * divergences(logits)).sum(), logits)
    p = logits.detach().softmax(2)
    for k in range(3):
        expected = sum(shares[k, other] * (p[:, k] - p[:, other]) for other in range(3)) / 4
        torch.testing.assert_close(slope[:, k], expected)
    assert torch.equal(divergences(logits).diagonal(), torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize("loss", ["ce_all", "ce_current", "bce_current"])
def test_stability_is_that_of_ewc_over_all_learners_and_the_head(loss: str) -> None:
    host = begun(2, host__loss=loss)
    terms = host.losses(step_of(host))
    assert list(terms) == ["task", "stability", "forgetting", "co-learning"]
    expected = sum(slow_penalty(host, host.stable[task]) for task in range(2))
    assert expected > 0
    assert terms["stability"].item() == pytest.approx(1.5 * expected, rel=1e-4)
    assert len(host.stable[0].values) == sum(p.numel() for p in host.net.parameters())


def test_the_first_task_is_learned_without_forgetting() -> None:
    host = begun(0)
    assert list(host.losses(step_of(host))) == ["task", "co-learning"]


def test_which_parameters_each_term_reaches() -> None:
    host = begun(1)
    with torch.no_grad():
        host.follow_logits.mul_(0.01)  # a choice that is not made up yet: one that is has no slope
    terms = host.losses(step_of(host))

    def reached(term: str) -> set[str]:
        named = dict(host.named_parameters())
        slopes = torch.autograd.grad(terms[term], list(named.values()), retain_graph=True, allow_unused=True)
        return {name for name, slope in zip(named, slopes, strict=True) if slope is not None and slope.any()}

    network = {f"net.{name}" for name, _ in host.net.named_parameters()}
    assert reached("task") == reached("stability") == network
    assert reached("forgetting") == network | {"forget_logits"}
    assert reached("co-learning") == network | {"follow_logits"}


# ---------------------------------------------------------------- the numbers under the softmaxes


def test_they_are_drawn_for_each_task_from_the_generator_of_the_host() -> None:
    host: Any = quick_host("caf")
    assert host.forget_logits.shape == (12, 5)
    assert host.follow_logits.shape == (5, 5)
    draws = []
    for task in host.benchmark.tasks:
        host.enter(task)
        host.allocate()
        host.generator.manual_seed(task.index)
        torch.manual_seed(len(draws))
        host.begin()
        draws.append(weights(host)["forget_logits"])
    assert not draws[0].any()
    assert not torch.equal(draws[1], draws[2])
    expected = torch.randn(12, 5, generator=torch.Generator().manual_seed(2))
    assert torch.equal(draws[2], expected)


@pytest.mark.parametrize(("forgetting", "moves"), [(0.01, True), (0.0, False)])
def test_they_learn_from_the_second_task_on(forgetting: float, moves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn when the task begins, and moved by the loss that they are part of."""
    host: Any = quick_host("caf", tiny_benchmark((2, 2)), host__forgetting=forgetting)
    trainer = Trainer(host, host.benchmark)
    trainer.run_task(host.benchmark.tasks[0])
    assert not host.forget_logits.any()
    assert not host.follow_logits.any()
    host.enter(host.benchmark.tasks[1])
    parameters = host.stages()[0].parameters()
    assert {id(host.forget_logits), id(host.follow_logits)} <= set(map(id, parameters))
    draws, begin = [], host.begin

    def watched() -> None:
        begin()
        draws.append(host.forget_logits.detach().clone())

    monkeypatch.setattr(host, "begin", watched)
    trainer.run_task(host.benchmark.tasks[1])
    assert draws[0].any()
    assert torch.equal(host.forget_logits, draws[0]) != moves


def test_they_are_not_held_and_no_knowledge() -> None:
    method = quick_flashback("caf")
    trainer = Trainer(method, method.host.benchmark)
    trainer.run()
    floats = sum(parameter.numel() for parameter in method.host.net.parameters())
    assert trainer.history.bytes == {"stable": 2 * (2 * 4 * floats), "plastic": 2 * 4 * floats}


# ---------------------------------------------------------------- beside EWC, and with flashback


@pytest.mark.parametrize("flashback", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("loss", ["ce_all", pytest.param("ce_current", marks=pytest.mark.slow)])
def test_one_learner_of_full_width_alone_is_ewc_bit_for_bit(flashback: bool, loss: str) -> None:
    build: Any = quick_flashback if flashback else quick_host
    common = {"host__loss": loss, "host__strength": 3.0, "training__momentum": 0.9, "flashback__alpha": 1.0}

    def run(name: str, **settings: Any) -> tuple[list[list[float]], list[Tensor]]:
        method = build(name, **common, **settings)
        matrix = Trainer(method, method.host.benchmark).run()["task_incremental"]["matrix"]
        return matrix, [tensor.clone() for tensor in method.host.net.state_dict().values()]

    whole = {"host__learners": 1, "host__learner_width": 1.0}
    ewc, bare = run("ewc"), run("caf", host__forgetting=0.0, host__co_learning=0.0, **whole)
    shrunk = run("caf", host__forgetting=0.1, host__co_learning=0.0, **whole)
    assert bare[0] == ewc[0]
    assert all(map(torch.equal, bare[1], ewc[1]))
    assert not all(map(torch.equal, shrunk[1], ewc[1]))


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "larger"), [("forgetting", 1.0), ("co_learning", 5.0)])
def test_each_weight_does_in_real_runs_what_it_is_for(setting: str, larger: float) -> None:
    """Weights become smaller by one, learners more alike by the other."""

    def measured(strength: float) -> float:
        others = {"host__forgetting": 0.0, "host__co_learning": 0.0, "host__strength": 0.0}
        host: Any = quick_host("caf", tiny_benchmark((2, 2)), **{**others, f"host__{setting}": strength})
        Trainer(host, host.benchmark).run()
        if setting == "forgetting":
            return float(flat(host.net.parameters()).detach().norm())
        with torch.no_grad():
            return float(divergences(host.eval().net(step_of(host).batch.x).separate).sum())

    assert measured(larger) < 0.8 * measured(0.0)


def test_flashback_anchors_the_network_and_restores_the_drawn_numbers() -> None:
    method = quick_flashback("caf", training__epochs=3, flashback__epochs=2, host__forgetting=0.1)
    host: Any = method.host
    trainer = Trainer(method, host.benchmark)
    trainer.run_task(host.benchmark.tasks[0])
    method.enter(host.benchmark.tasks[1])
    phase_1, phase_2 = method.stages()
    trainer.position = type(trainer.position)(1, 0)
    trainer.run_stage(host.task, phase_1)
    draws, primary = method.snapshot["forget_logits"].clone(), flat(host.net.parameters()).detach().clone()
    assert draws.any()
    assert not torch.equal(host.forget_logits, draws)  # they have learned
    trainer.allocate(phase_2)
    phase_2.begin()
    assert torch.equal(host.forget_logits, draws)
    plastic: Any = method.plastic
    assert isinstance(plastic, ImportantParameters)
    assert torch.equal(plastic.values, primary)
    assert not torch.equal(flat(host.net.parameters()), primary)


# ---------------------------------------------------------------- the network and the settings


def test_learners_start_apart_and_are_narrow() -> None:
    host: Any = quick_host("caf", host__learner_width=0.25)
    learners = host.net.backbone.learners
    assert [learner.width for learner in learners] == [16] * 5
    assert host.net.head.in_features == 16
    assert not torch.equal(learners[0].layers[0].weight, learners[1].layers[0].weight)
    usual: Any = quick_host("caf")
    counts = [sum(p.numel() for p in net.parameters()) for net in (usual.net.backbone, quick_host("ewc").net.backbone)]
    assert counts[0] == pytest.approx(counts[1], rel=0.05)  # five have the parameters of one


@pytest.mark.parametrize("net", ["resnet32", "cnn6"])
def test_other_networks_can_be_learners(net: str) -> None:
    host: Any = quick_host("caf", host__net=net, host__learners=2, host__learner_width=0.28125)
    terms = host.losses(step_of(host))
    assert torch.isfinite(sum(terms.values()))
    if net == "cnn6":
        assert host.forget_logits.shape == (14, 2)  # as in the method's own experiments
        assert host.net.backbone.learners[0].blocks[0][0].out_channels == 9
        assert host.net.head.in_features == 256


def test_a_network_of_one_width_is_refused_unless_learners_have_it() -> None:
    with forgetting(NETS):
        NETS.register("fixed")(lambda shape: SmallCNN(shape[0]))
        with pytest.raises(FlashbackError, match=r"'fixed' has a fixed width; choose one of cnn6, .*res.*smallcnn"):
            quick_host("caf", host__net="fixed")
        host: Any = quick_host("caf", host__net="fixed", host__learner_width=1.0)
        assert host.net.backbone.width == 64


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("strength", -1.0, "must not be negative"),
        ("learners", 0, "must be at least 1"),
        ("learner_width", 0.0, "must be above 0"),
        ("forgetting", -1e-9, "must not be negative"),
        ("co_learning", -0.1, "must not be negative"),
    ],
)
def test_refuses_values_that_cannot_work(setting: str, value: float, message: str) -> None:
    with pytest.raises(FlashbackError, match=rf"host\.{setting} {message}"):
        quick_host("caf", **{f"host__{setting}": value})
