"""Several ranks compute what one device computes, to rounding."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import Any

import pytest
import torch

from rank_runs import EXPERIMENTS, Run, as_rank, free_port, together

UNITS = ("parts_of_a_batch", "gradient_of_images", "dropout", "fewer_images_than_ranks", "fisher")
FAST_RUNS = ("icarl, with flashback", "agem, alone")
REFUSED = ("state_of_one_rank", "random_layer")
RUNS = tuple(name for name, run in EXPERIMENTS.items() if isinstance(run, Run) and run.device == "cpu")


@cache
def few() -> dict[str, dict[str, Any]]:
    return together([*UNITS, *FAST_RUNS, *REFUSED])


@cache
def many() -> dict[str, dict[str, Any]]:
    """One start of a second rank for all hosts."""
    return together(RUNS)


def assert_alike(name: str, divided: dict[str, dict[str, Any]]) -> None:
    one, several = EXPERIMENTS[name](), divided[name]
    assert one.keys() == several.keys()
    for key, value in one.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(
                several[key], value, rtol=1e-4, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}"
            )
        else:
            assert several[key] == value


@pytest.mark.parametrize("name", [*UNITS, *FAST_RUNS])
def test_two_ranks_compute_what_one_does(name: str) -> None:
    assert_alike(name, few())


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_every_run_on_two_ranks_is_that_of_one(name: str) -> None:
    """Losses, weights, memory, knowledge and accuracies after two tasks."""
    assert_alike(name, many())


def test_a_state_that_depends_on_the_rank_is_refused() -> None:
    assert "the ranks of this run came to different values of net.head.weight" in few()["state_of_one_rank"]["message"]


def test_a_net_that_draws_for_itself_is_refused() -> None:
    assert "draws random numbers by rand_like" in few()["random_layer"]["message"]


GROUP_THAT_ENDS = """
import sys, weakref
import torch.distributed
from flashback import ranks
with ranks.process_group("gloo"):
    import torch.distributed.nn  # as torch.compile and functorch do
    group = weakref.ref(torch.distributed.group.WORLD)
sys.exit(group() is not None)
"""


def test_the_group_ends_with_the_run() -> None:
    """Its threads must not end with the interpreter: one that takes its lock then aborts the process."""
    with as_rank(0, 1, MASTER_PORT=free_port()):
        subprocess.run([sys.executable, "-c", GROUP_THAT_ENDS], check=True, timeout=120)
