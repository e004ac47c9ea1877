"""Every host: a step leaves tensors behind and nothing else, waits for nothing, and draws from its own generator."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest
import torch
from conformance_runs import ALL, KNOWING, TRAINED, Watcher, form_parameters, method_of, run
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from flashback import Host
from flashback.memory import Memory
from flashback.training.fast import EAGER_FIRST
from flashback.training.step import TrainingStep
from helpers import tiny_benchmark

# What a device must answer before Python can go on, what has another shape for other values, and constants that would
# have to be copied to the device.
WAITING = {
    "_local_scalar_dense",
    "_unique2",
    "equal",
    "is_nonzero",
    "lift_fresh",
    "lift_fresh_copy",
    "masked_select",
    "nonzero",
    "unique_dim",
}


class Waits(TorchDispatchMode):
    """Notes the operations that wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name in ("index", "index_put", "index_put_") and any(
            isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1] or ()
        )
        if name in WAITING or by_mask:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def python_state(host: Host) -> dict[str, Any]:
    """Everything that hangs on the host's modules beside registered tensors, plain values by value."""
    plain = (bool, int, float, str, tuple, list, dict, set, type(None))
    state: dict[str, Any] = {"task": host.task.index}
    for path, module in host.named_modules():
        for key, value in vars(module).items():
            if key in ("_parameters", "_buffers", "_modules") or (isinstance(module, Memory) and key == "_known"):
                continue  # the memory may remember how much of it is filled: it asks again when in doubt
            state[f"{path}.{key}"] = copy.copy(value) if isinstance(value, plain) else id(value)
            if isinstance(value, Tensor):
                state[f"{path}.{key} holds"] = value.tolist()
        state[f"{path} has"] = sorted(name for name, _ in module.named_children())
    state["trained"] = {name for name, weight in host.named_parameters() if weight.requires_grad}
    return state


class Inspector(Watcher):
    """Compares the host's Python state at the first step of a stage with that after each further one."""

    def __init__(self) -> None:
        self.first: dict[str, Any] = {}
        self.changed: set[str] = set()
        self.compared = 0

    def after_step(self, position: Any) -> None:
        now = python_state(self.trainer.host)
        if (position.epoch, position.step) == (0, 1):
            self.first = now
        else:
            self.changed |= {key for key in now.keys() | self.first.keys() if now.get(key) != self.first.get(key)}
            self.compared += 1


@cache
def inspected(name: str, **settings: Any) -> tuple[Inspector, list[str], bool]:
    method = method_of(name, tiny_benchmark((2, 3)), flashback=name in KNOWING, **settings)
    inspector, waits = Inspector(), Waits()
    descend: Callable[..., None] = TrainingStep.descend
    times: Counter[object] = Counter()

    def watched_descend(step: TrainingStep, *inputs: Any) -> None:
        shape = (id(step), len(inputs[0]), step.stage.variant())
        times[shape] += 1
        with waits if times[shape] > EAGER_FIRST else nullcontext():
            descend(step, *inputs)

    before = torch.get_rng_state()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingStep, "descend", watched_descend)
        run(method, inspector)
    return inspector, waits.found, torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    "waiting",
    [
        lambda x: float(x.sum()),
        lambda x: bool(x.any()),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.unique(),
        lambda x: x + torch.tensor([1.0]),
    ],
)
def test_what_waits_is_noticed(waiting: Callable[[Tensor], object]) -> None:
    with Waits() as waits:
        waiting(torch.arange(3.0))
    assert waits.found


@pytest.mark.parametrize("name", TRAINED)
def test_steps_leave_no_python_state(name: str) -> None:
    inspector, _, _ = inspected(name)
    assert inspector.compared > 10
    assert not inspector.changed


@pytest.mark.parametrize("name", ALL)
def test_steps_wait_for_nothing(name: str) -> None:
    """So that a step can be captured once as a graph and replayed."""
    _, result, _ = inspected(name)
    assert not set(result)


@pytest.mark.parametrize(("name", "settings"), form_parameters())
def test_steps_of_other_forms_do_neither(name: str, settings: dict[str, Any]) -> None:
    inspector, result, _ = inspected(name, **settings)
    assert inspector.compared > 10
    assert not inspector.changed
    assert not set(result)


@pytest.mark.parametrize("name", ALL)
def test_a_run_leaves_the_global_generator_alone(name: str) -> None:
    _, _, untouched = inspected(name)
    assert untouched
