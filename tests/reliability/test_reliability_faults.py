"""Faults in the middle of a run: each is named in one sentence, and the run goes on from its last good checkpoint."""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import storm
import torch
from reliability_runs import NEVER, Crash, begin, crash_in, go_on, icarl, newest

import flashback
from flashback import FlashbackError, files
from flashback.config import CheckpointConfig, to_dict
from flashback.plugin import Flashback
from flashback.records import RunFolder, is_held
from flashback.training import Checkpoints
from flashback.training.building import is_lack_of_memory
from flashback.training.step import TrainingStep


def assert_ends_like(folder: Path, whole: dict[str, Any]) -> None:
    assert storm.differences(whole, storm.fingerprint(folder)) == []


# ---------------------------------------------------------------- a loss that is not a number


@pytest.fixture
def explosion(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Plasticity explodes in the third step of phase 2; later steps spoil all other terms too. Counts these steps."""
    set_alpha, descend = Flashback.set_alpha, TrainingStep.descend
    flashbacks: list[Flashback] = []
    steps = [0]

    def explode(step: TrainingStep, *inputs: Any) -> None:
        steps[0] += step.stage.name == "phase 2"
        if steps[0] == 3:
            flashbacks[-1].alpha_now.fill_(torch.inf)
        descend(step, *inputs)

    monkeypatch.setattr(
        Flashback, "set_alpha", lambda self, *arguments: (flashbacks.append(self), set_alpha(self, *arguments))
    )
    monkeypatch.setattr(TrainingStep, "descend", explode)
    return steps


EXPLOSION = "the loss is no longer finite: plasticity in phase 2 of task 2, epoch 1, step 3; lower training.lr"


def test_a_loss_that_is_not_finite(
    dataset: Path, tmp_path: Path, whole: dict[str, Any], explosion: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FlashbackError) as caught:
        flashback.run(icarl(dataset), out=tmp_path / "run", device="cpu")
    assert str(caught.value) == EXPLOSION
    assert explosion == [3], "with a checkpoint after every step it is noticed at once"
    state = Checkpoints(tmp_path / "run" / "checkpoint", CheckpointConfig()).load()
    assert state is not None
    assert state.values["position"] == {"task": 1, "stage": 1, "begun": True, "epoch": 0, "step": 2}
    assert all(tensor.isfinite().all() for tensor in state.tensors.values())
    with pytest.raises(FlashbackError, match=r"of another configuration \(differs in training.lr\)"):
        flashback.run(icarl(dataset, lr=0.01), out=tmp_path / "run", device="cpu")
    monkeypatch.undo()
    assert go_on(dataset, tmp_path / "run") == []
    assert_ends_like(tmp_path / "run", whole)


def test_only_the_terms_of_the_first_bad_step_are_named(dataset: Path, explosion: list[int]) -> None:
    """Without checkpoints it is noticed at the end of the epoch, when everything has long been spoilt."""
    with pytest.raises(FlashbackError) as caught:
        flashback.run(icarl(dataset), device="cpu")
    assert str(caught.value) == EXPLOSION
    assert explosion[0] > 3


@pytest.mark.parametrize("minutes", [0.0, NEVER])
def test_weights_that_are_not_finite_are_not_saved(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: float
) -> None:
    """The last step of a stage can spoil the weights without any loss that would show it."""
    descend, steps = TrainingStep.descend, 0
    images = np.isin(np.load(dataset)["y_train"], range(storm.SIZES[0])).sum()
    last = 2 * math.ceil(images / 8)  # of two epochs, in batches of eight

    def spoil(step: TrainingStep, *inputs: Any) -> None:
        nonlocal steps
        descend(step, *inputs)
        steps += 1
        if steps == last:
            step.stage.parameters()[-1].data[0] = math.nan

    monkeypatch.setattr(TrainingStep, "descend", spoil)
    config = icarl(dataset, minutes)
    with pytest.raises(FlashbackError, match=r"^the weights are no longer finite in learn of task 1, epoch 2;"):
        flashback.run(config, out=tmp_path / "run", device="cpu")
    state = Checkpoints(tmp_path / "run" / "checkpoint", CheckpointConfig()).load()
    assert (state is None) == (minutes == NEVER)
    assert state is None or all(tensor.isfinite().all() for tensor in state.tensors.values())


# ---------------------------------------------------------------- out of memory


LACKS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]


@pytest.mark.parametrize("lack", LACKS, ids=["cuda", "python", "cpu", "cublas"])
def test_out_of_memory_says_what_to_lower(lack: Exception) -> None:
    assert is_lack_of_memory(lack)
    assert not is_lack_of_memory(RuntimeError("shapes do not match"))


def test_a_run_that_lacked_memory_goes_on(
    dataset: Path, tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    descend = TrainingStep.descend

    def lacks(step: TrainingStep, *inputs: Any) -> None:
        if step.stage.name == "phase 2":
            raise torch.OutOfMemoryError("CUDA out of memory")
        descend(step, *inputs)

    monkeypatch.setattr(TrainingStep, "descend", lacks)
    with pytest.raises(FlashbackError, match=r"out of memory; lower training.batch_size, training.evaluation_batch"):
        flashback.run(icarl(dataset), out=tmp_path / "run", device="cpu")
    monkeypatch.undo()
    assert go_on(dataset, tmp_path / "run") == []
    assert_ends_like(tmp_path / "run", whole)


@pytest.mark.parametrize("size", [2**40, 2**62])
def test_a_memory_that_fits_no_machine(dataset: Path, size: int) -> None:
    values = to_dict(icarl(dataset))
    values["host"]["memory_size"] = size
    with pytest.raises(FlashbackError, match=r"is out of memory; lower .* or the host's memory"):
        flashback.run(flashback.recipes.config_from_dict(values), device="cpu")


# ---------------------------------------------------------------- a full disk


def full_from(suffix: str, first: int) -> Callable[[int], None]:
    """fsync that finds the disk full from the n-th file of a checkpoint on."""
    fsync, seen = os.fsync, 0

    def fail(descriptor: int) -> None:
        nonlocal seen
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        seen += "/checkpoint/" in path and path.endswith(suffix)
        if "/checkpoint/" in path and path.endswith(suffix) and seen >= first:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    return fail


@pytest.mark.parametrize("suffix", [".safetensors.part", pytest.param(".json.part", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("always")
def test_no_room_for_checkpoints(
    dataset: Path, tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """The run goes on; the checkpoints from before stay, and serve when it is broken off as well."""
    monkeypatch.setattr(os, "fsync", full_from(suffix, 9))
    watch = [crash_in(1, "phase 2")]
    with pytest.warns(UserWarning, match="no space") as caught, pytest.raises(Crash):
        flashback.run(icarl(dataset), out=tmp_path / "run", device="cpu", observers=watch)
    (message,) = {str(warning.message) for warning in caught}
    assert message.startswith(
        f"no space for a checkpoint in {tmp_path / 'run' / 'checkpoint'} (No space left on device);"
    )
    assert message.endswith("free some space; the run continues without it")
    left = sorted(path.name for path in (tmp_path / "run" / "checkpoint").iterdir())
    assert left == ["000007.json", "000007.safetensors", "000008.json", "000008.safetensors"]
    monkeypatch.undo()
    assert go_on(dataset, tmp_path / "run") == []
    assert_ends_like(tmp_path / "run", whole)


def test_no_room_for_a_whole_run(
    dataset: Path, tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", full_from(".safetensors.part", 1))
    with pytest.warns(UserWarning, match="no space for a checkpoint"):
        result = flashback.run(icarl(dataset), out=tmp_path / "run", device="cpu")
    assert json.dumps(result.as_dict(), indent=1) + "\n" == whole["results.json"].decode()
    assert list((tmp_path / "run" / "checkpoint").iterdir()) == []


def without_room(*_: Any, **__: Any) -> Any:
    """Who calls it closes it."""
    return open("/dev/full", "ab")


def test_no_room_for_the_log(
    dataset: Path, tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log with a hole would be another log, so the run stops; /dev/full is a disk without room."""
    log, lines = RunFolder.log, 0

    def write(folder: RunFolder, event: Any) -> None:
        nonlocal lines
        lines += 1
        if lines == 6:
            monkeypatch.setattr(files, "open_to_append", without_room)
        log(folder, event)

    monkeypatch.setattr(RunFolder, "log", write)
    with pytest.raises(FlashbackError) as caught:
        flashback.run(icarl(dataset), out=tmp_path / "run", device="cpu")
    sentence = "cannot be written (No space left on device); free some space, then repeat the command"
    assert str(caught.value) == f"{tmp_path / 'run' / 'log.jsonl'} {sentence}"
    monkeypatch.undo()
    assert go_on(dataset, tmp_path / "run") == []
    assert_ends_like(tmp_path / "run", whole)


PROBLEMS = {
    errno.ENOSPC: "(No space left on device); free some space, then repeat the command",
    errno.EFBIG: "(File too large); allow larger files (ulimit -f), then repeat the command",
    errno.EIO: "(Input/output error); check the disk and the permissions, then repeat the command",
}


@pytest.mark.parametrize("number", PROBLEMS)
@pytest.mark.parametrize("name", ["config.yaml", "run.json", "results.json"])
def test_a_file_that_cannot_be_written_is_named(
    dataset: Path, tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(f"{name}.part"):
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(FlashbackError) as caught:
        flashback.run(icarl(dataset, NEVER), out=tmp_path / "run", device="cpu")
    assert str(caught.value) == f"{tmp_path / 'run' / name} cannot be written {PROBLEMS[number]}"
    monkeypatch.undo()
    if name == "results.json":
        assert go_on(dataset, tmp_path / "run") == []
        assert_ends_like(tmp_path / "run", whole)


def test_a_finished_run_is_no_failure_if_an_old_checkpoint_cannot_be_removed(
    dataset: Path, tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink, refused = Path.unlink, list[Path]()

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.parent.name == "checkpoint" and (tmp_path / "run" / "results.json").exists():
            refused.append(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    flashback.run(icarl(dataset), out=tmp_path / "run", device="cpu")
    assert refused
    assert_ends_like(tmp_path / "run", whole)


def test_a_folder_without_locks_is_named(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(FlashbackError) as caught:
        flashback.run(icarl(dataset), out=tmp_path / "run", device="cpu")
    path = tmp_path / "run" / ".lock"
    remedy = "use a folder on a file system with locks, then repeat the command"
    assert str(caught.value) == f"{path} cannot be written (No locks available); {remedy}"


def test_a_lock_without_room_for_the_name_of_the_machine_is_a_lock(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with RunFolder(tmp_path).lock():
            assert is_held(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.filterwarnings("always")
def test_files_that_may_not_be_large(dataset: Path, tmp_path: Path, whole: dict[str, Any]) -> None:
    """As under ulimit -f: there are no checkpoints, the run ends, and its record is whole."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100 * 1024, limits[1]))
    try:
        with pytest.warns(
            UserWarning, match=r"\(File too large\); allow larger files \(ulimit -f\); the run continues"
        ):
            result = flashback.run(icarl(dataset), out=tmp_path / "run", device="cpu")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert json.dumps(result.as_dict(), indent=1) + "\n" == whole["results.json"].decode()


# ---------------------------------------------------------------- damaged checkpoints


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def alter(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" 1")


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
@pytest.mark.parametrize("damage", [cut_short, alter, empty, lengthen, Path.unlink])
def test_a_damaged_checkpoint_is_passed_over(
    dataset: Path, tmp_path: Path, suffix: str, damage: Callable[[Path], None], begun: Path
) -> None:
    """What follows from the one before it is the same; see test_resume."""
    folder = tmp_path / "run"
    shutil.copytree(begun, folder)
    last, before = (sorted((folder / "checkpoint").glob("*.json"))[k] for k in (-1, -2))
    expected = Checkpoints(folder / "checkpoint", CheckpointConfig()).load()
    damage(newest(folder, suffix))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = Checkpoints(folder / "checkpoint", CheckpointConfig()).load()
    messages = [str(warning.message) for warning in caught]
    missing = damage is Path.unlink and suffix == ".json"  # without its manifest it was never a checkpoint
    assert messages == ([] if missing else [f"the checkpoint {last} is damaged; it is skipped"])
    assert state is not None
    assert expected is not None
    assert state.values == json.loads(before.read_text())["values"] != expected.values


@pytest.fixture(scope="module")
def begun(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("begun") / "run"
    begin(dataset, folder)
    return folder


@pytest.mark.parametrize("damaged", [1, 2])
def test_a_run_with_damaged_checkpoints_ends_as_it_would_have(
    dataset: Path, tmp_path: Path, whole: dict[str, Any], begun: Path, damaged: int
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(begun, folder)
    for path in sorted((folder / "checkpoint").glob("*.safetensors"))[-damaged:]:
        cut_short(path)
    messages = go_on(dataset, folder)
    assert len(messages) == damaged + (damaged == 2)
    if damaged == 2:
        assert messages[-1] == f"every checkpoint in {folder / 'checkpoint'} is damaged; the run starts again"
    assert_ends_like(folder, whole)
    assert len(list((folder / "checkpoint").iterdir())) == 2, "the damaged ones are gone, the last good one stays"


def test_damaged_checkpoints_do_not_count_as_kept(dataset: Path, tmp_path: Path, begun: Path) -> None:
    """Else the only good one would be removed for a damaged one as soon as the next is written."""
    folder = tmp_path / "run"
    shutil.copytree(begun, folder)
    good, bad = sorted(path.stem for path in (folder / "checkpoint").glob("*.json"))
    cut_short(folder / "checkpoint" / f"{bad}.safetensors")
    checkpointer = Checkpoints(folder / "checkpoint", CheckpointConfig())
    with pytest.warns(UserWarning, match="skipped"):
        state = checkpointer.load()
    assert state is not None
    checkpointer.write(state)
    assert {path.stem for path in (folder / "checkpoint").iterdir()} == {good, f"{int(bad) + 1:06d}"}


@pytest.mark.parametrize(
    "problem", [PermissionError(errno.EACCES, "denied"), OSError(errno.EIO, "no answer"), MemoryError()]
)
def test_what_cannot_be_read_now_is_not_given_up(
    dataset: Path, tmp_path: Path, begun: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    """A network drive that does not answer is no damage: to start over would cost the whole run."""
    folder = tmp_path / "run"
    shutil.copytree(begun, folder)
    before = sorted(path.name for path in (folder / "checkpoint").iterdir())

    def fail(*_: Any) -> bytes:
        raise problem

    monkeypatch.setattr("flashback.training.checkpoints.read_file", fail)
    with pytest.raises(FlashbackError if isinstance(problem, MemoryError) else type(problem)):
        flashback.run(icarl(dataset), out=folder, device="cpu")
    assert sorted(path.name for path in (folder / "checkpoint").iterdir()) == before


def test_a_log_that_lost_lines_is_not_filled_up(dataset: Path, tmp_path: Path, begun: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(begun, folder)
    lines = (folder / "log.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "log.jsonl").write_bytes(lines[0])
    assert go_on(dataset, folder) == [f"{folder / 'log.jsonl'} has lost lines since the checkpoint was written"]
    assert b"\0" not in (folder / "log.jsonl").read_bytes()


# ---------------------------------------------------------------- other data, clocks, configurations, machines


def test_a_dataset_that_changed(dataset: Path, tmp_path: Path) -> None:
    path = tmp_path / "made.npz"
    shutil.copy(dataset, path)
    begin(path, tmp_path / "run")
    arrays = dict(np.load(path))
    arrays["x_test"][-1, 0, 0] ^= 1
    np.savez(path, **arrays)
    with pytest.raises(FlashbackError, match=r"^the data have changed since the run in .* began; start a new run$"):
        flashback.run(icarl(path), out=tmp_path / "run", device="cpu")
    shutil.copy(dataset, path)
    assert go_on(path, tmp_path / "run") == []


def test_a_clock_that_jumps(
    dataset: Path, tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By years, forth and back, at every look; only the times of the log follow it."""
    looks = 0

    def jump() -> float:
        nonlocal looks
        looks += 1
        return 1e9 * (looks % 3)

    monkeypatch.setattr(time, "time", jump)
    began = time.monotonic()
    config = icarl(dataset, NEVER)  # the jumps are longer, and must bring no checkpoint early
    saved: list[int] = []
    write = Checkpoints.write
    monkeypatch.setattr(Checkpoints, "write", lambda checkpointer, state: (saved.append(1), write(checkpointer, state)))
    flashback.run(config, out=tmp_path / "run", device="cpu")
    assert looks > 5
    assert len(saved) == 1, "the last one"
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert 0 < run["training_seconds"] <= run["seconds"] <= time.monotonic() - began
    assert_ends_like(tmp_path / "run", whole)


def test_other_surroundings_are_said_and_recorded(dataset: Path, tmp_path: Path, begun: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(begun, folder)
    run = json.loads((folder / "run.json").read_text())
    assert run["changed_on_resume"] == []
    run["must_match"] |= {"torch": "1.0", "threads": 99}
    run["source"] = "0123"
    (folder / "run.json").write_text(json.dumps(run))
    (message,) = go_on(dataset, folder)
    assert "continues in another environment (threads, torch, source), so its results may differ" in message
    assert json.loads((folder / "run.json").read_text())["changed_on_resume"] == ["source", "threads", "torch"]


def test_another_kind_of_device_is_refused(dataset: Path, tmp_path: Path, begun: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(begun, folder)
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**run, "device_type": "cuda"}))
    with pytest.raises(FlashbackError, match=r"^the run in .* began on another kind of device; use --device cuda$"):
        flashback.run(icarl(dataset), out=folder, device="cpu")
