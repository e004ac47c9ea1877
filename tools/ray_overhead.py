"""Measure what Ray and the driver add to a run: place and collect many runs that take no time, on a simulated cluster.

python tools/ray_overhead.py NODES RUNS
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

MEGABYTES = 80 << 20  # of the object store of a node


@dataclass(frozen=True)
class TrivialJob:
    name: str
    folder: Path
    config: dict[str, Any] = field(default_factory=dict)

    def packed(self) -> TrivialJob:
        return self

    def at(self, folder: Path, *_: Any) -> TrivialJob:
        return replace(self, folder=folder)


def work(job: TrivialJob, observer: Any) -> None:
    job.folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.yaml", "run.json", "results.json"):
        (job.folder / name).write_text("{}\n")


def measure(nodes: int, runs: int, out: Path) -> None:
    import ray
    import ray_overhead  # as the nodes know this file
    from ray.cluster_utils import Cluster

    from flashback.studies.on_ray import NAMESPACE, Driver

    head = {"num_cpus": 0, "object_store_memory": MEGABYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(nodes):
        cluster.add_node(num_cpus=1, object_store_memory=MEGABYTES)
    ray.init(cluster.address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    jobs: Any = [ray_overhead.TrivialJob(f"run-{k}", out / f"run-{k}") for k in range(runs)]
    started = time.monotonic()
    driver = Driver(ray, out, ray_overhead.work, {"num_cpus": 1}, lambda name: lambda event: None)
    problems = driver.run(jobs, 200, ("empty", {}))
    seconds = time.monotonic() - started
    done = len(list(out.rglob("results.json")))
    print(f"{done} of {len(problems)} runs in {seconds:.1f} s: {1000 * seconds / runs:.0f} ms a run")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    with tempfile.TemporaryDirectory() as folder:
        measure(int(sys.argv[1]), int(sys.argv[2]), Path(folder))
