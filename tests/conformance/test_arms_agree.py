"""Every host: what both arms share is bit-equal, what they spend is equal, and a seed decides a run."""

from __future__ import annotations

import pytest
import torch
from conformance_runs import ALL, KNOWING, assert_same_state, method_of, outcome

from flashback import Flashback, FlashbackError, evaluate
from flashback.training import Trainer
from helpers import tiny_benchmark


@pytest.mark.parametrize("name", KNOWING)
def test_flashback_of_nothing_is_the_host(name: str) -> None:
    with_flashback = outcome(name, flashback=True, flashback__epochs=0, flashback__alpha=0.0)
    host = outcome(name)
    assert with_flashback.results == host.results
    assert_same_state(with_flashback.state, host.state)


@pytest.mark.parametrize("name", KNOWING)
def test_phase_2_without_plasticity_is_the_host_with_fewer_epochs(name: str) -> None:
    restarted = outcome(
        name, flashback=True, flashback__alpha=0.0, flashback__epochs=1, training__epochs=3, training__schedule="cosine"
    )
    # The host with E epochs in the first task, where flashback does nothing, and E2 = E - E1 in all others.
    shorter = outcome(name, training__first_epochs=3, training__epochs=2, training__schedule="cosine")
    assert restarted.results == shorter.results
    assert_same_state(restarted.state, shorter.state)
    assert sum(entry["steps"] for entry in restarted.budget) > sum(entry["steps"] for entry in shorter.budget)


@pytest.mark.parametrize("name", KNOWING)
def test_plasticity_changes_the_outcome(name: str) -> None:
    """Without this the two tests above could pass because flashback never does anything."""
    host, with_flashback = outcome(name), outcome(name, flashback=True)
    assert any(not torch.equal(host.state[key], with_flashback.state[key]) for key in host.state)


@pytest.mark.parametrize("name", KNOWING)
def test_both_arms_spend_the_same(name: str) -> None:
    def spent(flashback: bool, what: str) -> list[int]:
        """Per task: the phases of one task together are its main stage."""
        budget = outcome(name, flashback=flashback).budget
        return [sum(entry[what] for entry in budget if entry["task"] == task) for task in range(3)]

    assert spent(True, "steps") == spent(False, "steps")
    assert spent(True, "images") == spent(False, "images")


@pytest.mark.parametrize("name", KNOWING)
def test_plastic_knowledge_is_no_larger_than_stable_knowledge(name: str) -> None:
    assert "plastic" not in outcome(name).bytes
    size = outcome(name, flashback=True).bytes
    assert 0 < size["plastic"] <= size["stable"]


@pytest.mark.parametrize("name", ALL)
def test_a_seed_decides_a_run(name: str) -> None:
    flashback = name in KNOWING
    first, other_seed = outcome(name, flashback=flashback), outcome(name, flashback=flashback, seed=1)
    again = outcome.__wrapped__(name, flashback=flashback)
    assert again.results == first.results
    assert_same_state(again.state, first.state)
    assert any(not torch.equal(tensor, other_seed.state[key]) for key, tensor in first.state.items())


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("sizes", [(3, 1, 2), (1, 4)])
def test_unequal_tasks(name: str, sizes: tuple[int, ...]) -> None:
    result = outcome(name, flashback=name in KNOWING, sizes=sizes).results
    for setting in ("class_incremental", "task_incremental"):
        assert [len(row) for row in result[setting]["matrix"]] == list(range(1, len(sizes) + 1))
        assert all(0 <= accuracy <= 100 for row in result[setting]["matrix"] for accuracy in row)


@pytest.mark.parametrize("name", ALL)
def test_structure_alone_fits_a_fresh_host(name: str) -> None:
    """Allocating every stage, without data or content, gives a host into which a trained state goes."""
    flashback = name in KNOWING
    trained, benchmark = outcome(name, flashback=flashback), tiny_benchmark()
    fresh = method_of(name, benchmark, flashback)
    trainer = Trainer(fresh, benchmark)
    for task in benchmark.tasks:
        fresh.enter(task)
        for stage in fresh.stages():
            trainer.allocate(stage)
    fresh.host.load_state_dict(trained.state, strict=True)
    for classifier, accuracy in evaluate(fresh.host, benchmark.tasks).items():
        for setting, row in accuracy.items():
            assert row == trained.results["classifiers"][classifier][setting]["matrix"][-1]


@pytest.mark.parametrize("name", sorted(set(ALL) - set(KNOWING)))
def test_a_host_without_knowledge_refuses_flashback(name: str) -> None:
    host = method_of(name, tiny_benchmark()).host
    with pytest.raises(FlashbackError, match=rf"^{name} keeps no knowledge .* without flashback$"):
        Flashback(host)
