"""What hosts of parameter regularisation with one anchor have in common: the penalty, and two vectors of knowledge."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from elastic_tasks import at_task, gradient, shuffle, sizes, slow_penalty, step_of

from flashback import Trainer
from flashback.knowledge import flat
from helpers import quick_flashback, quick_host

GENTLE: dict[str, dict[str, float]] = {  # strengths at which short runs do not diverge
    "oewc": {"host__strength": 1.0, "flashback__alpha": 1.0},
    "mas": {"host__strength": 0.1, "flashback__alpha": 0.1},
    "si": {"host__strength": 20.0, "host__xi": 0.01, "flashback__alpha": 1.0},
}


@pytest.mark.parametrize("strength", [0.0, 3.0])
@pytest.mark.parametrize("name", ["oewc", "mas"])  # an importance of SI needs a path, see its own tests
def test_penalty_and_its_gradient(name: str, strength: float) -> None:
    host: Any = at_task(quick_host(name, host__strength=strength), 2)
    shuffle(host, 9)
    stability = host.losses(step_of(host))["stability"]
    assert stability.item() == pytest.approx(strength * slow_penalty(host, host.stable), rel=1e-4)
    offset = flat(host.net.parameters()).detach() - host.stable.values
    torch.testing.assert_close(gradient(host, stability), 2 * strength * host.stable.importance * offset)
    assert slow_penalty(host, host.stable) > 0


@pytest.mark.parametrize("name", GENTLE)
def test_runs_with_flashback_and_keeps_two_vectors_of_each_knowledge(name: str) -> None:
    method = quick_flashback(name, **GENTLE[name])
    terms: dict[str, list[float]] = {}

    def record(event: Any) -> None:
        if event["event"] == "epoch" and event["task"] > 0:
            for term, value in event["losses"].items():
                terms.setdefault(f"{event['stage']} {term}", []).append(value)

    trainer = Trainer(method, method.host.benchmark, [record])
    trainer.run()
    assert min(terms["phase 2 plasticity"]) > 0
    assert max(terms["phase 1 stability"]) > 0
    assert "phase 1 plasticity" not in terms
    one = 2 * 4 * sum(sizes(method.host))  # the path of SI is gone when a task has ended
    assert trainer.history.bytes == {"stable": one, "plastic": one}
