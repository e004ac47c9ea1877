"""Trackers get every loss term and every accuracy once, a resumed run goes on in the same run of each tracker."""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_trackers import Curves, FakeMlflow, FakeRun, FakeWandb

import flashback as fb
from flashback.errors import FlashbackError
from flashback.training import Checkpoints, Trainer, build_method
from flashback.training.first_task_cache import replay_log
from flashback.training.trackers import OPENERS, tracking
from helpers import quick_config, tiny_benchmark

SETTINGS = {"training.epochs": 3, "training.batch_size": 500, "benchmark.tasks": 2}


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)  # type: ignore[arg-type]
    return fake


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> FakeMlflow:
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)  # type: ignore[arg-type]
    return fake


def train_with(tracker: str, folder: Path) -> dict[str, Any]:
    config = quick_config("lwf-mc", flashback=True)
    benchmark = tiny_benchmark((2, 2))
    with tracking([tracker], config, folder) as observers:
        return Trainer(build_method(config, benchmark, "cpu"), benchmark, observers).run().as_dict()


def test_weights_and_biases_gets_losses_and_accuracies(tmp_path: Path, wandb: FakeWandb) -> None:
    result = train_with("wandb", tmp_path / "run")
    (run,), (arguments,) = wandb.runs.values(), wandb.asked
    assert run.finished == 1
    assert run.step_metrics == {"*": "steps"}
    assert arguments["config"]["flashback"]["enabled"] is True
    curves = run.curves()
    assert {"loss/task", "loss/stability", "loss/plasticity", "rate"} <= curves.keys()
    steps = [row["steps"] for row in run.rows.values()]
    assert steps == sorted(steps)
    assert steps[-1] == curves["rate"][-1][0]  # the last evaluation comes at the step of the last epoch
    assert curves["class_incremental/linear/average accuracy"][-1][1] == pytest.approx(
        result["class_incremental"]["average_accuracy"]
    )


def test_tensorboard_writes_events(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train_with("tensorboard", tmp_path)
    assert list((tmp_path / "tensorboard").glob("events*"))


def test_mlflow_gets_parameters_and_metrics(tmp_path: Path, mlflow: FakeMlflow) -> None:
    train_with("mlflow", tmp_path)
    names = [name for name, _ in mlflow.calls]
    assert names.count("end_run") == 1
    assert names[-2:] == ["end_run", "set_tracking_uri"]  # the next run of this process has a folder of its own
    calls = dict(reversed(mlflow.calls))
    assert str(tmp_path) in calls["set_tracking_uri"][0]
    assert mlflow.parameters["run0"]["host.name"] == "lwf-mc"
    assert mlflow.metrics["run0"]["rate"][0][0] > 0


def test_missing_and_unknown_trackers_get_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    for name, sentence in (("wandb", "needs the package wandb"), ("tensorbord", "did you mean 'tensorboard'")):
        with pytest.raises(FlashbackError, match=sentence):
            fb.run(fb.configure("finetune"), out=tmp_path / "run", device="cpu", track=[name])


def test_a_run_closes_its_trackers_however_it_ends(tmp_path: Path, wandb: FakeWandb) -> None:
    config = fb.configure("finetune", settings={"benchmark.tasks": 2, "training.epochs": 1})
    fb.run(config, out=tmp_path / "whole", device="cpu", track=["wandb"])
    assert (wandb.runs["run0"].finished, len(wandb.runs["run0"].rows)) == (1, 4)  # two epochs, two evaluations
    with pytest.raises(RuntimeError, match="an observer"):
        fb.run(config, out=tmp_path / "half", device="cpu", observers=[stumbling_at(0)], track=["wandb"])
    assert wandb.runs["run1"].finished == 1


def test_trackers_need_a_folder() -> None:
    with pytest.raises(FlashbackError, match=r"trackers write into the folder of a run; give one \(out=\)"):
        fb.run(fb.configure("finetune"), track=["tensorboard"])


# ---------------------------------------------------------------- trackers that fail


def failing_from(call: int, method: Any) -> Any:
    calls = iter(range(1, 10**6))

    def report(*arguments: Any, **named: Any) -> Any:
        if next(calls) >= call:
            raise ConnectionError("the server does not answer")
        return method(*arguments, **named)

    return report


def untracked(folder: Path) -> dict[str, Any]:
    config = fb.configure("lwf-mc", settings={**SETTINGS, "checkpoint.minutes": 1e6})
    return fb.run(config, out=folder, device="cpu").as_dict()


@pytest.mark.parametrize("call", [1, 5])
@pytest.mark.parametrize("tracker", ["tensorboard", "wandb", "mlflow"])
def test_a_tracker_that_fails_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, tracker: str, call: int
) -> None:
    """The run saves its state and goes on to the same result."""
    if tracker == "tensorboard":
        writer = pytest.importorskip("torch.utils.tensorboard").SummaryWriter
        monkeypatch.setattr(writer, "add_scalar", failing_from(call, writer.add_scalar))
    elif tracker == "wandb":
        request.getfixturevalue("wandb")
        monkeypatch.setattr(FakeRun, "log", failing_from(call, FakeRun.log))
    else:
        fake = request.getfixturevalue("mlflow")
        monkeypatch.setattr(fake, "log_metrics", failing_from(call, fake.log_metrics))
    saved: list[str] = []
    save = Checkpoints.save
    monkeypatch.setattr(Checkpoints, "save", lambda self, state: (saved.append(self.folder.name), save(self, state)))
    config = fb.configure("lwf-mc", settings={**SETTINGS, "checkpoint.minutes": 1e6})
    with pytest.warns(UserWarning, match=f"the tracker {tracker} failed") as caught:
        result = fb.run(config, out=tmp_path / "run", device="cpu", track=[tracker])
    sentence = f"the tracker {tracker} failed (ConnectionError: the server does not answer) and is switched off"
    assert [str(warning.message) for warning in caught] == [f"{sentence}; the run continues"]
    assert len(saved) == 2, "once when the tracker failed, and at the end"
    assert result.as_dict() == untracked(tmp_path / "other")


def test_a_tracker_that_cannot_be_closed_does_not_spoil_a_run(
    tmp_path: Path, wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeRun, "finish", failing_from(1, FakeRun.finish))
    config = fb.configure("lwf-mc", settings=SETTINGS)
    with pytest.warns(UserWarning, match="the tracker wandb failed"):
        assert fb.run(config, out=tmp_path, device="cpu", track=["wandb"]).as_dict() == untracked(tmp_path / "other")


@pytest.mark.filterwarnings("error")
def test_the_thread_of_a_tracker_fails_without_a_traceback(tmp_path: Path, wandb: FakeWandb) -> None:
    """The tracker itself raises at its next call, which is a warning of one sentence."""
    with tracking(["wandb"], quick_config("lwf-mc", flashback=True), tmp_path):
        thread = threading.Thread(target=failing_from(1, None))
        thread.start()
        thread.join()


def test_a_tracker_that_cannot_start_stops_the_run_at_once(
    tmp_path: Path, wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeWandb, "init", failing_from(1, FakeWandb.init))
    with pytest.raises(FlashbackError, match=r"the tracker wandb cannot start \(ConnectionError: the server does not"):
        fb.run(fb.configure("lwf-mc", settings=SETTINGS), out=tmp_path, device="cpu", track=["wandb"])


# ---------------------------------------------------------------- interrupted and resumed


def stumbling_at(number: int) -> Any:
    """An observer that ends a run at that event. The log has it already, trackers do not."""
    events = iter(range(number + 1))

    def observe(event: Any) -> None:
        if next(events) == number:
            raise RuntimeError("an observer")

    return observe


def tracked(tracker: str, folder: Path, checkpoint: int = 1, **options: Any) -> None:
    config = fb.configure("lwf-mc", settings={**SETTINGS, "checkpoint.epochs": checkpoint})
    fb.run(config, out=folder, device="cpu", track=[tracker], **options)


def shown_by_tensorboard(folder: Path) -> Curves:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(each.step, each.value) for each in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.fixture(params=["tensorboard", "wandb", pytest.param("mlflow", marks=pytest.mark.slow)])
def shown(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    """A tracker and what it shows of a folder: its newest run."""
    if request.param == "tensorboard":
        pytest.importorskip("tensorboard")
        yield "tensorboard", shown_by_tensorboard
        return
    fake = request.getfixturevalue(request.param)
    newest = {
        "wandb": lambda folder: [*fake.runs.values()][-1].curves(),
        "mlflow": lambda folder: dict([*fake.metrics.values()][-1]),
    }
    yield request.param, newest[request.param]


# Events: task, stage, three epochs, evaluation; again. With a checkpoint after every epoch the run goes on from the
# very event; with one after the third, between epoch and evaluation at the same step; with one after every second,
# epochs that a tracker has seen happen again.
@pytest.mark.parametrize(
    ("checkpoint", "stop"),
    [(2, 5), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 3), (2, 10), (3, 5), (3, 11)))],
)
def test_a_resumed_run_shows_what_an_undisturbed_one_does(
    tmp_path: Path, shown: tuple[str, Any], checkpoint: int, stop: int
) -> None:
    tracker, read = shown
    tracked(tracker, tmp_path / "whole")
    whole = read(tmp_path / "whole")
    assert (len(whole["rate"]), len(whole["class_incremental/linear/task 1"])) == (6, 2)
    with pytest.raises(RuntimeError, match="an observer"):
        tracked(tracker, tmp_path / "cut", checkpoint, observers=[stumbling_at(stop)])
    known = len(told_runs(tracker, tmp_path / "cut"))
    tracked(tracker, tmp_path / "cut", checkpoint=1)  # another setting of checkpoints may go on
    assert read(tmp_path / "cut") == whole
    assert len(told_runs(tracker, tmp_path / "cut")) == known


def told_runs(tracker: str, folder: Path) -> list[str]:
    """The runs of a tracker; a folder of TensorBoard is one."""
    server: Any = sys.modules.get(tracker)
    return [] if tracker == "tensorboard" else [*(server.runs if tracker == "wandb" else server.metrics)]


def test_a_run_that_begins_anew_is_a_new_one(tmp_path: Path, shown: tuple[str, Any]) -> None:
    tracker, read = shown
    tracked(tracker, tmp_path / "whole")
    whole = read(tmp_path / "whole")
    with pytest.raises(RuntimeError, match="an observer"):
        tracked(tracker, tmp_path / "cut", observers=[stumbling_at(9)])
    shutil.rmtree(tmp_path / "cut" / "checkpoint")
    tracked(tracker, tmp_path / "cut")
    assert read(tmp_path / "cut") == whole
    if tracker != "tensorboard":
        assert len(told_runs(tracker, tmp_path / "cut")) == 3


def test_event_files_of_one_second_are_read_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    monkeypatch.setattr(names, "_global_uid", names.AtomicCounter(9))  # "10" sorts before "9"
    time.sleep(1 - time.time() % 1)
    for value in (1.0, 2.0):
        tracker = OPENERS["tensorboard"](fb.configure("finetune"), tmp_path, None)
        tracker.report({"rate": value}, 1, time.time())
        tracker.close()
    assert shown_by_tensorboard(tmp_path) == {"rate": [(1, 2.0)]}


def test_a_tracker_that_comes_late_is_told_what_happened(tmp_path: Path, shown: tuple[str, Any]) -> None:
    tracker, read = shown
    tracked(tracker, tmp_path / "whole")
    whole = read(tmp_path / "whole")
    config = fb.configure("lwf-mc", settings={**SETTINGS, "checkpoint.epochs": 1})
    with pytest.raises(RuntimeError, match="an observer"):
        fb.run(config, out=tmp_path / "cut", device="cpu", observers=[stumbling_at(9)])
    with (tmp_path / "cut" / "log.jsonl").open("a") as log:
        log.write('{"torn')  # a line that a killed process was writing
    tracked(tracker, tmp_path / "cut")
    assert read(tmp_path / "cut") == whole


@pytest.mark.slow
def test_mlflow_begins_anew_where_the_server_does_not_know_the_run(tmp_path: Path, mlflow: FakeMlflow) -> None:
    with pytest.raises(RuntimeError, match="an observer"):
        tracked("mlflow", tmp_path, observers=[stumbling_at(9)])
    mlflow.metrics.clear()
    tracked("mlflow", tmp_path)
    assert {name: len(values) for name, values in mlflow.metrics["run0"].items()}["rate"] == 6


@pytest.mark.parametrize("content", ["", "[1]", '{"wandb": 7}', '{"wandb": "../up"}', '{"wandb": "' + "x" * 200 + '"}'])
def test_identities_that_make_no_sense_are_none(tmp_path: Path, wandb: FakeWandb, content: str) -> None:
    (tmp_path / "trackers.json").write_text(content)
    with tracking(["wandb"], quick_config("lwf-mc"), tmp_path, resumed=True):
        pass
    assert [arguments["id"] for arguments in wandb.asked] == [None]
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"wandb": "run0"}


def test_a_log_that_was_edited_is_no_traceback(tmp_path: Path, wandb: FakeWandb) -> None:
    with (
        pytest.warns(UserWarning, match="the tracker wandb failed"),
        tracking(["wandb"], quick_config("lwf-mc"), tmp_path) as reporters,
    ):
        replay_log(b'null\n[1]\n%b\n{"event": "epoch"}\n' % (b"[" * 10**5), reporters)


# ---------------------------------------------------------------- the packages themselves, where they are installed


def interrupted_and_resumed(tracker: str, folder: Path) -> None:
    with pytest.raises(RuntimeError, match="an observer"):
        tracked(tracker, folder, checkpoint=2, observers=[stumbling_at(11)])
    tracked(tracker, folder, checkpoint=1)


def test_weights_and_biases_itself_goes_on_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    interrupted_and_resumed("wandb", tmp_path)
    identity = json.loads((tmp_path / "trackers.json").read_text())["wandb"]
    assert {path.name.split("-")[-1] for path in (tmp_path / "wandb").glob("offline-run-*")} == {identity}


def test_mlflow_itself_goes_on_in_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    interrupted_and_resumed("mlflow", tmp_path)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("flashback").experiment_id])
    assert run.info.run_id == json.loads((tmp_path / "trackers.json").read_text())["mlflow"]
    assert (run.info.status, run.data.params["host.name"]) == ("FINISHED", "lwf-mc")
    curves = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    epochs = [event["steps"] for event in events if event["event"] == "epoch"]
    evaluations = [event["steps"] for event in events if event["event"] == "evaluation"]
    assert [each.step for each in curves["rate"]] == epochs
    assert [each.step for each in curves["class_incremental/linear/task 1"]] == evaluations
