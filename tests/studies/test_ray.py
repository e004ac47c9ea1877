"""Runs on a real Ray cluster without a shared folder: their results are those of this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import equal

from flashback.engines import folders
from flashback.engines.folders import Changes, write_run_files
from flashback.engines.following import STOPPED
from flashback.errors import FlashbackError
from flashback.studies import on_ray
from flashback.studies.executors import find_executor
from flashback.studies.on_ray import MARK, NAMESPACE, Ray, name_on_cluster
from flashback.studies.sweeps import Outcome, Sweep, parse_sweep, run_sweep
from flashback.training import Interrupted
from flashback.training.trainer import Event, Observer
from helpers import write_tiny
from rank_runs import free_port

SLOW_HOST = Path(__file__).with_name("slow_host.py")
MEGABYTES = 80 << 20  # of an object store


class TwoNodes:
    """A Ray cluster on this machine, whose head runs nothing but the driver's actor."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "object_store_memory": MEGABYTES, "include_dashboard": False},
        )
        self.nodes = [self.add_node() for _ in range(2)]

    def add_node(self) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SECONDS_PER_STEP", "0.1")  # of the runs on this node
            return self.cluster.add_node(num_cpus=2, object_store_memory=MEGABYTES)

    def replace_lost_node(self) -> None:
        self.nodes += [self.add_node() for _ in range(2 - len(self.nodes))]

    def lose_node(self) -> None:
        """A node other than the one that the driver is connected to."""
        import ray

        here = ray.get_runtime_context().get_node_id()
        other_node = next(node for node in self.nodes if node.node_id != here)
        self.nodes.remove(other_node)
        self.cluster.remove_node(other_node, allow_graceful=False)


@pytest.fixture(scope="module")
def cluster() -> Iterator[TwoNodes]:
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        try:
            two = TwoNodes()
        except Exception as problem:
            pytest.skip(f"Ray does not start here: {problem}")
        patch.setenv("RAY_ADDRESS", two.cluster.address)
        yield two
        ray.shutdown()
        two.cluster.shutdown()


def start_collector(node_id: str, out: Path) -> None:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from flashback.engines.ray_nodes import Collector

    ray = on_ray.connect(None)
    options = {"name": f"runs-{name_on_cluster(out / MARK)}", "namespace": NAMESPACE, "lifetime": "detached"}
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    actor = ray.remote(Collector).options(num_cpus=0, scheduling_strategy=there, **options).remote()
    assert ray.get(actor.has_bundle.remote("none")) is False


def made_sweep(folder: Path, seeds: int) -> Sweep:
    data = write_tiny(folder / "tiny.npz")
    settings = {
        "benchmark.sizes": [2, 5],
        "training.epochs": 3,
        "training.batch_size": 8,
        "checkpoint.epochs": 1,
    }
    text = f"{{hosts: [slow], benchmarks: ['{data}'], arms: [host], seeds: {list(range(seeds))}, settings: {settings}}}"
    return parse_sweep(text, "made")


def check_equal(one: Path, other: Path, count: int) -> None:
    """The same results and weights, bit for bit."""
    results = sorted(path.relative_to(one) for path in one.rglob("results.json"))
    assert len(results) == count
    for path in results:
        assert (one / path).read_bytes() == (other / path).read_bytes()
        weights = [load_file(*(folder / path.parent / "checkpoint").glob("*.safetensors")) for folder in (one, other)]
        assert weights[0].keys() == weights[1].keys()
        assert all(equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


@pytest.mark.slow
@pytest.mark.parametrize("with_collector", [False, True])
def test_a_lost_node_changes_no_result(with_collector: bool, cluster: TwoNodes, tmp_path: Path) -> None:
    """Also if the actor that collects runs was on that node, where a driver on it had started it."""
    from flashback.hosts.external import find_hosts

    find_hosts(SLOW_HOST)
    cluster.replace_lost_node()
    if with_collector:
        start_collector(cluster.nodes[0].node_id, tmp_path / "ray")
    sweep = made_sweep(tmp_path, 12)
    placed, resumed, running = Counter[str](), list[str](), set[str]()  # those that began after others had ended

    def has_checkpoint(name: str) -> bool:
        return any((tmp_path / "ray" / name / "checkpoint").glob("*.json"))

    def watch(outcome: Outcome, name: str) -> Observer:
        def observe(event: Event) -> None:
            if event["event"] == "placed":
                placed[name] += 1
                resumed.extend([name] if placed[name] > 1 and has_checkpoint(name) else [])
                running.update([name] if outcome.finished else [])
            elif event["event"] == "end":
                running.discard(name)
            on_both_nodes = sum(map(has_checkpoint, running)) > 2  # each node has two runs at a time
            if on_both_nodes and len(cluster.nodes) == 2:
                cluster.lose_node()

        return observe

    outcome = run_sweep(sweep, tmp_path / "ray", on="ray", device="cpu", host_file=SLOW_HOST, watch=watch)
    assert (outcome.finished, outcome.failures) == (12, {})
    assert len(cluster.nodes) == 1
    assert resumed
    run_sweep(sweep, tmp_path / "local", device="cpu", host_file=SLOW_HOST)
    check_equal(tmp_path / "local", tmp_path / "ray", 12)
    assert not (tmp_path / "ray" / MARK).exists()


@pytest.mark.slow
def test_a_driver_that_is_started_again_finds_its_runs(cluster: TwoNodes, tmp_path: Path) -> None:
    """The runs went on meanwhile; none is started twice, and none is lost."""
    sweep = made_sweep(tmp_path, 3)
    file = tmp_path / "sweep.yaml"
    file.write_text(json.dumps({**asdict(sweep.parts[0]), "title": "made"}))
    command = [sys.executable, "-m", "flashback", "sweep", str(file), "--on", "ray", "--device", "cpu"]
    options = ["--out", str(tmp_path / "ray"), "--host-file", str(SLOW_HOST)]
    driver = subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "ray").rglob("log.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.1)
    driver.kill()
    driver.wait()
    assert not list((tmp_path / "ray").rglob("results.json"))
    attempts = list[int]()

    def watch(outcome: Outcome, name: str) -> Observer:
        return lambda event: attempts.append(event["attempt"]) if event["event"] == "placed" else None

    outcome = run_sweep(sweep, tmp_path / "ray", on="ray", device="cpu", host_file=SLOW_HOST, watch=watch)
    assert (outcome.finished, outcome.failures, attempts) == (3, {}, [1, 1, 1])
    run_sweep(sweep, tmp_path / "local", device="cpu", host_file=SLOW_HOST)
    check_equal(tmp_path / "local", tmp_path / "ray", 3)


@pytest.mark.slow
def test_an_interrupted_driver_saves_its_runs(cluster: TwoNodes, tmp_path: Path) -> None:
    sweep, stopped = made_sweep(tmp_path, 1), list[bool]()

    def watch(outcome: Outcome, name: str) -> Observer:
        def observe(event: Event) -> None:
            if event["event"] == "epoch" and not stopped:
                stopped.append(True)
                signal.raise_signal(signal.SIGTERM)

        return observe

    with pytest.raises(Interrupted):
        run_sweep(sweep, tmp_path / "ray", on=Ray(), device="cpu", host_file=SLOW_HOST, watch=watch)
    assert list((tmp_path / "ray").rglob("checkpoint/*.json"))
    assert not list((tmp_path / "ray").rglob("results.json"))
    run_sweep(sweep, tmp_path / "ray", device="cpu", host_file=SLOW_HOST)  # goes on here
    run_sweep(sweep, tmp_path / "local", device="cpu", host_file=SLOW_HOST)
    check_equal(tmp_path / "local", tmp_path / "ray", 1)


def test_a_folder_is_brought_so_that_it_can_be_resumed(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "checkpoint").mkdir(parents=True)
    for name in ("log.jsonl", "checkpoint/000001.json", "checkpoint/000001.safetensors", ".lock", ".a.run.json.part"):
        (here / name).write_text(name)
    (here / "link").symlink_to(here / "log.jsonl")
    changes = Changes(here)
    files, names = changes.take()
    write_run_files(there, files, names)
    assert sorted(names) == ["checkpoint/000001.json", "checkpoint/000001.safetensors", "log.jsonl"]
    assert {name: (there / name).read_text() for name in names} == {name: name for name in names}
    assert changes.take()[0] == {}
    (here / "checkpoint" / "000001.json").rename(here / "checkpoint" / "000002.json")
    with (here / "log.jsonl").open("a") as log:
        log.write("more")
    files, names = changes.take()
    assert set(files) == {"checkpoint/000002.json", "log.jsonl"}
    written = list[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders, "write_atomically", lambda path, content: written.append(path.name))
        write_run_files(
            there, {**files, "results.json": b"", "checkpoint/000002.safetensors": b""}, names, lasting=True
        )
    assert written == ["log.jsonl", "000002.safetensors", "000002.json", "results.json"]
    assert not (there / "checkpoint" / "000001.json").exists()
    with pytest.raises(FlashbackError, match="not a path inside"):
        write_run_files(there, {"../outside": b""})


def test_folders_of_the_same_path_have_different_names_on_a_cluster(tmp_path: Path) -> None:
    """As on two machines; a driver that is started again finds the name of its folder."""
    mark, copied = tmp_path / "one" / MARK, tmp_path / "two" / MARK
    first = name_on_cluster(mark)
    assert name_on_cluster(mark) == first
    shutil.copytree(mark.parent, copied.parent)
    assert name_on_cluster(copied) != first
    mark.unlink()
    assert name_on_cluster(mark) != first


def test_a_run_that_is_lost_again_and_again_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself would try one that lacks memory for ever."""
    pytest.importorskip("ray")
    from flashback.engines.ray_nodes import LOST, RETRIES, Collector, Entry

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    collector = Collector()
    collector.entries["run"] = Entry({}, Changes(tmp_path / "run"))
    starts = [collector.start("run", "node") for _ in range(RETRIES + 2)]
    assert [start[0] for start in starts[:-1]] == [1, 2, 3, 4]
    assert starts[-1] == LOST
    assert collector.start("another", "node") == STOPPED


class LostError(Exception):
    pass


class UnavailableError(LostError):
    pass


@pytest.mark.parametrize(("error", "restarts"), [(UnavailableError, 0), (LostError, 1)])
@pytest.mark.filterwarnings("ignore:the node that collects the runs was lost")
def test_runs_are_submitted_again_when_the_collector_does_not_answer(
    error: type[Exception], restarts: int, tmp_path: Path
) -> None:
    """Only a collector that is lost counts as a restart, not one that is out of reach for a moment."""
    calls: list[str] = []

    def answer(call: str) -> dict[str, Any]:
        calls.append(call)
        if len(calls) == 1:
            raise error
        return {}

    class Collector:
        poll = SimpleNamespace(remote=lambda names: lambda: answer("poll"))
        submit = SimpleNamespace(remote=lambda name, *given: lambda: answer(f"submit {name}"))

    ray = SimpleNamespace(
        get=lambda asked: [one() for one in asked] if isinstance(asked, list) else asked(),
        exceptions=SimpleNamespace(RayActorError=LostError, ActorUnavailableError=UnavailableError),
        cloudpickle=SimpleNamespace(dumps=lambda given: b""),
    )
    driver = on_ray.Driver(ray, tmp_path, None, {}, lambda name: lambda event: None)
    driver.bundle, driver.collector = ("digest", {}), Collector
    driver.find_collector = lambda: Collector  # type: ignore[method-assign]
    job = SimpleNamespace(name="run", config={}, folder=tmp_path / "run", packed=lambda: None)
    driver.placed["run"] = SimpleNamespace(job=job, attempt=2)  # type: ignore[assignment]
    driver.collect()
    driver.collect()
    assert calls == ["poll", "submit run", "poll"]
    assert driver.restarts == restarts


def test_a_node_asks_again_while_the_collector_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    exceptions = pytest.importorskip("ray").exceptions
    from flashback.engines import ray_nodes

    answers = [exceptions.ActorUnavailableError("out of reach", None), exceptions.ActorUnavailableError("", None), True]

    def get(call: tuple[str, int]) -> Any:
        assert call == ("run", 1)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(ray_nodes, "PERIOD", 0.0)
    monkeypatch.setattr(ray_nodes.ray, "get", get)
    assert ray_nodes.ask(SimpleNamespace(remote=lambda *given: given), "run", 1) is True
    assert answers == []


def test_a_node_removes_what_nobody_has_used_for_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    from flashback.engines.ray_nodes import FIRST_TASKS, UNUSED, in_use, node_folder

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    here = node_folder()
    (here / FIRST_TASKS / "task").mkdir()
    for name in ("run-of-a-killed-process", "data", "data-in-use", "new"):
        (here / name).mkdir()
    with in_use(here / "data-in-use"):
        for old in (here / "run-of-a-killed-process", here / "data", here / "data-in-use", here / FIRST_TASKS / "task"):
            os.utime(old, (0, time.time() - UNUSED - 1))
        node_folder()
    assert sorted(path.name for path in here.rglob("*")) == ["data-in-use", FIRST_TASKS, "new"]


def test_without_ray_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        FlashbackError, match=r"need the package ray; install it with pip install 'flashback-cl\[ray\]'"
    ):
        find_executor("ray", None)


@pytest.mark.parametrize("address", ["ray://127.0.0.1", "ray://127.0.0.1:{port}", "127.0.0.1:{port}", "[::1]:99999"])
def test_an_address_without_ray_is_refused_at_once(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself would try for minutes."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    monkeypatch.setattr(on_ray, "PORT", free := free_port())
    address = address.format(port=free)
    with pytest.raises(FlashbackError, match=f"there is no Ray to run on at {re.escape(address)}"):
        on_ray.connect(address)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        ("ray client connection timeout", "ray client connection timeout; if the cluster asks for a token, set RAY_"),
        ("Failed: Traceback (most recent call last):\n  File 1\nRuntimeError: no more\n", "RuntimeError: no more"),
    ],
)
def test_why_ray_does_not_connect_is_one_sentence(problem: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError(problem)

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=refuse))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(FlashbackError, match=re.escape(f"at this machine ({reason}")):
        on_ray.connect(None)


@pytest.mark.parametrize("per_run", [{"gpu": 1}, {"gpus": "all"}, {"cpus": -1}, {"memory": True}])
def test_resources_that_make_no_sense_are_refused(per_run: dict[str, Any]) -> None:
    with pytest.raises(FlashbackError, match="--per-run"):
        find_executor("ray", None, per_run)
