"""EWC and online EWC: anchors, penalties and their gradients by hand, and short runs with Flashback."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from elastic_tasks import at_task, gradient, shuffle, sizes, slow_penalty, step_of
from torch import Tensor

from flashback import FlashbackError, Trainer
from flashback.hosts import Host
from flashback.hosts.ewc import task_fisher
from flashback.knowledge import ImportantParameters, flat
from flashback.knowledge.importance import fisher_diagonal
from helpers import quick_flashback, quick_host, tiny_benchmark

NAMES = ["oewc", "ewc"]


def fisher_of(host: Host) -> Tensor:
    images = host.task.train
    return fisher_diagonal(host.net, images.x, images.y, host.views.plain, host.settings.fisher)


# ---------------------------------------------------------------- what is kept


@pytest.mark.parametrize("gamma", [1.0, 0.5, 0.0])
def test_online_importance_follows_its_recursion(gamma: float) -> None:
    host = quick_host("oewc", host__gamma=gamma)
    running = torch.zeros_like(host.stable.importance)
    for task in host.benchmark.tasks:
        host.enter(task)
        host.allocate()
        shuffle(host, task.index)
        running = gamma * running + fisher_of(host)
        host.end()
        torch.testing.assert_close(host.stable.importance, running)
        assert torch.equal(host.stable.values, flat(host.net.parameters()))
    assert (running > 0).any()


def test_ewc_keeps_one_anchor_for_each_task() -> None:
    host = quick_host("ewc")
    expected = []
    for task in host.benchmark.tasks:
        host.enter(task)
        host.allocate()
        assert len(host.stable.tasks) == task.index + 1
        assert not host.stable[-1].importance.any()
        one = sum(2 * p.numel() * p.element_size() for p in host.net.parameters())  # values and importance
        assert host.knowledge_bytes() == {"stable": task.index * one}  # a blank anchor is no knowledge
        shuffle(host, task.index)
        host.end()
        expected.append((flat(host.net.parameters()).detach().clone(), fisher_of(host)))
    for k, (values, importance) in enumerate(expected):
        assert torch.equal(host.stable[k].values, values)
        torch.testing.assert_close(host.stable[k].importance, importance)


@pytest.mark.parametrize("estimator", ["empirical", "mammoth", "exact"])
def test_importance_is_of_plain_views_with_untouched_statistics(estimator: str) -> None:
    host = at_task(quick_host("oewc", host__fisher=estimator, training__views=["crop", "flip"]), 1)
    host.train()
    before = {name: buffer.clone() for name, buffer in host.net.named_buffers()}
    first, second = task_fisher(host), task_fisher(host)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, fisher_of(host))
    assert all(torch.equal(buffer, before[name]) for name, buffer in host.net.named_buffers())
    assert host.net.training


def test_every_parameter_is_held() -> None:
    host = at_task(quick_host("oewc"), 1)
    parts = dict(zip(dict(host.net.named_parameters()), torch.split(host.stable.importance, sizes(host)), strict=True))
    assert all(part.any() for part in parts.values())
    # The whole classifier, the rows of classes that are still to come among them.
    assert parts["head.weight"].view(host.benchmark.classes, -1).any(dim=1).all()


# ---------------------------------------------------------------- the penalty


def test_ewc_penalty_sums_over_earlier_tasks() -> None:
    host = at_task(quick_host("ewc", host__strength=3.0), 2)
    shuffle(host, 9)
    stability = host.losses(step_of(host))["stability"]
    terms = [slow_penalty(host, host.stable[k]) for k in range(2)]
    assert min(terms) > 0
    assert stability.item() == pytest.approx(1.5 * sum(terms), rel=1e-4)
    expected = sum(
        3.0 * anchor.importance * (flat(host.net.parameters()).detach() - anchor.values)
        for anchor in (host.stable[0], host.stable[1])
    )
    torch.testing.assert_close(gradient(host, stability), expected)


@pytest.mark.parametrize("name", NAMES)
def test_no_penalty_in_the_first_task_and_none_at_the_anchor(name: str) -> None:
    host = at_task(quick_host(name), 0)
    assert set(host.losses(step_of(host))) == {"task"}
    host = at_task(quick_host(name), 1)
    assert host.losses(step_of(host))["stability"].item() == 0.0


@pytest.mark.parametrize(("name", "half"), [("oewc", 1.0), ("ewc", 0.5)])
def test_plastic_knowledge_is_of_the_present_task_alone(name: str, half: float) -> None:
    host = at_task(quick_host(name), 2)
    shuffle(host, 9)
    plastic = host.blank_knowledge_for(host.plasticity_support())
    host.fill_for_support(plastic)
    assert isinstance(plastic, ImportantParameters)
    torch.testing.assert_close(plastic.importance, fisher_of(host))
    assert torch.equal(plastic.values, flat(host.net.parameters()))
    shuffle(host, 10)
    loss = host.weighted_distance(step_of(host), plastic, host.plasticity_support())
    assert loss.item() == pytest.approx(half * slow_penalty(host, plastic), rel=1e-4)
    offset = flat(host.net.parameters()).detach() - plastic.values
    pull = gradient(host, loss)
    torch.testing.assert_close(pull, 2 * half * plastic.importance * offset)
    assert pull.any()


def test_two_anchors_pull_to_their_weighted_mean() -> None:
    """Without a task loss, descent ends at (S theta_s + P theta_p) / (S + P) in every parameter (Eq. 17 and 22)."""
    host = at_task(quick_host("oewc", host__strength=0.7), 1)
    shuffle(host, 5)
    plastic = host.blank_knowledge()
    generator = torch.Generator().manual_seed(0)
    for knowledge in (host.stable, plastic):  # importances that descent can follow in a few steps
        knowledge.importance.copy_(0.5 + torch.rand(knowledge.importance.shape, generator=generator))
    step = step_of(host)
    optimiser = torch.optim.SGD(host.net.parameters(), lr=0.2)
    for _ in range(60):
        optimiser.zero_grad()
        stability = host.weighted_distance(step, host.stable, host.stability_support())
        (stability + 0.4 * host.weighted_distance(step, plastic, host.plasticity_support())).backward()
        optimiser.step()
    stiff_s, stiff_p = 0.7 * host.stable.importance, 0.4 * plastic.importance
    expected = (stiff_s * host.stable.values + stiff_p * plastic.values) / (stiff_s + stiff_p)
    torch.testing.assert_close(flat(host.net.parameters()).detach(), expected, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- the task loss


def test_cross_entropy_reaches_all_columns() -> None:
    host = at_task(quick_host("oewc"), 1)
    step = step_of(host)
    loss = host.losses(step)["task"]
    slow = [-row.log_softmax(0)[y].item() for row, y in zip(step.output.logits, step.batch.y.tolist(), strict=True)]
    assert loss.item() == pytest.approx(sum(slow) / len(slow), rel=1e-5)
    (at_logits,) = torch.autograd.grad(loss, step.output.logits)
    assert at_logits.any(dim=0).all()


@pytest.mark.parametrize("name", ["ewc", "oewc", "mas", "si", "afec", "caf"])
def test_cross_entropy_of_the_task_is_that_of_a_head_of_its_own(name: str) -> None:
    host = at_task(quick_host(name, host__loss="ce_current"), 1)
    new, step = host.task.new, step_of(host)
    loss = host.losses(step)["task"]
    new_logits = step.output.logits[:, new].double()
    slow = [-row.log_softmax(0)[y - new.start].item() for row, y in zip(new_logits, step.batch.y.tolist(), strict=True)]
    assert loss.item() == pytest.approx(sum(slow) / len(slow), rel=1e-5)
    (at_logits,) = torch.autograd.grad(loss, step.output.logits)
    assert at_logits[:, new].all()
    assert not at_logits[:, : new.start].any()
    assert not at_logits[:, new.stop :].any()


@pytest.mark.parametrize("estimator", ["empirical", "mammoth", "exact"])
def test_the_fisher_information_of_a_head_for_each_task(estimator: str) -> None:
    """Rows of other heads matter nothing to a task, whose softmax they have no part in."""
    host = at_task(quick_host("ewc", host__loss="ce_current", host__fisher=estimator), 2)
    for task in host.benchmark.tasks[:2]:
        rows = torch.split(host.stable[task.index].importance, sizes(host))[-2].view(host.benchmark.classes, -1)
        assert [bool(row.any()) for row in rows] == [column in task.classes for column in range(len(rows))]
    shuffle(host, 9)
    images, new = host.task.train, host.task.new
    whole = fisher_diagonal(host.net, images.x, images.y, host.views.plain, estimator, new)
    torch.testing.assert_close(task_fisher(host), whole)


@pytest.mark.parametrize("name", NAMES)
def test_binary_loss_leaves_other_columns_alone(name: str) -> None:
    host = at_task(quick_host(name, host__loss="bce_current"), 1)
    new, step = host.task.new, step_of(host)
    loss = host.losses(step)["task"]
    p = step.output.logits.sigmoid()[:, new]
    slow = [
        -(p[i, k] if new.start + k == y else 1 - p[i, k]).log().item()
        for i, y in enumerate(step.batch.y.tolist())
        for k in range(p.shape[1])
    ]
    assert loss.item() == pytest.approx(sum(slow) / len(slow), rel=1e-5)
    (at_logits,) = torch.autograd.grad(loss, step.output.logits)
    assert at_logits[:, new].all()
    assert not at_logits[:, : new.start].any()
    assert not at_logits[:, new.stop :].any()


# ---------------------------------------------------------------- settings and runs


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [("oewc", "strength", -1.0), ("ewc", "strength", -1.0), ("oewc", "gamma", 1.5), ("oewc", "gamma", -0.1)],
)
def test_refuses_values_that_cannot_work(name: str, setting: str, value: float) -> None:
    with pytest.raises(FlashbackError, match=f"host.{setting}"):
        quick_host(name, **{f"host__{setting}": value})


def trained(method: Any) -> Host:
    Trainer(method, method.host.benchmark).run()
    return method.host


@pytest.mark.parametrize("name", NAMES)
def test_a_strong_penalty_holds_the_parameters(name: str) -> None:
    """The same run moves less, measured by importance, the stronger the hold."""

    def moved(strength: float) -> float:
        host = quick_host(name, tiny_benchmark((2, 2)), host__strength=strength)
        trainer = Trainer(host, host.benchmark)
        trainer.run_task(host.benchmark.tasks[0])
        anchor = host.blank_knowledge()
        anchor.load_state_dict((host.stable if name == "oewc" else host.stable[0]).state_dict())
        trainer.run_task(host.benchmark.tasks[1])
        return slow_penalty(host, anchor)

    assert moved(100.0) < 0.5 * moved(0.0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("loss", ["ce_all", "ce_current", "bce_current"])
def test_runs_with_flashback(name: str, loss: str) -> None:
    settings = {"host__loss": loss, "host__strength": 1.0, "training__views": []}
    without, full = (quick_flashback(name, **settings, flashback__alpha=alpha) for alpha in (0.0, 1.0))
    terms: dict[str, list[float]] = {}

    def record(event: Any) -> None:
        if event["event"] == "epoch" and event["task"] > 0:
            for term, value in event["losses"].items():
                terms.setdefault(f"{event['stage']} {term}", []).append(value)

    result = Trainer(full, full.host.benchmark, [record]).run()
    assert len(result["class_incremental"]["matrix"]) == 3
    assert min(terms["phase 2 plasticity"]) > 0
    assert max(terms["phase 1 stability"]) > 0
    assert "phase 1 plasticity" not in terms
    assert full.plastic is None
    state = full.host.state_dict()
    assert any(not torch.equal(tensor, state[key]) for key, tensor in trained(without).state_dict().items())


@pytest.mark.parametrize("name", NAMES)
def test_plastic_knowledge_is_no_larger_than_stable(name: str) -> None:
    method = quick_flashback(name)
    trainer = Trainer(method, method.host.benchmark)
    trainer.run()
    assert 0 < trainer.history.bytes["plastic"] <= trainer.history.bytes["stable"]
