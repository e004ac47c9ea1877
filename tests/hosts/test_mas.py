"""MAS: what is kept of the sensitivity, its penalty, and short runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from elastic_tasks import at_task, shuffle, sizes, slow_penalty, step_of
from torch import Tensor

from flashback import FlashbackError, Trainer
from flashback.hosts import Host
from flashback.knowledge import ImportantParameters, flat
from flashback.knowledge.importance import output_sensitivity
from helpers import quick_host, tiny_benchmark

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
    important = parts["head.weight"].view(host.benchmark.classes, -1).any(dim=1)
    assert important.tolist() == [column < host.task.old.stop for column in range(host.benchmark.classes)]


# ---------------------------------------------------------------- the penalty


def test_no_penalty_in_the_first_task_and_none_at_the_anchor() -> None:
    host = at_task(quick_host("mas"), 0)
    assert set(host.losses(step_of(host))) == {"task"}
    host = at_task(quick_host("mas"), 1)
    assert host.losses(step_of(host))["stability"].item() == 0.0


def test_plastic_knowledge_is_of_the_present_task_alone() -> None:
    host = at_task(quick_host("mas"), 2)
    shuffle(host, 9)
    plastic = host.blank_knowledge_for(host.plasticity_support())
    host.fill_for_support(plastic)
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
