"""LwF.MC: its loss against slow loops, its penalty, and the old model it learns from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from later_tasks import batch_of, check_binary_losses, in_later_task


def begun(task: int = 1, **settings: Any) -> Any:
    """LwF.MC at the beginning of a task."""
    return in_later_task("lwf-mc", task, small={"training__epochs": 1}, **settings).host


@pytest.mark.parametrize(("columns", "trained"), [("seen", 5), ("all", 7)])
def test_the_loss_of_a_later_task(columns: str, trained: int) -> None:
    check_binary_losses(begun(host__columns=columns), trained)


def test_the_loss_of_the_first_task() -> None:
    check_binary_losses(begun(task=0), 2)


@pytest.mark.parametrize("penalty", [0.0, 0.01])
def test_the_penalty(penalty: float) -> None:
    host = begun(host__penalty=penalty)
    terms = host.losses(host.forward(batch_of(host, host.stages()[0])))
    if not penalty:
        assert "penalty" not in terms
        return
    slow = sum(float(value) ** 2 for parameter in host.net.parameters() for value in parameter.detach().flatten())
    assert float(terms["penalty"].detach()) == pytest.approx(penalty * slow, rel=1e-4)


def test_the_stable_model_is_the_model_at_the_end_of_the_last_task() -> None:
    host = begun()
    batch = batch_of(host, host.stages()[0])
    with torch.no_grad():
        before = host.net.eval()(batch.x).logits
        host.train()
        host.net(batch.x)  # moves the statistics of batch norm, not those of the copy
    assert torch.equal(host.stable(batch.x).logits, before)
