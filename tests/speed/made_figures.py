"""A bench of made figures, as a GPU could give them."""

from __future__ import annotations

from flashback.speed.figures import MODES, Bench, Packed, Run, Speed, TaskCost
from flashback.speed.setup import ON_GPU

RATES = {"eager": 2000.0, "captured": 12000.0, "fast": 15000.0}


def made_bench() -> Bench:
    bench = Bench("NVIDIA Abacus", "2026-01-02T03:04:05+00:00", "bf16", {"torch": "2.11.0"}, ON_GPU)
    for batch in (32, 128):
        for mode in MODES:
            knowledge = {"stable": 1000}
            bench.speeds.append(Speed("icarl", False, mode, batch, RATES[mode], 1.0, 512 * 2**20, knowledge))
            both = knowledge | {"plastic": 900}
            bench.speeds.append(Speed("icarl", True, mode, batch, RATES[mode] / 1.25, 1.0, 768 * 2**20, both))
    bench.speeds.append(Speed("finetune", False, "eager", 32, 3000.0, 0.1, 2**20, {"stable": 0}))
    bench.parts = {"fisher": 0.25, "trainer over a bare loop": 1.02}
    bench.runs = [made_run(False), made_run(True)]
    bench.packed = [
        Packed("icarl", False, "captured", 32, 2, 6, "own", 4, True, 240_000, 10.0, 24_000.0, 26_000.0, "50"),
        Packed("icarl", False, "captured", 32, 2, 60, "own", 4, False, 240_000, 20.0, 12_000.0, None),
    ]
    return bench


def made_run(flashback: bool) -> Run:
    tasks = [TaskCost(2.0, 1.5, 30_000, 2**29, 3), TaskCost(2.5, 2.25, 30_000, 2**29, 0)]
    knowledge = {"stable": 5000} | ({"plastic": 4000} if flashback else {})
    head = ("icarl", flashback, "captured", 32, 2, 6, "own")
    return Run(*head, 60_000, 5.0, 12_000.0, 3.75, 0.5, 0.25, 2**29, knowledge, tasks)
