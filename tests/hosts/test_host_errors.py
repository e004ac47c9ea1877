"""The slips of a first host of one's own are told in one sentence, as early as they can be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from flashback import Flashback, FlashbackError, train
from flashback.hosts import HOSTS, Host
from flashback.memory import Memory
from helpers import quick_host


def host_with(losses: Any) -> Host:
    members = {} if losses is None else {"losses": losses}
    HOSTS.register("mine")(type("Mine", (Host,), members))
    return quick_host("mine")


def per_image(self: Host, step: Any) -> Any:
    return F.cross_entropy(step.output.logits, step.batch.y, reduction="none")


@pytest.mark.parametrize(
    ("losses", "sentence"),
    [
        (None, "mine does not define losses"),
        (
            lambda self, step: step.output.logits.sum(),
            "losses of mine must be named terms, such as",
        ),
        (lambda self, step: {}, "losses of mine must be named terms, such as {'task': loss}, not dict"),
        (
            lambda self, step: {"task": per_image(self, step)},
            r"term 'task' of mine must be a scalar tensor, not .*\(8,\)",
        ),
        (lambda self, step: {"task": 0.5}, "term 'task' of mine must be a scalar tensor, not float"),
        (lambda self, step: {"task": step.output.logits.sum().detach()}, "no loss term of mine depends on trained"),
    ],
)
def test_losses(losses: Any, sentence: str) -> None:
    with pytest.raises(FlashbackError, match=sentence):
        train(host_with(losses))


def test_flashback_wants_a_distance_before_anything_is_trained() -> None:
    host = host_with(lambda self, step: {"task": torch.zeros((), requires_grad=True)})
    with pytest.raises(
        FlashbackError, match=r"mine does not define distance\(step, knowledge, support\); add this method"
    ):
        Flashback(host)


def test_a_memory_is_no_distance() -> None:
    host = host_with(lambda self, step: {"task": torch.zeros((), requires_grad=True)})
    host.memory = Memory(4, host.benchmark.image_shape)
    with pytest.raises(
        FlashbackError, match=r"mine does not define distance\(step, knowledge, support\); add this method"
    ):
        train(Flashback(host))
