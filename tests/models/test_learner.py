"""A model in a folder that goes on learning: updates, judging, going back, and what a kill leaves behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flashback as fb
from flashback.benchmarks import Benchmark, Task
from flashback.benchmarks.load import measure_channels
from flashback.conformance import short_settings
from flashback.errors import FlashbackError, Interrupted
from flashback.hosts import HOSTS
from flashback.models.learner import Learner
from flashback.training.building import build_method
from helpers import revisiting_benchmark, tiny_benchmark

SHORT: dict[str, Any] = {"training.epochs": 2, "training.batch_size": 8}
BENCHMARK = tiny_benchmark()


def arrays(*classes: int, part: str = "train", rows: slice = slice(None), shift: int = 0) -> dict[str, Any]:
    """Images of some classes of the tiny benchmark, by name; shifted, they have the labels of other classes."""
    images_by_name = {}
    for c in classes:
        source = (c + shift) % 7
        task = next(task for task in BENCHMARK.tasks if source in task.classes)
        images = getattr(task, part)
        images_by_name[f"class {c}"] = images.x[images.y == source].permute(0, 2, 3, 1).numpy()[rows]
    return images_by_name


def learner(folder: Path, host: str = "er", **options: Any) -> Learner:
    settings = {**SHORT, **options.pop("settings", {})}
    return Learner.create(folder, host=host, settings=settings, **options)


def weights(model: Learner) -> Mapping[str, torch.Tensor]:
    return model.load().host.state_dict()


def equal(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


# ---------------------------------------------------------------- open learning equals closed learning


FUTURE = ("finetune", "joint", "er", "der", "der++", "agem", "xder")  # their losses see classes to come
FAST = {("lwf", False), ("icarl", True), ("lucir", False), ("foster", True), ("simplecil", False), ("ewc", False)}
AGAIN = ("replay", "icarl", "wa", "lwf-mc", "lwf", "simplecil", "ranpac")  # known classes


def arms(names: Iterable[str]) -> list[Any]:
    """Hosts alone and with flashback; one of each family in the fast tests."""
    pairs = [(name, on) for name in names for on in (False, True) if HOSTS[name].has_knowledge or not on]
    return [pytest.param(*pair, marks=() if pair in FAST else pytest.mark.slow) for pair in pairs]


def ignoring_future_classes(host: str, flashback: bool) -> dict[str, Any]:
    """Short settings with a loss that ignores classes to come, where a host has the choice."""
    settings = {**short_settings(HOSTS[host]), **SHORT, "host.net": "smallcnn", "training.momentum": 0.9}
    settings |= {"host.loss": "ce_current"} if getattr(HOSTS[host].Settings(), "loss", "") == "ce_all" else {}
    return settings | ({"flashback.epochs": 1} if flashback else {})


def save(path: Path, tasks: Sequence[Task]) -> Path:
    """The images of some tasks as an .npz with training and test images."""
    content: dict[str, Any] = {"class_names": [f"class {c}" for c in range(tasks[-1].classes.stop)]}
    for part in ("train", "test"):
        images = [getattr(task, part) for task in tasks]
        content[f"x_{part}"] = torch.cat([each.x for each in images]).permute(0, 2, 3, 1).numpy()
        content[f"y_{part}"] = torch.cat([each.y for each in images]).numpy()
    np.savez(path, **content)
    return path


@pytest.mark.parametrize(("host", "flashback"), arms(name for name in HOSTS if name not in FUTURE))
def test_learning_task_by_task_equals_the_closed_run(host: str, flashback: bool, tmp_path: Path) -> None:
    settings = ignoring_future_classes(host, flashback)
    config = fb.configure(
        *(host, save(tmp_path / "whole.npz", BENCHMARK.tasks)),
        flashback=flashback,
        recipe="defaults",
        settings={**settings, "benchmark.sizes": [2, 3, 2]},
    )
    Learner.create(tmp_path / "model", host=host, flashback=flashback, settings=settings)
    check_matrices(tmp_path / "model", BENCHMARK, fb.run(config).history.matrices)


@pytest.mark.parametrize(("host", "flashback"), arms(AGAIN))
def test_learning_known_classes_again_equals_the_closed_run(host: str, flashback: bool, tmp_path: Path) -> None:
    settings = ignoring_future_classes(host, flashback) | ({"host.columns": "seen"} if host == "lwf" else {})
    made = revisiting_benchmark()
    mean, std = measure_channels(made.tasks[0].train.x)
    benchmark = replace(made, name="images", mean=mean, std=std)
    model = Learner.create(tmp_path / "model", host=host, flashback=flashback, settings=settings)
    closed = fb.train(build_method(model.config, benchmark, "cpu"))
    check_matrices(tmp_path / "model", benchmark, closed.history.matrices)


@pytest.mark.slow
@pytest.mark.parametrize(("host", "flashback"), sorted(FAST))
def test_the_embedded_benchmark_is_learned_in_processes_as_in_the_closed_run(
    host: str, flashback: bool, tmp_path: Path
) -> None:
    benchmark = fb.load_benchmark("split-fashion-mini")
    settings = ignoring_future_classes(host, flashback) | {"training.batch_size": 64}
    config = fb.configure(
        *(host, save(tmp_path / "whole.npz", benchmark.tasks)),
        flashback=flashback,
        recipe="defaults",
        settings={**settings, "benchmark.sizes": 2},
    )
    Learner.create(tmp_path / "model", host=host, flashback=flashback, settings=settings)
    check_matrices(tmp_path / "model", benchmark, fb.run(config).history.matrices, learn=learn_in_another_process)


def learn_in_another_process(folder: Path, images: Path) -> None:
    subprocess.run([sys.executable, "-m", "flashback", "learn", str(folder), str(images)], check=True)


def learn_here(folder: Path, images: Path) -> None:
    Learner(folder).learn(images)  # nothing but the folder is needed


def check_matrices(
    folder: Path, benchmark: Benchmark, closed: Mapping[str, Any], learn: Callable[[Path, Path], None] = learn_here
) -> None:
    """Learn task by task and compare the accuracies with the rows of the closed run."""
    for task in benchmark.tasks:
        learn(folder, save(folder.with_name("task.npz"), [task]))
        host = Learner(folder).load().host
        for name, measured in fb.evaluate(host, benchmark.tasks[: task.index + 1]).items():
            for setting, row in measured.items():
                assert row == closed[name][setting][task.index], (name, setting)


# ---------------------------------------------------------------- updates


def test_a_class_may_come_again_with_new_ones_beside_it(tmp_path: Path) -> None:
    model = learner(tmp_path / "m")
    model.learn(arrays(0, 1))
    version = model.learn(arrays(1, 2, rows=slice(0, 6)))
    assert version.classes == ("class 0", "class 1", "class 2")
    assert version.new == ("class 2",)
    assert version.revisited == ("class 1",)
    assert version.parent == 1


def test_a_host_that_cannot_learn_a_class_again_says_so_and_nothing_changes(tmp_path: Path) -> None:
    model = learner(tmp_path / "m", "lucir", settings={"host.memory_size": 20, "host.finetune_epochs": 1})
    model.learn(arrays(0, 1))
    with pytest.raises(FlashbackError, match="lucir cannot learn known classes again"):
        model.learn(arrays(1, 2))
    assert model.current == 1
    assert model.learn(arrays(2, 3)).number == 2  # the refused images do not stand in the way


def test_the_same_images_are_learned_once(tmp_path: Path) -> None:
    model = learner(tmp_path / "m")
    model.learn(arrays(0, 1))
    before = weights(model)
    assert model.learn(arrays(0, 1)).number == 1
    assert equal(weights(model), before)


def test_a_share_of_every_class_is_held_out_and_only_a_budget_is_kept(tmp_path: Path) -> None:
    model = learner(tmp_path / "m", holdout=0.5, held_out_per_class=4)
    version = model.learn(arrays(0, 1))
    assert (version.images, version.held_out) == (12, 12)
    held_out = model.folder.held_out(version)
    assert torch.bincount(held_out.y).tolist() == [4, 4]
    trained = learner(tmp_path / "all", holdout=0).learn(arrays(0, 1))
    assert (trained.images, trained.held_out, trained.after) == (24, 0, {})


def test_copies_of_held_out_images_are_counted(tmp_path: Path) -> None:
    """Those that are trained on, and those in the memory."""
    model = learner(tmp_path / "m", holdout=0.5)
    held_out = model.folder.held_out(model.learn(arrays(0, 1)))
    again = held_out.x[held_out.y == 0].permute(0, 2, 3, 1).numpy()
    version = model.learn({**arrays(2), "class 0": again})
    assert (version.copies, version.images) == (1, 7)  # one of them has to be trained on
    model = learner(tmp_path / "split", memory=100)
    images, tests = (arrays(0, part=part)["class 0"] for part in ("train", "test"))
    save_split(tmp_path / "first.npz", images, tests)
    save_split(tmp_path / "second.npz", tests, images)
    assert model.learn(tmp_path / "first.npz").copies == 0
    assert model.learn(tmp_path / "second.npz").copies == len(tests) + len(images)


def save_split(file: Path, train: np.ndarray, test: np.ndarray) -> None:
    labels = [np.zeros(len(images), np.int64) for images in (train, test)]
    np.savez(file, x_train=train, y_train=labels[0], x_test=test, y_test=labels[1], class_names=["class 0"])


def contents(images: torch.Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_images_that_come_again_stay_on_their_side(share: float, tmp_path: Path) -> None:
    """A folder that has grown is learned again: nobody is judged on what was trained on before."""
    model = learner(tmp_path / "m", memory=100, holdout=share)
    few, all_images = (arrays(0, 1, 2, rows=slice(count)) for count in (7, 12))
    first = model.learn(few)
    held_out = contents(model.folder.held_out(first).x)
    trained = contents(model.load().host.memory.images[: first.images])  # the memory has room for all of them
    assert (len(held_out), len(trained)) == (first.held_out, first.images) == ([3, 6][share > 0.2], 21 - len(held_out))
    second = model.learn(all_images)
    kept = model.folder.held_out(second).x
    assert len(contents(kept)) == len(kept) == second.held_out
    assert held_out <= contents(kept)
    memory = model.load().host.memory
    assert not contents(kept) & (trained | contents(memory.images[: memory.filled]))
    third = model.learn(arrays(3))
    assert (second.copies, third.copies) == (0, 0)
    assert third.judged["class 0"] == int((model.folder.held_out(second).y == 0).sum())


def test_new_images_of_known_classes_are_held_out_in_the_same_share(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (2000, 8, 8), dtype=np.uint8)
    model = learner(tmp_path / "m", holdout=0.2, settings={"training.batch_size": 500, "training.epochs": 1})
    assert model.learn({"a": noise[:1000], "b": noise[:500]}).held_out == 200 + 100
    assert model.learn({"a": noise[1000:]}).held_out == pytest.approx(200, abs=40)


@pytest.mark.parametrize("images", [1, 2, 3])
def test_every_class_has_an_image_to_learn_from(images: int, tmp_path: Path) -> None:
    model = learner(tmp_path / "m", holdout=0.9)
    version = model.learn({**arrays(0), "rare": arrays(1)["class 1"][:images]})
    assert version.judged.get("rare", 0) == images - 1
    assert version.images == 1 + 1


# ---------------------------------------------------------------- judging


def mislabelled() -> dict[str, Any]:
    """Many images of class 2 under the name of class 0, and the other way round."""
    return {"class 0": arrays(2)["class 2"], "class 2": arrays(0)["class 0"]}


def test_an_update_that_harms_known_classes_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    model = learner(tmp_path / "m", settings={"training.epochs": 20}, memory=7, holdout=0.3)
    model.learn(arrays(0, 1, 2))
    before = weights(model)
    version = model.learn(mislabelled(), max_drop=2)
    assert version.decision == "refused"
    assert "points of mean accuracy, more than 2" in version.reason
    assert model.current == 1
    assert equal(weights(model), before)
    assert [v.decision for v in model.history()] == ["accepted", "refused"]
    follow_up = model.learn(arrays(3, 4))
    assert (follow_up.number, follow_up.parent) == (3, 1)  # the refused one has no children


def test_the_worst_class_has_a_limit_of_its_own(tmp_path: Path) -> None:
    model = learner(tmp_path / "m", settings={"training.epochs": 20}, memory=7, holdout=0.3)
    model.learn(arrays(0, 1, 2))
    version = model.learn(mislabelled(), max_class_drop=10)
    assert version.decision == "refused"
    assert "points, more than 10" in version.reason


# ---------------------------------------------------------------- going back


def test_a_rollback_is_exact_and_the_next_update_goes_on_from_there(tmp_path: Path) -> None:
    model = learner(tmp_path / "m")
    model.learn(arrays(0, 1))
    first = weights(model)
    model.learn(arrays(2, 3))
    assert model.rollback().number == 1
    assert equal(weights(model), first)
    version = model.learn(arrays(4, 5))
    assert (version.number, version.parent, version.classes[2:]) == (3, 1, ("class 4", "class 5"))
    assert model.rollback(2).number == model.current == 2


def test_pruned_versions_stay_in_the_history_but_cannot_be_used(tmp_path: Path) -> None:
    model = learner(tmp_path / "m")
    for c in range(4):
        model.learn(arrays(c))
    assert model.prune(keep=1) > 0
    assert [version.number for version in model.history()] == [1, 2, 3, 4]
    assert [n for n in range(1, 5) if model.folder.has_model(n)] == [3, 4]
    with pytest.raises(FlashbackError, match="version 1 was removed"):
        model.rollback(1)


def test_pruning_finishes_an_update_that_was_stored_but_not_put_to_use(tmp_path: Path) -> None:
    model = learner(tmp_path / "m")
    model.learn(arrays(0, 1))
    kill_during_update(model, arrays(2, 3), "finish")
    assert model.current == 1
    model.prune(keep=0)
    assert model.current == 2
    assert model.load().class_names == ("class 0", "class 1", "class 2", "class 3")


def test_a_lost_current_version_is_not_taken_for_a_new_model(tmp_path: Path) -> None:
    model = learner(tmp_path / "m")
    model.learn(arrays(0, 1))
    model.learn(arrays(2))
    (model.folder.path / "current.json").unlink()
    model.folder.update.mkdir()
    with pytest.raises(FlashbackError, match="flashback rollback MODEL VERSION"):
        model.learn(arrays(3))
    shutil.rmtree(model.folder.update)
    assert model.rollback(2).classes == ("class 0", "class 1", "class 2")


# ---------------------------------------------------------------- interruptions

CHILD = """
import sys
sys.path.insert(0, sys.argv[2])
from test_learner import *
from flashback.models import learner as module
folder, _, moment, images = sys.argv[1:]
if moment == "finish":
    module.Learner._finish = lambda self, version: os.kill(os.getpid(), 9)
else:
    steps, move = [0], module.Trainer.move
    def counting(self, position):
        move(self, position)
        steps[0] += 1
        if steps[0] == int(moment):
            os.kill(os.getpid(), 9)
    module.Trainer.move = counting
Learner(folder).learn(dict(np.load(images)))
"""


def kill_during_update(model: Learner, images: dict[str, Any], moment: str) -> None:
    """Learn in another process, which is killed after so many steps, or when the version is stored but not in use."""
    folder, here = model.folder.path, Path(__file__).parent
    np.savez(folder.with_suffix(".npz"), **images)
    command = [sys.executable, "-c", CHILD, str(folder), str(here), moment, str(folder.with_suffix(".npz"))]
    path = os.pathsep.join([str(here.parent), *sys.path])
    child = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert child.returncode == -9, child.stderr


@pytest.mark.parametrize("moment", ["2", "7", "finish"])
def test_a_killed_update_goes_on_exactly(moment: str, tmp_path: Path) -> None:
    undisturbed = learner(tmp_path / "a", settings={"checkpoint.minutes": 0})
    killed = learner(tmp_path / "b", settings={"checkpoint.minutes": 0})
    for model in (undisturbed, killed):
        model.learn(arrays(0, 1))
    undisturbed.learn(arrays(2, 3))
    kill_during_update(killed, arrays(2, 3), moment)
    if moment != "finish":
        with pytest.raises(FlashbackError, match="unfinished update with other images"):
            killed.learn(arrays(4))
    killed.learn(arrays(2, 3))
    assert [version.number for version in killed.history()] == [1, 2]
    assert killed.current == 2
    assert equal(weights(killed), weights(undisturbed))


def test_files_do_not_depend_on_the_generator_of_the_process(tmp_path: Path) -> None:
    files = []
    for seed in (1, 2):
        model = learner(tmp_path / str(seed))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model.learn(arrays(0, 1))
        paths = sorted(model.folder.path.rglob("*.safetensors"))
        files.append({path.relative_to(model.folder.path): path.read_bytes() for path in paths})
    assert files[0] == files[1] != {}


def test_an_update_killed_before_its_first_checkpoint_does_not_stand_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    model = learner(tmp_path / "m")
    model.learn(arrays(0, 1))
    with monkeypatch.context() as patch:
        patch.setattr(Learner, "_train", interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.learn(arrays(2))
    assert model.folder.update.exists()
    assert model.learn(arrays(3)).classes == ("class 0", "class 1", "class 3")


def test_an_interrupted_update_goes_on_exactly(tmp_path: Path) -> None:
    undisturbed, stopped = learner(tmp_path / "a"), learner(tmp_path / "b")
    for model in (undisturbed, stopped):
        model.learn(arrays(0, 1))
    undisturbed.learn(arrays(2, 3))

    def stop(event: Mapping[str, Any]) -> None:
        if event["event"] == "epoch":
            os.kill(os.getpid(), 15)

    with pytest.raises(Interrupted):
        stopped.learn(arrays(2, 3), observers=[stop])
    assert stopped.current == 1
    with pytest.raises(FlashbackError, match="unfinished update"):
        stopped.rollback(1)
    stopped.learn(arrays(2, 3))
    assert equal(weights(stopped), weights(undisturbed))


# ---------------------------------------------------------------- a year


def a_year(folder: Path, killed_in: int | None = None) -> Learner:
    """Twelve updates with classes new and again, a bad one that is refused, and a rollback of one that was not."""
    model = learner(folder, settings={"training.epochs": 8, "checkpoint.minutes": 0}, memory=21)
    months = [arrays(0, 1), arrays(2), arrays(0, 3, rows=slice(0, 6)), arrays(4), arrays(1, 2, rows=slice(3, 9))]
    months += [mislabelled(), arrays(5), arrays(6), arrays(3, 4, rows=slice(0, 5)), arrays(5, rows=slice(0, 6))]
    months += [arrays(0, 6, rows=slice(2, 9)), arrays(1, 5, rows=slice(4, 10))]
    for month, images in enumerate(months, start=1):
        if month == killed_in:
            kill_during_update(model, images, "9")
        before = model.current and weights(model)
        version = model.learn(images, max_drop=25 if month == 6 else None)
        if month == 6:
            assert version.decision == "refused"
            assert equal(before, weights(model))
        if month == 8:
            assert model.rollback().number == version.parent
            model.learn(images)
    return model


def test_a_year_of_updates(tmp_path: Path) -> None:
    """A kill changes nothing; the history shows every update, also the refused one and the one rolled back."""
    model, killed = a_year(tmp_path / "whole"), a_year(tmp_path / "killed", killed_in=10)
    history = model.history()
    assert [version.decision for version in history] == ["accepted"] * 5 + ["refused"] + ["accepted"] * 7
    assert [version.parent for version in history] == [None, 1, 2, 3, 4, 5, 5, 7, 7, 9, 10, 11, 12]
    assert history[-1].classes == tuple(f"class {c}" for c in range(7))
    assert equal(weights(killed), weights(model))
    assert [(each.content, each.after) for each in killed.history()] == [(each.content, each.after) for each in history]
    sizes = [sum(f.stat().st_size for f in model.folder.folder(n).rglob("*") if f.is_file()) for n in (9, 13)]
    assert sizes[1] < 1.2 * sizes[0]  # no version grows by the number of updates before it


# ---------------------------------------------------------------- folders that do not fit


def test_bad_folders_and_images_are_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(FlashbackError, match="holds no model"):
        Learner(tmp_path / "nothing")
    model = learner(tmp_path / "m")
    with pytest.raises(FlashbackError, match="has learned nothing yet"):
        model.load()
    with pytest.raises(FlashbackError, match="holds a model already"):
        learner(tmp_path / "m")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(FlashbackError, match="holds other files"):
        learner(tmp_path / "other")
    with pytest.raises(FlashbackError, match="joint needs all tasks at once"):
        learner(tmp_path / "j", "joint")
    settings = tmp_path / "m" / "model.json"
    settings.write_text(settings.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(FlashbackError, match="newer version"):
        Learner(tmp_path / "m")


def test_one_image_of_a_class_is_learned_but_not_judged(tmp_path: Path) -> None:
    version = learner(tmp_path / "m").learn({**arrays(0), **arrays(1, rows=slice(0, 1))})
    assert set(version.after) == {"class 0"}


def test_two_updates_at_once_are_refused(tmp_path: Path) -> None:
    model = learner(tmp_path / "m")
    with model.folder.lock(), pytest.raises(FlashbackError, match="another process"):
        model.learn(arrays(0))
