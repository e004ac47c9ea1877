"""training.stability: a factor on the stability loss of every host, and on nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from flashback import FlashbackError, Trainer
from flashback.conformance import check_host
from flashback.hosts import Host
from helpers import quick_flashback, quick_host, small_settings, tiny_benchmark

# Hosts whose stability loss has a weight of its own, and its key.
WEIGHTED = {"oewc": "strength", "si": "strength", "lwf": "strength", "foster": "distillation"}


def weights_after(name: str, flashback: bool = False, **settings: Any) -> dict[str, Tensor]:
    benchmark = tiny_benchmark((2, 3), per_class=8)
    build = quick_flashback if flashback else quick_host
    method = build(name, benchmark, **{**small_settings(name), **settings})
    Trainer(method, benchmark).run()
    return {key: tensor for key, tensor in method.host.state_dict().items() if key.startswith("net.")}


def equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


@pytest.mark.parametrize("flashback", [False, True])
@pytest.mark.parametrize(
    "name", ["oewc", "lwf", *(pytest.param(name, marks=pytest.mark.slow) for name in ("si", "foster"))]
)
def test_it_acts_as_the_hosts_own_weight(name: str, flashback: bool) -> None:
    """A factor of two is exact in floating point, so the weights agree bit for bit; plasticity has no part in it."""
    key = f"host__{WEIGHTED[name]}"
    factor = weights_after(name, flashback, **{key: 0.5, "training__stability": 2.0})
    assert equal(factor, weights_after(name, flashback, **{key: 1.0}))
    assert not equal(factor, weights_after(name, flashback, **{key: 0.5}))


def losses_of_task_2(name: str, flashback: bool, **settings: Any) -> list[dict[str, float]]:
    benchmark, seen = tiny_benchmark((2, 3), per_class=8), []
    method = (quick_flashback if flashback else quick_host)(name, benchmark, **{**small_settings(name), **settings})
    trainer = Trainer(method, benchmark, observers=[lambda event: seen.append(dict(event))])
    trainer.run()
    return [event["losses"] for event in seen if event["event"] == "epoch" and event["task"] == 1]


@pytest.mark.parametrize("name", ["icarl", "lucir"])
def test_it_acts_in_both_phases_and_not_on_plasticity(name: str) -> None:
    """With a rate near zero nothing moves, so that losses differ by the factor alone."""
    still = {"training__lr": 1e-12, "training__batch_size": 100, "training__views": []}
    plain, double = (losses_of_task_2(name, True, training__stability=factor, **still) for factor in (1.0, 2.0))
    assert len(plain) >= 2
    for before, after in zip(plain, double, strict=True):
        for term, value in before.items():
            assert after[term] == pytest.approx((2 if term == "stability" else 1) * value, rel=1e-5, abs=1e-9), term


def test_at_one_the_stage_is_the_hosts_own() -> None:
    host: Host = quick_host("lwf-mc")
    host.enter(host.benchmark.tasks[1])
    assert host.main_stage().losses == host.losses


@pytest.mark.parametrize("name", ["der++", "lucir"])
def test_the_first_task_is_the_same_for_every_weight(name: str) -> None:
    """Replay hosts have the term in the first task already; its weight stays, so runs can share that task."""
    benchmark = tiny_benchmark((2,), per_class=8)
    states = []
    for factor in (1.0, 5.0):
        host = quick_host(name, benchmark, **{**small_settings(name), "training__stability": factor})
        Trainer(host, benchmark).run()
        states.append(dict(host.state_dict()))
    assert equal(*states)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["der++", "bic"])
def test_every_promise_is_kept(name: str) -> None:
    benchmark = tiny_benchmark(per_class=6, test_per_class=3)
    checks = check_host(name, settings={"training.stability": 3.0}, benchmark=benchmark)
    assert [check for check in checks if not check.kept] == []


@pytest.mark.parametrize("name", ["er", "agem", "beef", "finetune", "joint", "simplecil"])
def test_hosts_without_the_term_refuse_it(name: str) -> None:
    with pytest.raises(
        FlashbackError, match=f"training.stability scales the loss term 'stability', which {name} does not have"
    ):
        quick_host(name, **{**small_settings(name), "training__stability": 2.0})
