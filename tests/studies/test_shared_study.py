"""Several drivers share a search: each choice is tried once, and none is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from postgres_server import postgres, reason_not_to_start

from flashback.errors import FlashbackError
from flashback.studies import shared_study
from flashback.studies.shared_study import SharedStudy, open_storage
from flashback.studies.tuning import suggested

optuna = pytest.importorskip("optuna")
SPACE = {"a": [1, 2, 3, 4], "b": [0.1, 0.2, 0.3]}
optuna.logging.set_verbosity(optuna.logging.ERROR)


class Driver:
    def __init__(self, tmp_path: Path, name: str, storage: str = "", identity: Any = "made") -> None:
        self.tried: list[Any] = []
        folder = tmp_path / name
        self.study = SharedStudy(optuna, storage or f"journal:{tmp_path / 'journal'}", identity, folder, seed=0)

    def search(self, trials: int, at_a_time: int = 1) -> list[Any]:
        def try_choices(choices: Sequence[Any]) -> list[float]:
            self.tried += [dict(choice) for choice in choices]
            time.sleep(0.01)
            return [choice["a"] + choice["b"] for choice in choices]

        return self.study.search(SPACE, suggested, try_choices, trials, at_a_time)


def different(choices: Sequence[Any]) -> int:
    return len({json.dumps(choice, sort_keys=True) for choice in choices})


@pytest.mark.parametrize(("trials", "at_a_time"), [(7, 1), (7, 2), (100, 3)])
def test_drivers_divide_the_choices(tmp_path: Path, trials: int, at_a_time: int) -> None:
    drivers = [Driver(tmp_path, name) for name in ("one", "two", "three")]
    threads = [threading.Thread(target=driver.search, args=(trials, at_a_time)) for driver in drivers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    choices = [choice for driver in drivers for choice in driver.tried]
    assert len(choices) == different(choices) == min(trials, 12)
    every = Driver(tmp_path, "four").search(trials)
    assert different([choice for choice, _ in every]) == len(every) == len(choices)
    assert all(value == choice["a"] + choice["b"] for choice, value in every)


def test_a_stopped_driver_takes_its_choices_up_again(tmp_path: Path) -> None:
    class StoppedError(Exception):
        pass

    calls: list[Any] = []

    def stop(choices: Sequence[Any]) -> list[float]:
        calls.extend(map(dict, choices))
        raise StoppedError

    with pytest.raises(StoppedError):
        Driver(tmp_path, "one").study.search(SPACE, suggested, stop, 5, 2)
    other = Driver(tmp_path, "two")
    with pytest.warns(UserWarning, match="2 choices are still tried by other drivers"):
        assert len(other.search(5)) == 3
    again = Driver(tmp_path, "one")
    assert len(again.search(5)) == 5
    assert again.tried == calls
    assert different([*again.tried, *other.tried]) == 5


def test_a_choice_that_failed_is_given_back(tmp_path: Path) -> None:
    def fail(choices: Sequence[Any]) -> list[float]:
        raise FlashbackError("no")

    with pytest.raises(FlashbackError):
        Driver(tmp_path, "one").study.search(SPACE, suggested, fail, 12, 1)
    assert len(Driver(tmp_path, "two").search(12)) == 12


def test_other_tunings_in_the_same_storage_are_apart(tmp_path: Path) -> None:
    Driver(tmp_path, "one").search(3)
    other = Driver(tmp_path, "one", identity="another")
    assert len(other.search(2)) == len(other.tried) == 2


@pytest.mark.parametrize("storage", ["sqlite:///x.db", "nothing", "journal:/nowhere/at/all"])
def test_a_storage_that_cannot_be_used_is_refused(storage: str, tmp_path: Path) -> None:
    with pytest.raises(FlashbackError, match="storage"):
        open_storage(optuna, storage)


@pytest.mark.parametrize(
    "content", ["pipe", "device", "folder", b"[[[\n", b"null\n", b'{"op_code": 0}\n', bytes(range(256))]
)
def test_a_journal_that_is_none_is_a_sentence(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "journal"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        {"pipe": os.mkfifo, "device": lambda path: path.symlink_to("/dev/full"), "folder": Path.mkdir}[content](path)
    with pytest.raises(FlashbackError, match=r"journal (cannot be used \(|is a pipe or a device; name a file)"):
        Driver(tmp_path, "one")


def test_a_storage_that_fails_in_the_middle_is_a_sentence(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "one")

    def break_it(choices: Sequence[Any]) -> list[float]:
        driver.tried += choices
        (tmp_path / "journal").write_bytes(b"[[[\n" * 1000)
        return [1.0 for _ in choices]

    with pytest.raises(FlashbackError, match=r"^the storage journal:.* cannot be used \(JSONDecodeError: "):
        driver.study.search(SPACE, suggested, break_it, 3, 1)
    assert len(driver.tried) == 1


def test_drivers_may_make_the_tables_of_a_database_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlalchemy.exc import IntegrityError

    monkeypatch.setattr(shared_study, "PAUSES", (0.0, 0.0))
    opened: list[str] = []

    def fail(times: int) -> Any:
        def open_database(address: str, **_: Any) -> str:
            opened.append(address)
            if len(opened) <= times:
                raise IntegrityError("CREATE TYPE", None, Exception("it exists"))
            return "storage"

        return SimpleNamespace(storages=SimpleNamespace(RDBStorage=open_database))

    assert open_storage(fail(2), "postgresql+psycopg://here") == "storage"
    assert len(opened) == 3
    opened.clear()
    with pytest.raises(FlashbackError, match=r"cannot be used .*it exists"):
        open_storage(fail(3), "postgresql+psycopg://here")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["journal", "postgresql"])
def test_two_drivers_on_a_real_storage(tmp_path: Path, kind: str) -> None:
    """Two processes, one of which is killed once and started again."""
    if kind == "journal":
        check_two_drivers(tmp_path, f"journal:{tmp_path / 'journal'}")
        return
    pytest.importorskip("psycopg")
    if reason := reason_not_to_start():
        pytest.skip(reason)
    with postgres() as address:
        check_two_drivers(tmp_path, address)


def check_two_drivers(tmp_path: Path, storage: str) -> None:
    script, trials = str(Path(__file__).with_name("tuning_driver.py")), 12

    def start(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, script, str(tmp_path / name), storage, str(trials)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    first, second = start("one"), start("two")
    assert first.stdout is not None
    began = [first.stdout.readline().strip()]
    first.kill()
    began += first.communicate()[0].splitlines()
    *in_second, _ = second.communicate(timeout=200)[0].splitlines()
    again = start("one").communicate(timeout=200)[0].splitlines()
    in_first = {*began, *again[:-1]}
    assert not in_first & set(in_second)
    assert len(in_first) + len(in_second) == trials
    accuracies = [trial["accuracy"] for trial in json.loads(again[-1])]
    assert len(accuracies) == trials
    assert accuracies == sorted(accuracies, reverse=True)
