"""Files from strangers: nothing in them runs, leads the writing elsewhere, or is given memory on its word."""

from __future__ import annotations

import json
import os
import shutil
import stat
import struct
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import storm
import torch
from reliability_runs import begin, go_on, newest, sign

import flashback
from flashback import FlashbackError
from flashback.benchmarks import load_benchmark
from flashback.cli.console import say
from flashback.config import CheckpointConfig
from flashback.files import write_atomically
from flashback.plain_yaml import read_yaml
from flashback.recipes import config_from_dict
from flashback.recipes.catalogue import read_recipe_file
from flashback.records import read_config, read_record
from flashback.training import Checkpoints, resume


@pytest.fixture(scope="module")
def begun(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("begun") / "run"
    begin(dataset, folder)
    return folder


@pytest.fixture
def run_folder(begun: Path, tmp_path: Path) -> Path:
    """An unfinished run, in the middle of phase 2, to be tampered with."""
    shutil.copytree(begun, tmp_path / "run")
    return tmp_path / "run"


# ---------------------------------------------------------------- nothing runs, nothing is written elsewhere

WATCHED = {"os.system", "os.exec", "os.posix_spawn", "pickle.find_class", "socket.connect", "marshal.loads"}
watching: list[tuple[str, str]] | None = None
allowed: Path | None = None


def note(event: str, arguments: Any) -> None:
    """Audit hooks cannot be taken away, so this one sleeps most of the time."""
    if watching is None:
        return
    if event in WATCHED:
        watching.append((event, str(arguments)))
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        path = Path(os.path.realpath(os.fsdecode(arguments[0]))) if not isinstance(arguments[0], int) else allowed
        if allowed is not None and path is not None and not path.is_relative_to(allowed):
            watching.append((event, str(path)))


sys.addaudithook(note)


@contextmanager
def nothing_outside(folder: Path) -> Iterator[list[tuple[str, str]]]:
    """Code that runs and files that are opened to be written outside a folder are noted."""
    global watching, allowed
    watching, allowed = [], Path(os.path.realpath(folder))
    try:
        yield watching
    finally:
        watching = None


def test_the_watch_can_see(tmp_path: Path) -> None:
    with nothing_outside(tmp_path / "inside") as seen:
        (tmp_path / "outside").write_text("")
        os.system("true")
    assert [event for event, _ in seen] == ["open", "os.system"]


def test_going_on_and_reading_back_stay_in_their_folder(dataset: Path, run_folder: Path) -> None:
    torch.zeros(1, requires_grad=True).sum().backward()  # what torch loads at its first use, it loads now
    go_on(dataset, run_folder)
    (run_folder / "results.json").unlink()
    with nothing_outside(run_folder) as seen:
        load_benchmark(str(dataset), sizes=[2, 3, 2])
        state = Checkpoints(run_folder / "checkpoint", CheckpointConfig()).load()
        go_on(dataset, run_folder)
        read_record(run_folder)
    assert state is not None
    assert [event for event, what in seen if "git" not in what and what != os.devnull] == []


# ---------------------------------------------------------------- links that lead elsewhere


@pytest.fixture
def treasure(tmp_path: Path) -> Iterator[Path]:
    """A file of the user's that a link points to; it must be as it was."""
    path = tmp_path / "treasure.json"
    path.write_text("mine")
    yield path
    assert path.read_text() == "mine"
    assert [entry.name for entry in path.parent.iterdir() if entry.suffix == ".json"] == ["treasure.json"]


@pytest.mark.parametrize("name", ["log.jsonl", ".lock"])
def test_a_file_that_is_a_link_is_refused(run_folder: Path, treasure: Path, name: str) -> None:
    (run_folder / name).unlink()
    (run_folder / name).symlink_to(treasure)
    with pytest.raises(
        FlashbackError,
        match=rf"{name} is a symbolic link",
    ):
        resume(run_folder, device="cpu")


def test_a_checkpoint_folder_that_is_a_link_is_refused(run_folder: Path, treasure: Path) -> None:
    """To keep it tidy would remove what lies where it leads."""
    shutil.rmtree(run_folder / "checkpoint")
    (run_folder / "checkpoint").symlink_to(treasure.parent)
    with pytest.raises(FlashbackError, match="checkpoint is a symbolic link"):
        resume(run_folder, device="cpu")


@pytest.mark.parametrize("name", ["run.json", ".run.json.part", "results.json", "checkpoint/.000099.json.part"])
def test_a_link_is_replaced_and_not_written_through(dataset: Path, run_folder: Path, treasure: Path, name: str) -> None:
    target = treasure if name.endswith(".part") else treasure.with_suffix(".gone")  # an existing results.json ends it
    if name == "run.json":
        treasure.with_suffix(".gone").write_bytes((run_folder / name).read_bytes())
        before = treasure.with_suffix(".gone").read_bytes()
    (run_folder / name).unlink(missing_ok=True)
    (run_folder / name).symlink_to(target)
    go_on(dataset, run_folder)
    assert not (run_folder / name).is_symlink()
    if name == "run.json":
        assert treasure.with_suffix(".gone").read_bytes() == before
    else:
        assert not treasure.with_suffix(".gone").exists()


def test_a_part_that_is_a_link(tmp_path: Path, treasure: Path) -> None:
    (tmp_path / ".file.part").symlink_to(treasure)
    write_atomically(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_pipe_or_a_device_is_not_replaced_by_a_file(tmp_path: Path, is_linked: bool) -> None:
    """As `--out /dev/stdout`, which root could replace."""
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / "link" if is_linked else tmp_path / "pipe"
    if is_linked:
        path.symlink_to(tmp_path / "pipe")
    with pytest.raises(FlashbackError, match=f"{path.name} is a pipe or a device; name a file"):
        write_atomically(path, "new")
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert path.is_symlink() == is_linked


def test_a_name_that_is_not_utf8_is_written_escaped(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", "caf\udce9")
    assert (tmp_path / "file").read_bytes() == b"caf\\udce9"


def test_files_of_others_beside_the_checkpoints_stay(dataset: Path, run_folder: Path) -> None:
    """Only numbered files are the checkpointer's own; no name it meets leads it anywhere."""
    place = run_folder / "checkpoint"
    others = [
        "best.safetensors",
        "notes.json",
        "1.json",
        "12345.json",
        "1²3456.json",
        "-00001.json",
        "x.part",
        "..json",
    ]
    for name in others:
        (place / name).write_text("mine")
    (place / "000777.json").mkdir()
    assert go_on(dataset, run_folder) == []
    assert all((place / name).read_text() == "mine" for name in others)
    assert (place / "000777.json").is_dir()


# ---------------------------------------------------------------- text that wants to be more


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['touch evil']",
        "host: !!python/name:os.system",
        "host: {name: icarl}\nseed: !!python/object/new:builtins.exec ['1']",
        "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]",
        "a: &a {x: 1}\nb: {<<: [*a, *a]}",
        "a: &a [*a]",
        "[" * 5000,
        "seed: 0x" + "f" * 6000,
        "seed: " + "9" * 6000,
        "seed: 99999999999999999999999",
        "? [a]\n: 1",
        "\0",
        "d: 2001-99-99",
    ],
)
@pytest.mark.parametrize("kind", ["config", "recipe"])
def test_yaml_is_plain_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(text)
    read: Callable[[], Any] = {
        "config": lambda: read_config(tmp_path),
        "recipe": lambda: read_recipe_file(tmp_path / "config.yaml"),
    }[kind]
    with pytest.raises(FlashbackError) as caught:
        read()
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_a_refused_alias_says_what_to_do() -> None:
    with pytest.raises(FlashbackError, match=r"^x is not valid YAML in line 2; write out what the alias stands for$"):
        read_yaml("a: &a 1\nb: *a", "x")


def test_long_values_are_shown_in_part() -> None:
    with pytest.raises(FlashbackError) as caught:
        config_from_dict({"host": {"name": "icarl"}, "seed": "x" * 10**6})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", ["config.yaml", "run.json", "results.json"])
@pytest.mark.parametrize(
    "content",
    [b"[" * 10**5, b'{"a":' * 10**5, b"1" * 10**4, b'{"a": ' + b"9" * 5000 + b"}", b"\xff", b"", b"null", b"[]"],
)
def test_records_that_are_no_records(whole_folder: Path, tmp_path: Path, name: str, content: bytes) -> None:
    shutil.copytree(whole_folder, tmp_path / "run")
    (tmp_path / "run" / name).write_bytes(content)
    with pytest.raises(FlashbackError, match=r"config\.yaml|run record") as caught:
        read_record(tmp_path / "run")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["config.yaml", "run.json", "results.json"])
@pytest.mark.parametrize("kind", ["device", "pipe", "folder", "too large"])
def test_records_that_never_end_are_not_read(whole_folder: Path, tmp_path: Path, name: str, kind: str) -> None:
    shutil.copytree(whole_folder, tmp_path / "run")
    path = tmp_path / "run" / name
    path.unlink()
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(2**40)  # a hole: nothing on the disk, a terabyte when read
    with pytest.raises(FlashbackError, match=f"{name} is missing or unreadable"):
        read_record(tmp_path / "run")


@pytest.fixture(scope="module")
def whole_folder(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    flashback.run(storm.short_run("finetune", dataset), out=folder, device="cpu")
    return folder


def test_what_a_terminal_would_obey_is_spelled_out(capsys: pytest.CaptureFixture[str]) -> None:
    say("unknown key '\x1b[2J\x07\u202e\udcff'\n; did you\tmean")
    assert capsys.readouterr().err == "unknown key '\\x1b[2J\\x07\\u202e\\udcff' ; did you mean\n"


# ---------------------------------------------------------------- forged checkpoints


def container(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with any header."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def tensor(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


FORGED = {
    "a header larger than the file": container({}, length=2**40),
    "a header of all memory": container({}, length=2**64 - 1),
    "no header": b"\0\0",
    "a tensor beyond the end": container({"host.x": tensor(offsets=(0, 2**40))}, bytes(8)),
    "a shape of exabytes": container({"host.x": tensor(shape=(2**62, 2), offsets=(0, 8))}, bytes(8)),
    "a shape that overflows": container({"host.x": tensor(shape=(2**33, 2**33, 0))}, bytes(8)),
    "overlapping tensors": container({"a": tensor(), "b": tensor(offsets=(4, 12))}, bytes(12)),
    "a hole": container({"a": tensor(offsets=(4, 12))}, bytes(12)),
    "backward offsets": container({"a": tensor(offsets=(8, 0))}, bytes(8)),
    "negative offsets": container({"a": tensor(offsets=(-8, 0))}, bytes(8)),
    "a type that does not exist": container({"a": tensor("PICKLE")}, bytes(8)),
    "a type torch has not": container({"a": tensor("F4", (16,))}, bytes(8)),
    "a type of another size": container({"a": tensor("F64")}, bytes(8)),
    "a negative shape": container({"a": tensor(shape=(-1, -2))}, bytes(8)),
    "text for a shape": container({"a": tensor(shape="2")}, bytes(8)),
    "the same name twice": container(b'{"a":%b,"a":%b}' % ((json.dumps(tensor()).encode(),) * 2), bytes(8)),
    "a header that is no text": container(b"\xff\xfe"),
    "a deep header": container(b'{"a":' * 10**5),
    "a pickle": b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
}  # fmt: skip


@pytest.mark.parametrize("content", FORGED.values(), ids=FORGED.keys())
def test_forged_tensors_with_true_checksums(run_folder: Path, content: bytes) -> None:
    """The forger has signed the manifest anew; the checkpoint before it is used, or what fits no host is refused."""
    manifest = newest(run_folder, ".json")
    manifest.with_suffix(".safetensors").write_bytes(content)
    sign(manifest)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = Checkpoints(run_folder / "checkpoint", CheckpointConfig()).load()
    assert state is not None
    if content == FORGED["the same name twice"] and not caught:  # one of them counted: a tensor of no host
        assert set(state.tensors) == {"a"}
        return
    assert [str(warning.message) for warning in caught] == [f"the checkpoint {manifest} is damaged; it is skipped"]


def without(tensors: dict[str, Any], name: str) -> None:
    del tensors[name]


def renamed(tensors: dict[str, Any], name: str) -> None:
    tensors[f"{name}/../../evil"] = tensors.pop(name)


def reshaped(tensors: dict[str, Any], name: str) -> None:
    tensors[name] = torch.zeros(3, 1, dtype=tensors[name].dtype)


def retyped(tensors: dict[str, Any], name: str) -> None:
    tensors[name] = tensors[name].to(torch.int32 if tensors[name].dtype != torch.int32 else torch.int64)


def scalar(tensors: dict[str, Any], name: str) -> None:
    """It would broadcast."""
    tensors[name] = torch.zeros((), dtype=tensors[name].dtype)


PARTS = ["host.net.", "host.memory.images", "host.memory.count", "method.plastic.", "step.momentum.", "random."]


@pytest.mark.parametrize("change", [without, renamed, reshaped, retyped, scalar])
@pytest.mark.parametrize("part", PARTS)
def test_checkpoints_that_fit_no_host(run_folder: Path, part: str, change: Callable[..., None]) -> None:
    """True checksums over tensors of another run, version or making."""
    manifest = newest(run_folder, ".json")
    path = manifest.with_suffix(".safetensors")
    tensors = safetensors.torch.load(path.read_bytes())
    name = next(name for name in tensors if name.startswith(part))
    before = tensors[name].shape
    change(tensors, name)
    if change is scalar and before == ():
        tensors[name] = torch.zeros(1)
    path.write_bytes(safetensors.torch.save(tensors))
    sign(manifest)
    with pytest.raises(FlashbackError, match=r"^the checkpoint does not (fit this host|hold the state)") as caught:
        resume(run_folder, device="cpu")
    assert "\n" not in str(caught.value)


def test_a_checkpoint_without_its_snapshot(dataset: Path, tmp_path: Path) -> None:
    begin(dataset, tmp_path / "run", stage="phase 1")
    manifest = newest(tmp_path / "run", ".json")
    tensors = safetensors.torch.load(manifest.with_suffix(".safetensors").read_bytes())
    rest = {name: value for name, value in tensors.items() if "snapshot" not in name}
    assert len(rest) < len(tensors)
    manifest.with_suffix(".safetensors").write_bytes(safetensors.torch.save(rest))
    sign(manifest)
    with pytest.raises(FlashbackError, match=r"^the checkpoint lacks the state to flash back to"):
        resume(tmp_path / "run", device="cpu")


def test_a_generator_that_is_none(run_folder: Path) -> None:
    manifest = newest(run_folder, ".json")
    tensors = safetensors.torch.load(manifest.with_suffix(".safetensors").read_bytes())
    tensors["random.generator"].fill_(255)
    manifest.with_suffix(".safetensors").write_bytes(safetensors.torch.save(tensors))
    sign(manifest)
    with pytest.raises(FlashbackError, match=r"^the checkpoint does not hold the state of a random generator$"):
        resume(run_folder, device="cpu")


@pytest.mark.parametrize(
    "change",
    [
        {"log_bytes": -1},
        {"log_bytes": 2**70},
        {"log_bytes": "0"},
        {"log_bytes": None},
        {"position": None},
        {"position": {"task": -1}},
        {"position": {"task": 1.5}},
        {"position": {"task": 2**40}},
        {"position": {"task": True}},
        {"position": {"place": 1}},
        {"history": []},
        {"history": {"budget": [{"steps": 1}]}},
        {"history": {"budget": [{"task": 0, "stage": "x", "steps": "1", "images": 1}]}},
        {"history": {"budget": []}},
        {"history": {"matrices": {"linear": {"other": []}}}},
        {"history": {"matrices": {"linear": {"class_incremental": [[1.0, 2.0]], "task_incremental": [[1.0]]}}}},
        {"history": {"matrices": {"linear": {"class_incremental": [["x"]], "task_incremental": [[1.0]]}}}},
        {"history": {"seconds": "long"}},
    ],
    ids=json.dumps,
)
def test_forged_values_with_a_true_checksum(run_folder: Path, change: dict[str, Any]) -> None:
    manifest = newest(run_folder, ".json")
    values = json.loads(manifest.read_text())["values"]
    for key, value in change.items():
        values[key] = {**values[key], **value} if isinstance(value, dict) else value
    if "log_bytes" in change and change["log_bytes"] == 2**70:
        values["log_bytes"] = 2**70  # a log of that size would be one large hole
        sign(manifest, values)
        size = (run_folder / "log.jsonl").stat().st_size
        with pytest.warns(UserWarning, match="has lost lines"):
            resume(run_folder, device="cpu")
        assert (run_folder / "log.jsonl").stat().st_size < 3 * size
        return
    sign(manifest, values)
    with pytest.warns(UserWarning, match="is damaged; it is skipped"):
        state = Checkpoints(run_folder / "checkpoint", CheckpointConfig()).load()
    assert state is not None


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10**5,
        '{"digest": ' + "9" * 5000 + "}",
        "[]",
        "3",
        '"digest"',
        "{}",
        '{"digest": "x", "tensors": "../../../etc/passwd", "size": 1, "values": {}}',
        '{"digest": {"a": 1}}',
        "\ud800",
    ],
)
def test_manifests_that_are_none(run_folder: Path, text: str) -> None:
    newest(run_folder, ".json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.warns(UserWarning, match="is damaged; it is skipped"):
        assert Checkpoints(run_folder / "checkpoint", CheckpointConfig()).load() is not None


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
@pytest.mark.parametrize("target", ["/dev/zero", "/etc/passwd", "hole"])
def test_checkpoints_that_never_end_are_not_read(run_folder: Path, tmp_path: Path, suffix: str, target: str) -> None:
    path = newest(run_folder, suffix)
    path.unlink()
    if target == "hole":
        with path.open("wb") as file:
            file.truncate(2**40)
    else:
        path.symlink_to(target)
    if (suffix, target) == (".json", "/dev/zero"):  # no file, so no manifest either
        assert Checkpoints(run_folder / "checkpoint", CheckpointConfig()).load() is not None
        return
    with pytest.warns(UserWarning, match="skipped"):
        assert Checkpoints(run_folder / "checkpoint", CheckpointConfig()).load() is not None
