"""Hosts that grow with the classes: what they know stays, and nothing depends on the classes still to come."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flashback.hosts import HOSTS, Host
from flashback.training import Trainer
from helpers import quick_host, small_settings, tiny_benchmark

GROWING = [name for name in HOSTS if not quick_host(name, **small_settings(name)).trains_future_classes()]
FAST = ("lwf", "icarl", "lucir", "bic", "podnet", "wa")


def trained_rows(host: Host) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in host.state_dict().items()}


def first_part(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return tensor[tuple(slice(length) for length in like.shape)]


def host_of(name: str, sizes: tuple[int, ...]) -> Host:
    return quick_host(name, tiny_benchmark(sizes, per_class=6, test_per_class=3), **small_settings(name))


@pytest.mark.parametrize("name", list(HOSTS))
def test_a_host_has_columns_for_the_first_task_or_for_all(name: str) -> None:
    host = host_of(name, (2, 3, 2))
    assert host.columns == (7 if host.trains_future_classes() else 2)
    columns = []
    for task in host.benchmark.tasks:
        host.enter(task)
        columns.append(host.columns)
    assert columns == ([7, 7, 7] if host.trains_future_classes() else [2, 5, 7])


@pytest.mark.parametrize("name", list(HOSTS))
def test_entering_a_task_leaves_everything_known_as_it_was(name: str) -> None:
    host = host_of(name, (2, 3))
    before = trained_rows(host)
    host.enter(host.benchmark.tasks[1])
    after = host.state_dict()
    for key, tensor in before.items():
        assert torch.equal(first_part(after[key], tensor), tensor), key


@pytest.mark.parametrize("name", GROWING)
def test_new_rows_do_not_depend_on_how_many_classes_there_will_be(name: str) -> None:
    few, many = host_of(name, (2, 3)), host_of(name, (2, 3, 4, 4))
    for host in (few, many):
        for task in host.benchmark.tasks[:2]:
            host.enter(task)
    states = few.state_dict(), many.state_dict()
    assert states[0].keys() == states[1].keys()
    for key, tensor in states[0].items():
        assert torch.equal(tensor, states[1][key]), key


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in GROWING])
def test_a_trained_task_does_not_depend_on_tasks_to_come(name: str) -> None:
    states = []
    tasks = tiny_benchmark((2, 3, 4), per_class=6, test_per_class=3).tasks
    whole = tiny_benchmark((2, 3, 4), per_class=6, test_per_class=3)
    for benchmark in (whole, replace(whole, tasks=tasks[:2])):
        trainer = Trainer(quick_host(name, benchmark, **small_settings(name)), benchmark)
        for task in tasks[:2]:
            trainer.run_task(task)
        states.append(trained_rows(trainer.host))
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(tensor, states[1][key]) for key, tensor in states[0].items())


def test_another_seed_gives_other_rows() -> None:
    rows = []
    for seed in (1, 1, 2):
        host = quick_host("lwf", seed=seed)
        for task in host.benchmark.tasks[:2]:
            host.enter(task)
        rows.append(host.net.head.weight[2:].clone())
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])
