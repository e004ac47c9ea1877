"""What a sweep finds out before it trains anything: which data are missing, and which arms cannot be."""

from __future__ import annotations

from pathlib import Path

import pooch
import pytest
import yaml

from flashback.errors import FlashbackError
from flashback.studies import jobs as running
from flashback.studies import sweeps
from flashback.studies.jobs import RunContext, group_failures
from flashback.studies.sweeps import left_out, parse_sweep, plan, run_sweep

HERE = RunContext(None, "cpu", None)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that are started; none is carried out."""
    started: list[str] = []
    monkeypatch.setattr(running, "attempt", lambda job, observer: started.append(job.name))
    return started


def test_missing_data_are_asked_for_once_and_nothing_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[str]
) -> None:
    requests: list[str] = []

    def refuse(url: str, *_: object, **__: object) -> str:
        requests.append(Path(url).name)
        raise OSError("no network")

    monkeypatch.setattr(pooch, "retrieve", refuse)
    sweep = parse_sweep("{hosts: [icarl], benchmarks: [split-fashion-mini, split-cifar10], seeds: [0, 1]}", "made")
    with pytest.raises(FlashbackError, match=r"the data of cifar10 are missing.*OSError"):
        run_sweep(sweep, tmp_path / "out", data=tmp_path, device="cpu")
    assert requests == ["cifar-10-binary.tar.gz"]
    assert trained == []


def test_other_files_among_the_sweeps_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / ".DS_Store").write_bytes(b"\xff\x00")
    (tmp_path / "sweeps" / "mine.yaml").write_text("hosts: [icarl]")
    monkeypatch.setattr(sweeps.resources, "files", lambda package: tmp_path)
    assert sweeps.shipped_sweeps() == {"mine": "hosts: [icarl]"}


def test_benchmarks_of_one_dataset_fetch_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[str]
) -> None:
    requests: list[str] = []

    def fetch(url: str, known_hash: str, fname: str, path: Path, **_: object) -> str:
        requests.append(Path(url).name)
        (path / fname).touch()
        return str(path / fname)

    monkeypatch.setattr(pooch, "retrieve", fetch)
    run_sweep("plugins", tmp_path / "out", data=tmp_path, device="cpu")
    assert requests == ["cifar-100-binary.tar.gz"]
    assert len(trained) == 66


def test_an_own_file_that_is_not_there_is_refused_before_training(tmp_path: Path, trained: list[str]) -> None:
    text = f"{{hosts: [icarl], benchmarks: [split-fashion-mini, {tmp_path}/none.npz], arms: [host]}}"
    with pytest.raises(FlashbackError, match=r"there is no file .*none\.npz"):
        run_sweep(parse_sweep(text, "made"), tmp_path / "out", device="cpu")
    assert trained == []


def test_records_that_are_done_need_no_data(tmp_path: Path, trained: list[str]) -> None:
    sweep = parse_sweep("{hosts: [icarl], benchmarks: [split-cifar10], arms: [host]}", "made")
    (job,) = plan(sweep, tmp_path, HERE)
    job.folder.mkdir(parents=True)
    (job.folder / "config.yaml").write_text(yaml.safe_dump(job.config))
    for name in ("run.json", "results.json"):
        (job.folder / name).write_text("{}")
    assert run_sweep(sweep, tmp_path, data=tmp_path, device="cpu").finished == 1
    assert trained == []


def test_hosts_without_knowledge_have_no_arm_with_flashback(tmp_path: Path) -> None:
    sweep = parse_sweep("{hosts: [icarl, finetune, joint]}", "made")
    arms = [(job.config["host"]["name"], job.arm) for job in plan(sweep, tmp_path, HERE)]
    assert arms == [("icarl", "host"), ("icarl", "flashback"), ("finetune", "host"), ("joint", "host")]
    assert left_out(sweep) == ["finetune", "joint"]
    assert left_out(parse_sweep("{hosts: [icarl, finetune], arms: [host]}", "made")) == []


def test_a_sweep_with_no_run_left_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FlashbackError, match="plans no run"):
        plan(parse_sweep("{hosts: [finetune], arms: [flashback]}", "made"), tmp_path, HERE)


def test_equal_failures_are_one() -> None:
    failures = {
        "a": "no data",
        "b": "broken (see a/failure.txt)",
        "c": "no data",
        "d": "broken (see d/failure.txt)",
        "e": "no data",
        "f": "another",
    }
    assert group_failures(failures) == {
        "a and 2 more": "no data",
        "b and 1 more": "broken (see a/failure.txt)",
        "f": "another",
    }


def test_a_host_that_lacks_a_setting_is_named(tmp_path: Path) -> None:
    text = "{hosts: [icarl, finetune], settings: {host.memory_size: 100}}"
    with pytest.raises(FlashbackError, match=r"^finetune: unknown key 'host.memory_size'"):
        plan(parse_sweep(text, "made"), tmp_path, HERE)


def test_parts_give_hosts_settings_of_their_own(tmp_path: Path) -> None:
    text = "{arms: [host], parts: [{hosts: [finetune]}, {hosts: [icarl], grid: {host.memory_size: [100, 200]}}]}"
    assert len(plan(parse_sweep(text, "made"), tmp_path, HERE)) == 3
