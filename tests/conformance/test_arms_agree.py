"""Every host keeps its promises, learns tasks of any size, and stands again from its structure and its state."""

from __future__ import annotations

import pytest
import torch
from conformance_runs import ALL, KNOWING, REPRESENTATIVES, few_images, method_of, mostly_slow, outcome

from flashback import Flashback, FlashbackError, evaluate
from flashback.conformance import check_host
from flashback.training import Trainer


@pytest.mark.parametrize("name", mostly_slow(ALL, [*REPRESENTATIVES, "finetune"]))
def test_a_host_keeps_what_comparisons_rest_on(name: str) -> None:
    """What `flashback check` asks of a host; test_check_command.py shows that it would find out."""
    assert [check for check in check_host(name, benchmark=few_images()) if not check.kept] == []


@pytest.mark.parametrize("name", KNOWING)
def test_the_host_alone_has_no_plastic_knowledge(name: str) -> None:
    assert "plastic" not in outcome(name).bytes


@pytest.mark.parametrize("name", mostly_slow(ALL))
def test_another_seed_is_another_run(name: str) -> None:
    first, other = outcome(name), outcome(name, seed=1)
    assert any(not torch.equal(tensor, other.weights[key]) for key, tensor in first.weights.items())


@pytest.mark.parametrize("name", mostly_slow(ALL))
@pytest.mark.parametrize("sizes", [(1, 3), pytest.param((3, 1, 2), marks=pytest.mark.slow)])
def test_unequal_tasks(name: str, sizes: tuple[int, ...]) -> None:
    result = outcome(name, flashback=name in KNOWING, sizes=sizes).results
    for setting in ("class_incremental", "task_incremental"):
        assert [len(row) for row in result[setting]["matrix"]] == list(range(1, len(sizes) + 1))
        assert all(0 <= accuracy <= 100 for row in result[setting]["matrix"] for accuracy in row)


@pytest.mark.parametrize("name", ALL)
def test_structure_alone_fits_a_fresh_host(name: str) -> None:
    """Allocating every stage, without data or content, gives a host into which a trained state goes."""
    flashback = name in KNOWING
    trained, benchmark = outcome(name, flashback=flashback), few_images()
    fresh = method_of(name, benchmark, flashback)
    trainer = Trainer(fresh, benchmark)
    for task in benchmark.tasks:
        fresh.enter(task)
        for stage in fresh.stages():
            trainer.allocate(stage)
    fresh.host.load_state_dict(trained.weights, strict=True)
    for classifier, accuracy in evaluate(fresh.host, benchmark.tasks).items():
        for setting, row in accuracy.items():
            assert row == trained.results["classifiers"][classifier][setting]["matrix"][-1]


@pytest.mark.parametrize("name", sorted(set(ALL) - set(KNOWING)))
def test_a_host_without_knowledge_refuses_flashback(name: str) -> None:
    host = method_of(name, few_images()).host
    with pytest.raises(FlashbackError, match=rf"^{name} {host.refuses_flashback_because}, .* without flashback$"):
        Flashback(host)
