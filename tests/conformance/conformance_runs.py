"""Short runs of every host, made once and shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from flashback.benchmarks import Benchmark
from flashback.conformance import Ending
from flashback.hosts import HOSTS, Host
from flashback.plugin import Flashback
from flashback.training import Trainer, build_method
from helpers import quick_config, small_settings, tiny_benchmark

ALL = list(HOSTS)
TRAINED = [name for name in HOSTS if HOSTS[name].family != "frozen"]  # the others take no steps
KNOWING = [name for name in HOSTS if HOSTS[name].has_knowledge]
REPRESENTATIVES = ("icarl", "der++", "ewc", "foster")  # one of each family
Method = Host | Flashback
# Forms of flashback, each with a host that can have it; the first ones are tested with every commit.
FORMS: list[tuple[str, dict[str, Any]]] = [
    ("icarl", {"flashback__images": "divided", "flashback__where": "better"}),
    ("lwf-mc", {"flashback__where": "correct", "flashback__merge": 0.4}),
    ("foster", {"flashback__images": "new"}),
    ("icarl", {"flashback__merge": 0.4}),
    ("oewc", {"flashback__distance": "features", "flashback__merge": 0.4}),
    ("icarl", {"flashback__distance": "features", "flashback__images": "new"}),
    ("lucir", {"flashback__distance": "features", "flashback__where": "better"}),
    ("der++", {"flashback__distance": "features"}),
    ("replay", {"flashback__distance": "features"}),
    ("mas", {"flashback__distance": "features", "flashback__teacher": "running"}),
    ("der++", {"flashback__where": "better"}),
    ("icarl", {"flashback__distance": "logits", "flashback__images": "divided"}),
    ("lucir", {"flashback__distance": "logits", "flashback__where": "better", "training__teacher_statistics": "batch"}),
    ("lwf-mc", {"flashback__teacher": "running", "training__teacher_statistics": "batch"}),
]
FAST_FORMS = FORMS[:2]


def method_of(
    name: str, benchmark: Benchmark, flashback: bool = False, plugin: type[Flashback] = Flashback, **settings: Any
) -> Method:
    config = quick_config(name, flashback=flashback, **{"training__momentum": 0.9, **small_settings(name), **settings})
    method = build_method(config, benchmark, "cpu")
    return plugin(method.host) if flashback else method


def run(method: Method, checkpointer: Any = None) -> Ending:
    trainer = Trainer(method, method.host.benchmark, checkpointer=checkpointer)
    if checkpointer is not None:
        checkpointer.trainer = trainer
    return Ending.of(trainer)


def mostly_slow(names: Sequence[str], fast: Sequence[str] = REPRESENTATIVES) -> list[Any]:
    """Parameters for a test that every commit runs for some hosts, and `make test-all` for all of them."""
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in names]


def few_images(sizes: Sequence[int] = (2, 3, 2)) -> Benchmark:
    return tiny_benchmark(sizes, per_class=6, test_per_class=3)


@cache
def outcome(name: str, flashback: bool = False, sizes: Sequence[int] = (2, 3, 2), **settings: Any) -> Ending:
    """The end of a run that nobody watches."""
    return run(method_of(name, few_images(sizes), flashback, **settings))


def assert_same_state(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    differing = [name for name, tensor in one.items() if not torch.equal(tensor, other[name])]
    assert not differing


def form_parameters() -> list[Any]:
    """Every form; those outside `FAST_FORMS` are slow."""
    marks = {True: (), False: (pytest.mark.slow,)}
    return [
        pytest.param(*form, marks=marks[form in FAST_FORMS], id=f"{form[0]}-{'-'.join(map(str, form[1].values()))}")
        for form in FORMS
    ]


class Watcher:
    """A checkpointer that never saves, but is asked after every step."""

    trainer: Trainer

    def due(self, position: Any) -> bool:
        if position.step > 0:
            self.after_step(position)
        return False

    def save(self, state: Any) -> None:
        """Nothing: the trainer saves once at the end of every run."""

    def after_step(self, position: Any) -> None:
        raise NotImplementedError
