"""A search that several drivers share through a database or a journal file, each with a folder of its own.

If several drivers propose the same choice, the lowest trial number keeps it.
"""

from __future__ import annotations

import platform
import random
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from itertools import product
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from flashback.errors import FlashbackError, require
from flashback.files import is_pipe_or_device
from flashback.training.checkpoints import digest_of

JOURNAL = "journal:"
SETTLE = 10.0  # seconds in which another driver writes all values of a choice it has asked for
PAUSES = (0.5, 1.0, 2.0)  # seconds before the database is opened again
MADE_BY_ANOTHER = ("IntegrityError", "ProgrammingError")  # of SQLAlchemy, when another driver makes the same tables
Choice = Mapping[str, Any]
P = ParamSpec("P")
T = TypeVar("T")


def open_storage(optuna: Any, storage: str) -> Any:
    """PostgreSQL, or another database that Optuna knows, by its address; or `journal:FILE`.

    Raises:
        FlashbackError: The storage cannot be opened, or is one that loses trials.
    """
    require(
        not storage.startswith("sqlite"),
        "a storage of SQLite loses trials on shared disks; use journal:FILE or postgresql+psycopg://USER@HOST/NAME",
    )
    path = Path(storage.removeprefix(JOURNAL)).expanduser()
    require(not (storage.startswith(JOURNAL) and is_pipe_or_device(path)), f"{path} is a pipe or a device; name a file")
    try:
        if storage.startswith(JOURNAL):
            journal = optuna.storages.journal
            backend = journal.JournalFileBackend(str(path), lock_obj=journal.JournalFileOpenLock(str(path)))
            return optuna.storages.JournalStorage(backend)
        for pause in PAUSES:
            try:
                return optuna.storages.RDBStorage(storage, engine_kwargs={"pool_pre_ping": True})
            except Exception as problem:
                if type(problem).__name__ not in MADE_BY_ANOTHER:
                    raise
                time.sleep(pause)
        return optuna.storages.RDBStorage(storage, engine_kwargs={"pool_pre_ping": True})
    except ImportError:
        driver = "the Python package of the database; for PostgreSQL: pip install 'psycopg[binary]'"
        raise FlashbackError(
            f"the storage {storage} needs {driver}, and postgresql+psycopg:// in the address"
        ) from None
    except Exception as problem:
        raise unusable(storage, problem) from None


def unusable(storage: str, problem: Exception) -> FlashbackError:
    """The error for what any database driver, or a journal that cannot be read, may raise."""
    reason = " ".join(f"{type(problem).__name__}: {problem}".split())
    return FlashbackError(f"the storage {storage} cannot be used ({reason[:300]})")


def with_storage_errors(method: Callable[Concatenate[SharedStudy, P], T]) -> Callable[Concatenate[SharedStudy, P], T]:
    """Name the storage in the error if a method that uses it fails, whatever the database driver raises."""

    @wraps(method)
    def call(study: SharedStudy, /, *args: P.args, **options: P.kwargs) -> T:
        try:
            return method(study, *args, **options)
        except FlashbackError:
            raise
        except Exception as problem:
            raise unusable(study.storage, problem) from None

    return call


class SharedStudy:
    """The trials of all drivers that tune the same thing over the same values."""

    @with_storage_errors
    def __init__(self, optuna: Any, storage: str, identity: Any, folder: Path, seed: int) -> None:
        self.optuna, self.storage = optuna, storage
        self.driver = f"{platform.node()}:{folder.resolve()}"
        driver_seed = int(digest_of([seed, self.driver])[:8], 16)  # drivers must not begin with the same choices
        self.study = optuna.create_study(
            study_name=f"flashback-{digest_of(identity)[:16]}",
            storage=open_storage(optuna, storage),
            direction="maximize",
            sampler=optuna.samplers.TPESampler(seed=driver_seed, constant_liar=True),
            load_if_exists=True,
        )

    @with_storage_errors
    def claimed(self, before: int | None = None) -> dict[int, Any]:
        """The first trial of each choice, by number; with `before`, of trials with a lower number."""
        states = (self.optuna.trial.TrialState.RUNNING, self.optuna.trial.TrialState.COMPLETE)
        first: dict[str, Any] = {}
        for trial in sorted(self.study.get_trials(deepcopy=False, states=states), key=lambda trial: trial.number):
            if "driver" in trial.user_attrs and (before is None or trial.number < before):
                first.setdefault(digest_of(trial.params), trial)
        return {trial.number: trial for trial in first.values()}

    def wait_until_settled(self, number: int) -> None:
        """Wait until every earlier trial has its whole choice, so that each driver comes to the same answer."""
        running, deadline = (self.optuna.trial.TrialState.RUNNING,), time.monotonic() + SETTLE
        while any(
            trial.number < number and "driver" not in trial.user_attrs
            for trial in self.study.get_trials(deepcopy=False, states=running)
        ):
            if time.monotonic() > deadline:  # its driver has died
                return
            time.sleep(0.05)

    @with_storage_errors
    def claim(
        self, space: Mapping[str, Sequence[Any]], suggest: Callable[..., Any], trials: int
    ) -> tuple[int, Choice] | None:
        """A choice that no driver has; None if there are enough, or no more."""
        every = [dict(zip(space, values, strict=True)) for values in product(*space.values())]
        while len(self.claimed()) < min(trials, len(every)):
            trial = self.study.ask()
            choice = {key: suggest(trial, key, values) for key, values in space.items()}
            trial.set_user_attr("driver", self.driver)  # the choice is whole now
            self.wait_until_settled(trial.number)
            earlier = self.claimed(before=trial.number)
            used = [other.params for other in earlier.values()]
            if choice not in used and len(earlier) < trials:
                return trial.number, choice
            self.give_back(trial.number)
            left = [other for other in every if other not in used]
            if left and len(earlier) < trials:
                self.study.enqueue_trial(random.Random(f"{self.driver} {trial.number}").choice(left))
        return None

    @with_storage_errors
    def give_back(self, number: int) -> None:
        self.study.tell(number, state=self.optuna.trial.TrialState.FAIL)

    @with_storage_errors
    def tell(self, number: int, accuracy: float) -> None:
        self.study.tell(number, accuracy)

    def search(
        self,
        space: Mapping[str, Sequence[Any]],
        suggest: Callable[..., Any],
        try_choices: Callable[[Sequence[Choice]], Sequence[float]],
        trials: int,
        at_a_time: int,
    ) -> list[tuple[Choice, float]]:
        """Try choices until all drivers together have `trials`; returns those of all that have finished."""
        running = self.optuna.trial.TrialState.RUNNING
        pending = [
            (number, trial.params)
            for number, trial in self.claimed().items()
            if trial.state == running and trial.user_attrs["driver"] == self.driver
        ]  # of an earlier call that was stopped
        while True:
            while len(pending) < at_a_time and (claim := self.claim(space, suggest, trials)) is not None:
                pending.append(claim)
            if not pending:
                break
            batch, pending = pending[:at_a_time], pending[at_a_time:]
            try:
                accuracies = try_choices([choice for _, choice in batch])
            except FlashbackError:
                for number, _ in (*batch, *pending):
                    self.give_back(number)
                raise
            for (number, _), accuracy in zip(batch, accuracies, strict=True):
                self.tell(number, accuracy)
        trials_of_all = self.claimed().values()
        if others := sum(trial.state == running for trial in trials_of_all):
            message = f"{others} choices are still tried by other drivers; the last driver to end has all of them"
            warnings.warn(message, stacklevel=2)
        return [(trial.params, trial.value) for trial in trials_of_all if trial.state != running]
