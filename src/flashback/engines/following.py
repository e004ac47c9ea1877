"""Follow runs from outside: their events as they are logged, and the state of every run of a folder."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flashback.files import LARGEST_RECORD, read_file
from flashback.records import CONFIG, LOG, PLAN, is_finished, is_held

Observer = Callable[[Mapping[str, Any]], None]
DONE, RUNNING, WAITING = "done", "running", "waiting"
STOPPED = "its process was stopped from outside"  # a run has saved its state, and may be tried again


class Follower:
    """Reports the events that a run adds to its log; those of the past too with `all_events`."""

    def __init__(self, folder: Path, observer: Observer, all_events: bool = False) -> None:
        self.path, self.observer = folder / LOG, observer
        self.offset = 0 if all_events else self.size()

    def size(self) -> int:
        with suppress(OSError):
            return self.path.stat().st_size
        return 0

    def report(self) -> None:
        """Report what has been added since the last call; incomplete lines wait for the next one."""
        self.offset = min(self.offset, self.size())  # a run that resumes cuts its log
        if self.offset == self.size():
            return
        with suppress(OSError), self.path.open("rb") as file:
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self.offset += len(line)
                with suppress(ValueError, RecursionError):
                    self.observer(json.loads(line))


def survey_folder(folder: Path) -> dict[str, str]:
    """The state of every run below a folder, by its path there; a sweep also knows the runs that have not begun."""
    planned: set[str] = set()
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        planned = set(map(str, json.loads(read_file(folder / PLAN, LARGEST_RECORD))["runs"]))
    begun = {str(path.parent.relative_to(folder)): state_of(path.parent) for path in folder.rglob(CONFIG)}
    return dict(sorted((dict.fromkeys(planned, WAITING) | begun).items()))


def state_of(run: Path) -> str:
    return DONE if is_finished(run) else RUNNING if is_held(run) else WAITING
