"""The same call, once more: a finished run is read back, whoever asks and however the path of its data is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flashback as fb
from flashback.config import RunConfig, to_dict
from flashback.records import is_finished
from flashback.training.running import finished_run
from helpers import quick_config, quick_host, tiny_benchmark, write_tiny


def short(benchmark: str | Path, host: str = "finetune", flashback: bool = False, **settings: Any) -> RunConfig:
    overrides = {"benchmark.sizes": [2, 3, 2], "training.epochs": 1, "flashback.second_epochs": 1, **settings}
    return fb.configure(host, benchmark, flashback=flashback, settings=overrides)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path / "data" / "tiny.npz")
    return tmp_path


# ---------------------------------------------------------------- finished runs


@pytest.mark.parametrize("host", ["icarl", "joint", "foster"])
def test_a_finished_run_is_read_back_and_not_trained(
    here: Path, monkeypatch: pytest.MonkeyPatch, host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"host.memory_size": 14} if host != "joint" else {}
    settings |= {"host.compression_epochs": 1} if host == "foster" else {}
    config = short("data/tiny.npz", host, flashback=host != "joint", **settings)
    first = fb.run(config, out="out", device="cpu")
    monkeypatch.setattr(fb.Trainer, "run", lambda trainer: pytest.fail("trained"))
    again = fb.run(config, out="out", device="cpu", observers=[pytest.fail], progress=True)
    assert again.as_dict() == first.as_dict()
    assert list(again.classifiers) == list(first.classifiers)
    assert (repr(again), again.steps) == (repr(first), first.steps)
    assert (again.history.budget, again.history.bytes) == (first.history.budget, first.history.bytes)
    assert again.history.seconds == pytest.approx(first.history.seconds, abs=1e-3)
    assert capsys.readouterr().out == ""


def test_a_script_that_loops_over_seeds_may_be_started_again(here: Path) -> None:
    def script(seeds: int) -> list[float]:
        results = [fb.run(short("data/tiny.npz", seed=seed), out=f"out/{seed}", device="cpu") for seed in range(seeds)]
        return [result["task_incremental"]["average_accuracy"] for result in results]

    first = script(2)
    assert script(3)[:2] == first


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training.lr": 0.5}, r"^out holds a finished run of another configuration \(differs in training\.lr\)"),
        ({"seed": 3}, r"\(differs in seed\); choose another folder"),
    ],
)
def test_a_finished_run_of_other_settings_is_refused(here: Path, change: dict[str, Any], message: str) -> None:
    fb.run(short("data/tiny.npz"), out="out", device="cpu")
    with pytest.raises(fb.FlashbackError, match=message):
        fb.run(short("data/tiny.npz", **change), out="out", device="cpu")
    fb.run(short("data/tiny.npz", **{"checkpoint.minutes": 9.0}), out="out", device="cpu")  # changes nothing of a run
    with pytest.raises(fb.FlashbackError, match=r"^the run in out is finished; there is nothing to resume$"):
        fb.resume("out", device="cpu")


def test_a_finished_run_on_other_data_is_refused(here: Path) -> None:
    config = short("data/tiny.npz")
    fb.run(config, out="out", device="cpu")
    write_tiny(here / "data" / "tiny.npz", shift=1)
    with pytest.raises(fb.FlashbackError, match=r"^out holds a run on other data; choose another folder"):
        fb.run(config, out="out", device="cpu")


def test_a_finished_run_of_other_code_is_refused(here: Path) -> None:
    config = short("data/tiny.npz")
    fb.run(config, out="out", device="cpu")
    record = here / "out" / "run.json"
    run = json.loads(record.read_text())
    record.write_text(json.dumps(run | {"must_match": run["must_match"] | {"code": "0123"}}))
    with pytest.raises(fb.FlashbackError, match=r"^out was made with other code of this host or net; choose"):
        fb.run(config, out="out", device="cpu")


@pytest.mark.parametrize("results", ["{}", '{"classifiers": []}', '{"classifiers": {"linear": {}}}', "[]", "{"])
def test_a_broken_record_is_one_sentence(here: Path, results: str) -> None:
    config = short("data/tiny.npz")
    fb.run(config, out="out", device="cpu")
    (here / "out" / "results.json").write_text(results)
    with pytest.raises(fb.FlashbackError, match=r"^(out is not a run record|the record in out is incomplete)"):
        fb.run(config, out="out", device="cpu")


def test_one_question_for_all_who_ask(here: Path) -> None:
    config = to_dict(short("data/tiny.npz"))
    assert finished_run(here / "out", config) is None
    with pytest.raises(KeyboardInterrupt):
        fb.run(short("data/tiny.npz"), out="out", device="cpu", observers=[interrupt])
    assert finished_run(here / "out", config) is None
    with pytest.raises(fb.FlashbackError, match="holds an unfinished run of another configuration"):
        finished_run(here / "out", {**config, "seed": 7})
    fb.run(short("data/tiny.npz"), out="out", device="cpu")
    record = finished_run(here / "out", config)
    assert record is not None
    assert finished_run(here / "out", config, record.run["data_checksum"]) == record


def test_without_a_checksum_the_data_are_looked_at_where_their_path_is_another(here: Path) -> None:
    write_tiny(here / "other" / "tiny.npz", shift=1)
    fb.run(short("data/tiny.npz"), out="out", device="cpu")
    for same in ("./data/tiny.npz", str(here / "data" / "tiny.npz")):
        assert finished_run(here / "out", to_dict(short(same))) is not None
    assert finished_run(here / "out", to_dict(short("gone/tiny.npz")), data=here / "data") is not None
    with pytest.raises(fb.FlashbackError, match="holds a run on other data"):
        finished_run(here / "out", to_dict(short("other/tiny.npz")))
    (here / "data" / "tiny.npz").unlink()
    assert finished_run(here / "out", to_dict(short("data/tiny.npz"))) is not None


def interrupt(event: Any) -> None:
    raise KeyboardInterrupt


# ---------------------------------------------------------------- data of one's own, by any path


def test_a_run_goes_on_and_is_found_by_another_spelling_of_its_data(here: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fb.run(short("data/tiny.npz"), out="out", device="cpu", observers=[interrupt])
    first = fb.run(short("./data/tiny.npz"), out="out", device="cpu")
    again = fb.run(short(here / "data" / "tiny.npz"), out="out", device="cpu", observers=[pytest.fail])
    assert again.as_dict() == first.as_dict()


def test_a_run_is_loaded_and_made_again_from_anywhere(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = fb.run(short("data/tiny.npz"), out="out", device="cpu")
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    for folder in (here, here / "data"):  # by the path of the record, or by the name of the file
        host = fb.load_trained("../out", data=folder, device="cpu")
        row = fb.evaluate(host, host.benchmark)["linear"]["class_incremental"]
        assert row == result["class_incremental"]["matrix"][-1]
    assert fb.run(short("data/tiny.npz"), data=here, device="cpu").as_dict() == result.as_dict()


def test_sizes_in_short_need_the_data_folder_too(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    settings = {"benchmark.sizes": 1}
    with pytest.raises(fb.FlashbackError, match=r"there is no file tiny\.npz"):
        fb.configure("finetune", "tiny.npz", settings=settings)
    config = fb.configure("finetune", "tiny.npz", settings=settings, data=here / "data")
    assert config.benchmark.sizes == (1,) * 7


# ---------------------------------------------------------------- what a run leaves of the process


def test_a_run_gives_the_threads_back(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before, within = torch.get_num_threads(), list[int]()

    def watch(event: Any) -> None:
        within.append(torch.get_num_threads())

    try:
        torch.set_num_threads(3)
        fb.train(quick_host("finetune"), observers=[watch])
        assert torch.get_num_threads() == 3
        fb.run(short("data/tiny.npz"), out="out", device="cpu", observers=[watch])
        assert torch.get_num_threads() == 3
        fb.load_trained("out", device="cpu")
        assert torch.get_num_threads() == 3
        with pytest.raises(KeyboardInterrupt):
            fb.run(short("data/tiny.npz"), out="other", device="cpu", observers=[interrupt])
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert set(within) == {1}
    assert json.loads((here / "out" / "run.json").read_text())["must_match"]["threads"] == 1


# ---------------------------------------------------------------- what is refused, in one short sentence


def test_a_configuration_cannot_hold_arrays(tmp_path: Path) -> None:
    arrays = {"x_train": np.zeros((6, 4, 4), np.uint8), "y_train": np.arange(6)}
    calls = (
        lambda: fb.configure("icarl", arrays),  # type: ignore[arg-type]
        lambda: fb.compare("icarl", arrays, out=tmp_path / "out"),  # type: ignore[arg-type]
        lambda: fb.tune("icarl", arrays, out=tmp_path / "out"),  # type: ignore[arg-type]
        lambda: fb.configure("icarl", tiny_benchmark()),  # type: ignore[arg-type]
    )
    for call in calls:
        with pytest.raises(fb.FlashbackError, match=r"cannot hold a (dict|Benchmark); save arrays with np\.savez") as e:
            call()
        assert len(str(e.value)) < 250
    assert not (tmp_path / "out").exists()


def test_images_of_another_shape_are_refused_by_name() -> None:
    host = quick_host("finetune")
    fb.train(host)
    for shape in ((3, 12, 12), (1, 16, 16)):
        with pytest.raises(fb.FlashbackError) as caught:
            fb.evaluate(host, tiny_benchmark(shape=shape))
        message = f"this host was built for images of shape [1, 12, 12], not {list(shape)}"
        assert str(caught.value).startswith(message)


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    config = quick_config(
        "icarl",
        training__epochs=np.int64(3),
        training__lr=np.float32(0.5),
        training__milestones=[np.float64(0.5)],
        host__memory_size=np.uint8(7),
        flashback__epochs=np.int32(1),
        benchmark__sizes=[np.int64(2), np.int64(5)],
        benchmark__order=np.int64(4),
    )
    assert config == quick_config(
        "icarl",
        training__epochs=3,
        training__lr=0.5,
        training__milestones=[0.5],
        host__memory_size=7,
        flashback__epochs=1,
        benchmark__sizes=[2, 5],
        benchmark__order=4,
    )
    assert {type(config.training.epochs), type(config.training.lr), type(config.training.milestones[0])} == {int, float}
    for value in (True, np.float64(1.0), np.bool_(True), "1"):
        with pytest.raises(fb.FlashbackError, match=r"training\.epochs must be a whole number, not "):
            quick_config("icarl", training__epochs=value)


@pytest.mark.slow
def test_seeds_may_be_numbers_of_numpy(tmp_path: Path) -> None:
    settings = {"benchmark.tasks": 2, "training.epochs": 1, "flashback.second_epochs": 1, "training.batch_size": 500}
    comparison = fb.compare("lwf-mc", seeds=np.arange(1, 2), out=tmp_path, settings=settings, device="cpu")  # type: ignore[arg-type]
    assert comparison.seeds == [1]
    assert is_finished(tmp_path / "flashback" / "seed-1")


def test_a_run_and_a_comparison_do_not_share_a_folder(here: Path) -> None:
    settings = {"benchmark.sizes": [2, 3, 2], "training.epochs": 2, "flashback.epochs": 1}
    fb.run(short("data/tiny.npz"), out="run", device="cpu")
    with pytest.raises(fb.FlashbackError, match=r"^run holds a run; choose another folder"):
        fb.compare("lwf-mc", "data/tiny.npz", seeds=[0], out="run", settings=settings, device="cpu")
    result = fb.compare("lwf-mc", "data/tiny.npz", seeds=[0], out="compared", settings=settings, device="cpu")
    with pytest.raises(fb.FlashbackError, match=r"^compared holds a comparison; choose another folder"):
        fb.run(short("data/tiny.npz"), out="compared", device="cpu")
    assert repr(result).startswith("lwf-mc on ")
    assert result.sentence in repr(result)
    row = result.row("task_incremental", "forgetting")
    assert row.right.mean - row.left.mean == pytest.approx(row.test.difference)
    assert (row.test.p, row.test.pairs) == (None, 1)
