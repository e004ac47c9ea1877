"""MAS: the sensitivity against a loop over images in float64, what is kept of it, its penalty, and short runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from elastic_tasks import at_task, shuffle, sizes, slow_penalty, step_of
from test_fisher import COLUMNS, DoubleNet, made_data, moved_statistics, unchanged
from torch import Tensor, nn

from flashback import FlashbackError, Trainer
from flashback.hosts import Host
from flashback.knowledge import ImportantParameters, flat, importance
from flashback.knowledge.importance import output_sensitivity
from helpers import quick_host, tiny_benchmark

# ---------------------------------------------------------------- the sensitivity


def slow_sensitivity(net: nn.Module, images: Tensor, columns: slice) -> Tensor:
    """One image and one backward pass at a time: the mean of |grad sum_k f_k(x)^2|."""
    parameters = [p for p in net.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=parameters[0].dtype)
    net.eval()
    for x in images:
        squared_norm = sum(answer**2 for answer in net(x[None]).logits[0][columns])
        total += flat(torch.autograd.grad(squared_norm, parameters)).abs()
    return total / len(images)


def double_net(x: Tensor) -> nn.Module:
    torch.manual_seed(0)
    return moved_statistics(DoubleNet(), x)


@pytest.mark.parametrize("columns", [slice(0, COLUMNS), slice(0, 2), slice(0, 1)])
def test_equals_a_loop_over_images(columns: slice) -> None:
    x, _ = made_data()
    net = double_net(x)
    fast = output_sensitivity(net, x, unchanged, columns)
    assert fast.min() >= 0
    torch.testing.assert_close(fast, slow_sensitivity(net, x, columns), rtol=1e-10, atol=1e-14)


def test_is_no_gradient_of_the_mean() -> None:
    """Of single images, before their signs can cancel each other."""
    x, _ = made_data()
    net = double_net(x).eval()
    mean = net(x).logits.square().sum(dim=1).mean()
    cancelled = flat(torch.autograd.grad(mean, list(net.parameters()))).abs()
    own = output_sensitivity(net, x, unchanged, slice(None))
    assert (own >= cancelled - 1e-12).all()
    assert own.sum() > 1.1 * cancelled.sum()


@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_chunks_change_nothing(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = made_data()
    net = double_net(x)
    whole = output_sensitivity(net, x, unchanged, slice(None))
    monkeypatch.setattr(importance, "LARGEST_CHUNK", chunk)
    torch.testing.assert_close(output_sensitivity(net, x, unchanged, slice(None)), whole, rtol=1e-12, atol=0)


def test_sees_the_view_and_trained_parameters_alone() -> None:
    x, _ = made_data()
    net = double_net(x)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    shifted = output_sensitivity(net, x, lambda raw: raw + 1, slice(None))
    assert torch.equal(shifted, output_sensitivity(net, x + 1, unchanged, slice(None)))
    net.conv.requires_grad_(False)
    frozen = sum(p.numel() for p in net.conv.parameters())
    assert torch.equal(output_sensitivity(net, x + 1, unchanged, slice(None)), shifted[frozen:])
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


# ---------------------------------------------------------------- what is kept


def sensitivity_of(host: Host) -> Tensor:
    return output_sensitivity(host.net, host.task.train.x, host.views.plain, slice(0, host.task.seen.stop))


def test_importance_is_summed_up_over_the_tasks() -> None:
    host: Any = quick_host("mas")
    total = torch.zeros_like(host.stable.importance)
    for task in host.benchmark.tasks:
        host.enter(task)
        host.allocate()
        shuffle(host, task.index)
        total += sensitivity_of(host)
        host.end()
        torch.testing.assert_close(host.stable.importance, total)
        assert torch.equal(host.stable.values, flat(host.net.parameters()))
    assert (total > 0).any()


def test_rows_of_classes_to_come_are_free() -> None:
    host: Any = at_task(quick_host("mas"), 2)
    parts = dict(zip(dict(host.net.named_parameters()), torch.split(host.stable.importance, sizes(host)), strict=True))
    assert all(part.any() for part in parts.values())
    held = parts["head.weight"].view(host.benchmark.classes, -1).any(dim=1)
    assert held.tolist() == [column < host.task.old.stop for column in range(host.benchmark.classes)]


# ---------------------------------------------------------------- the penalty


def test_no_penalty_in_the_first_task_and_none_at_the_anchor() -> None:
    host = at_task(quick_host("mas"), 0)
    assert set(host.losses(step_of(host))) == {"task"}
    host = at_task(quick_host("mas"), 1)
    assert host.losses(step_of(host))["stability"].item() == 0.0


def test_plastic_knowledge_is_of_the_present_task_alone() -> None:
    host = at_task(quick_host("mas"), 2)
    shuffle(host, 9)
    plastic = host.blank_for(host.plasticity_support())
    host.extract(plastic)
    assert isinstance(plastic, ImportantParameters)
    torch.testing.assert_close(plastic.importance, sensitivity_of(host))
    assert torch.equal(plastic.values, flat(host.net.parameters()))
    shuffle(host, 10)
    loss = host.weighted_distance(step_of(host), plastic, host.plasticity_support())
    assert loss.item() == pytest.approx(slow_penalty(host, plastic), rel=1e-4)


# ---------------------------------------------------------------- settings and runs


def test_refuses_values_that_cannot_work() -> None:
    with pytest.raises(FlashbackError, match=r"host\.strength must not be negative"):
        quick_host("mas", host__strength=-1.0)


def test_a_penalty_too_strong_for_the_rate_is_told() -> None:
    host = quick_host("mas", host__strength=1e6)
    with pytest.raises(FlashbackError, match=r"stability.*; lower training.lr or host.strength$"):
        Trainer(host, tiny_benchmark()).run()


def test_a_strong_penalty_holds_the_parameters() -> None:
    def moved(strength: float) -> float:
        host: Any = quick_host("mas", tiny_benchmark((2, 2)), host__strength=strength)
        trainer = Trainer(host, host.benchmark)
        trainer.run_task(host.benchmark.tasks[0])
        anchor = host.blank_knowledge()
        anchor.load_state_dict(host.stable.state_dict())
        trainer.run_task(host.benchmark.tasks[1])
        return slow_penalty(host, anchor)

    assert moved(100.0) < 0.5 * moved(0.0)
