"""Two ranks on one GPU compute what one does.

NCCL refuses two ranks on one GPU. They talk through gloo here, which cannot be captured, so the steps are eager.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from rank_runs import EXPERIMENTS, FAMILIES, together

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
RUNS = [f"{name} on a GPU" for name in FAMILIES]


@cache
def all_runs() -> dict[str, dict[str, Any]]:
    return together(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_two_ranks_on_a_gpu_compute_what_one_does(name: str) -> None:
    one, two = EXPERIMENTS[name](), all_runs()[name]
    assert one.keys() == two.keys()
    for key, value in one.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(two[key], value, rtol=1e-3, atol=1e-4, msg=key)
    assert one["results"] == two["results"]
