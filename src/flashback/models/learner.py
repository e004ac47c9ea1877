"""A model that keeps learning: every update adds images of new or known classes, and may be undone."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import torch

from flashback.benchmarks import Benchmark, Images, Task
from flashback.benchmarks.image_lists import Shape
from flashback.benchmarks.load import measure_channels
from flashback.config import to_dict
from flashback.errors import FlashbackError, printable, require
from flashback.files import make_folder
from flashback.hosts.base import HOSTS, Host
from flashback.models.evaluation import FileEvaluation, evaluate_files
from flashback.models.export import export_model
from flashback.models.held_out import count_copies, joined, limited, no_images, split, without
from flashback.models.model import Model
from flashback.models.prediction import Predictions, predict_files
from flashback.models.sources import LabelledImages, Source, collect, image_shape_for, list_parts
from flashback.models.versions import ACCEPTED, REFUSED, UPDATE_RECORD, ModelFolder, ModelSettings, PastTask, Version
from flashback.recipes import config_from_dict, configure
from flashback.records import CHECKPOINT
from flashback.training.building import build_method, explaining_failures
from flashback.training.checkpoints import Checkpoints, digest_of
from flashback.training.environment import prepared_device, select_device, select_precision
from flashback.training.result import History
from flashback.training.trainer import Observer, RunState, Trainer

BENCHMARK = "images"  # the name of the benchmark in the configuration of a model
DEFAULT_HOST = "replay"  # keeps the memory balanced, and can learn known classes again
DEFAULT_MOMENTUM = 0.9  # of the default host
CPU_NET = "smallcnn"
EPOCHS = 20


class Learner:
    """A model in a folder that learns new images whenever they come.

    Args:
        folder: The folder of the model; `Learner.create` makes one.
        device: "cpu", "cuda", or "auto" for a GPU if there is one.

    Raises:
        FlashbackError: If the folder holds no model, or one of a newer version of this package.
    """

    def __init__(self, folder: str | Path, device: str | torch.device = "auto") -> None:
        self.folder = ModelFolder(Path(folder).expanduser())
        require(
            self.folder.exists,
            f"{printable(self.folder.path)} holds no model; `flashback learn` makes one, in Python fb.Learner.create",
        )
        self.settings = self.folder.settings()
        self.config = config_from_dict(self.settings.config)
        self.device = select_device(device)
        self.skipped: dict[str, str] = {}  # why images of the last update could not be read, by path

    @classmethod
    def create(
        cls,
        folder: str | Path,
        *,
        host: str = DEFAULT_HOST,
        net: str | None = None,
        memory: int | None = None,
        flashback: bool = False,
        image_size: int | None = None,
        seed: int = 0,
        holdout: float = 0.1,
        held_out_per_class: int = 50,
        settings: Mapping[str, Any] | None = None,
        device: str | torch.device = "auto",
    ) -> Learner:
        """Make the folder of a model that has learned nothing yet.

        Args:
            folder: A folder that is new or empty.
            host: The method that learns.
            net: The network; None: a small one on a CPU, else one for the size of the images.
            memory: How many images the method may keep; None: its default.
            flashback: Whether updates are learned with flashback.
            image_size: The side that images are resized to; None: chosen by the first images.
            seed: Decides everything random.
            holdout: The share of the images of each class that is held out to judge updates; 0 trains on all.
            held_out_per_class: The most held-out images that are kept of a class.
            settings: Further settings by dotted key, such as {"training.epochs": 40}.
            device: "cpu", "cuda", or "auto" for a GPU if there is one.

        Returns:
            The learner.

        Raises:
            FlashbackError: If the folder holds a model or other files, or a setting is not valid.
        """
        require(0 <= holdout < 1, f"holdout is a share from 0 to below 1, not {holdout}")
        require(held_out_per_class >= 1, f"held_out_per_class must be at least 1, not {held_out_per_class}")
        require(image_size is None or image_size >= 8, f"image_size must be at least 8, not {image_size}")
        device = select_device(device)
        choices: dict[str, Any] = {"training.epochs": EPOCHS}
        choices |= {"training.momentum": DEFAULT_MOMENTUM} if host == DEFAULT_HOST else {}
        choices |= {} if device.type == "cuda" else {"host.net": CPU_NET}
        choices |= {} if net is None else {"host.net": net}
        choices |= {} if memory is None else {"host.memory_size": memory}
        config = configure(host, BENCHMARK, flashback=flashback, seed=seed, settings={**choices, **(settings or {})})
        require(
            HOSTS[host].task_by_task,
            f"{host} needs all tasks at once, so it cannot learn update by update; choose another",
        )
        path = Path(folder).expanduser()
        model = ModelFolder(path)
        model.check_new_folder()
        with model.lock():
            model.check_new_folder()
            model.write_settings(ModelSettings(to_dict(config), image_size, holdout, held_out_per_class))
        return cls(path, device)

    # ------------------------------------------------------------ learning

    def learn(
        self,
        images: Source,
        *,
        max_drop: float | None = None,
        max_class_drop: float | None = None,
        observers: Sequence[Observer] = (),
        progress: bool = False,
    ) -> Version:
        """Learn images of new classes, of known classes, or of both, and judge the result.

        An interrupted update is continued exactly by the same call.

        Args:
            images: A folder with one folder per class, an .npz, a .csv of paths and labels, a data set of torchvision
                or Hugging Face, a mapping of "train" and "test" to such data sets, or a mapping of class names
                to arrays. A split into train and test is used; otherwise a share of the images of each class is held
                out.
            max_drop: Refuse the update if the known classes lose more than this many points of mean accuracy.
            max_class_drop: Refuse it if one of them loses more than this many points.
            observers: Functions that are called with every event of the training.
            progress: Show a progress bar while images are read, if there is a terminal.

        Returns:
            The new version. It is in use if its `decision` is "accepted"; a refused one is kept, but nothing changes.

        Raises:
            FlashbackError: If there are no images to learn from, or the host cannot learn them.
            Interrupted: If a signal stopped the update; the same call continues it.
        """
        for name, limit in (("max_drop", max_drop), ("max_class_drop", max_class_drop)):
            is_limit = limit is None or (math.isfinite(limit) and limit >= 0)
            require(is_limit, f"{name} (--{name.replace('_', '-')}) is a number of points, 0 or more, not {limit}")
        with self.folder.lock():
            return self._learn(images, (max_drop, max_class_drop), observers, progress)

    def _learn(
        self, source: Source, limits: tuple[float | None, float | None], observers: Sequence[Observer], progress: bool
    ) -> Version:
        recovered = self._recover()
        listed, tests = list_parts(source)
        parent = self._current()
        known = parent.classes if parent else ()
        shape = cast(Shape, parent.image_shape) if parent else image_shape_for(listed, self.settings.image_size)
        train_images = collect(listed, shape, known, progress)
        test_images = collect(tests, shape, known, progress) if tests else None
        self.skipped = {**train_images.skipped, **(test_images.skipped if test_images else {})}
        content = digest_of([train_images.digest(), test_images.digest() if test_images else None])
        for version in (recovered, parent):
            if version is not None and version.content == content:
                return version  # these images are learned already
        update = self._prepare(parent, train_images, test_images, content)
        self._begin(update)
        trainer, seconds = self._train(update, observers)
        version = self._judge(update, trainer.host, limits, seconds)
        self.folder.add(version, trainer.state(), update.sample)
        self._finish(version)
        return version

    def _recover(self) -> Version | None:
        """Finish an update that was stopped after its version had been stored."""
        number = self.folder.unfinished()
        if number is None or number not in self.folder.numbers():
            return None
        version = self.folder.version(number)
        self._finish(version)
        return version

    def _prepare(
        self, parent: Version | None, train_images: LabelledImages, test_images: LabelledImages | None, content: str
    ) -> Update:
        known, number = parent.classes if parent else (), 1 + max(self.folder.numbers(), default=0)
        classes = (*known, *train_images.new)
        column = {name: k for k, name in enumerate(classes)}
        labels = torch.tensor([column[name] for name in train_images.names])
        earlier = self.folder.held_out(parent) if parent else no_images(train_images.x)
        if test_images is not None:
            stray = sorted(set(test_images.names) - set(classes))
            require(
                not stray, f"there are test images of '{stray[0] if stray else ''}' but no training images; add some"
            )
            train = Images(train_images.x, labels)
            held_out = Images(
                test_images.x, torch.tensor([column[name] for name in test_images.names], dtype=torch.int64)
            )
            cuts = {**(parent.cuts if parent else {}), **dict.fromkeys(train_images.new, self.settings.holdout)}
        else:
            train, held_out, cuts = split(
                Images(train_images.x, labels), earlier, classes, parent.cuts if parent else {}, self.settings.holdout,
                self.config.seed,
            )  # fmt: skip
        revisited = tuple(sorted({int(label) for label in torch.unique(labels) if label < len(known)}))
        sample = limited(
            joined(earlier, without(held_out, earlier)), self.settings.held_out_per_class, self.config.seed, number
        )
        mean, std = (parent.mean, parent.std) if parent else measure_channels(train.x)
        # Known classes are judged on images of earlier updates, so that wrong labels cannot hide what they spoil.
        of_new_classes = ~torch.isin(held_out.y, earlier.y)
        evaluation = joined(earlier, Images(held_out.x[of_new_classes], held_out.y[of_new_classes]))
        version = Version(
            number=number,
            parent=parent.number if parent else None,
            date="",
            images=len(train),
            held_out=len(held_out),
            skipped=len(self.skipped),
            copies=0,
            classes=classes,
            cuts=cuts,
            new=train_images.new,
            revisited=tuple(classes[label] for label in revisited),
            judged={
                classes[label]: int((evaluation.y == label).sum()) for label in torch.unique(evaluation.y).tolist()
            },
            before={},
            after={},
            decision=ACCEPTED,
            reason="",
            seconds=0.0,
            tasks=(*(parent.tasks if parent else ()), PastTask(len(train_images.new), revisited)),
            image_shape=tuple(train.x.shape[1:]),
            mean=mean,
            std=std,
            content=content,
            digest=self.folder.digest(number, parent.digest if parent else None, content),
        )
        return Update(version, parent, train, evaluation, sample)

    def _begin(self, update: Update) -> None:
        """Write down what is being learned; an unfinished update of the same images continues.

        One of other images is refused, unless it was killed before its first checkpoint and has nothing to lose.
        """
        folder, record = self.folder.update, self.folder.update / UPDATE_RECORD
        saved = Checkpoints(folder / CHECKPOINT, self.config.checkpoint).manifests()
        if record.exists() and saved:
            require(
                self.folder.read(record).get("digest") == update.version.digest,
                f"{printable(folder)} holds an unfinished update with other images; repeat its command to finish it, "
                "or remove that folder to drop it",
            )
        else:
            make_folder(folder)
            self.folder.write(record, {"number": update.version.number, "digest": update.version.digest})

    def _train(self, update: Update, observers: Sequence[Observer]) -> tuple[Trainer, float]:
        precision = select_precision(self.config, self.device)
        checkpoints = Checkpoints(self.folder.update / CHECKPOINT, self.config.checkpoint, run=update.version.digest)
        started = time.monotonic()
        with (
            self._dropping_failed(checkpoints),
            prepared_device(self.config, self.device, precision),
            explaining_failures(),
        ):
            benchmark, state = update.benchmark(), checkpoints.load()
            if state is None and update.parent is not None:
                state = fresh(self.folder.state(update.parent))
            method = build_method(self.config, benchmark, self.device, pretrained=state is None)
            trainer = Trainer(method, benchmark, observers, checkpoints, precision)
            if state is not None:
                trainer.resume(state)
            trainer.method.enter(benchmark.tasks[-1])  # refuses what the host cannot learn
            with checkpoints.stop_on_signals():
                trainer.run()
        return trainer, time.monotonic() - started

    @contextmanager
    def _dropping_failed(self, checkpoints: Checkpoints) -> Iterator[None]:
        """Drop an update that fails before its first checkpoint, so that another one may follow."""
        try:
            yield
        except FlashbackError:
            if not checkpoints.manifests():
                self.folder.drop_update()
            raise

    def _judge(self, update: Update, host: Host, limits: tuple[float | None, float | None], seconds: float) -> Version:
        images, classes, before = update.evaluation, update.version.classes, dict[str, float]()
        if update.parent is not None:
            known = images.y < len(update.parent.classes)
            old = Images(images.x[known], images.y[known])
            before = accuracy_by_class(self.load(update.parent.number).host, old, classes)
        host.learned = host.task.classes.stop
        after = accuracy_by_class(host.eval(), images, classes)
        date = datetime.now(UTC).isoformat(timespec="seconds")
        copies = count_copies(update.train, host.memory, joined(images, update.sample))
        version = replace(
            update.version, date=date, copies=copies, before=before, after=after, seconds=round(seconds, 1)
        )
        reason = reason_to_refuse(version, *limits)
        return replace(version, decision=REFUSED, reason=reason) if reason else version

    def _finish(self, version: Version) -> None:
        if version.decision == ACCEPTED:
            self.folder.set_current(version.number)
        self.folder.drop_update()

    # ------------------------------------------------------------ use

    def _current(self) -> Version | None:
        number = self.folder.current
        return None if number is None else self.folder.version(number)

    def load(self, version: int | None = None) -> Model:
        """Load the model of a version, ready to predict.

        Args:
            version: Its number; None: the version in use.

        Returns:
            The model.

        Raises:
            FlashbackError: If the model has learned nothing yet, or the version does not exist or was removed.
        """
        number = self.folder.current if version is None else version
        require(number is not None, f"the model in {printable(self.folder.path)} has learned nothing yet")
        assert number is not None
        record = self.folder.version(number)
        with prepared_device(self.config, self.device, "fp32"), explaining_failures():
            benchmark = open_benchmark(record)
            trainer = Trainer(build_method(self.config, benchmark, self.device, pretrained=False), benchmark)
            trainer.resume(self.folder.state(record))
        trainer.host.learned = trainer.host.task.classes.stop
        return replace(Model.of(trainer.host.eval()), names_by_label=())  # its classes are known by name alone

    def predict(self, images: Source, *, top: int = 3) -> Predictions:
        """Predict the classes of images with the version in use; see `predict_files`.

        Args:
            images: The images.
            top: How many classes to name for each image.
        """
        return predict_files(self.load(), images, top=top)

    def evaluate(self, images: Source) -> FileEvaluation:
        """Measure the accuracy of the version in use; see `evaluate_files`.

        Args:
            images: Labelled images.
        """
        return evaluate_files(self.load(), images)

    def export(self, file: str | Path) -> None:
        """Write the version in use to one file; see `export_model`.

        Args:
            file: Its path, which ends in .onnx or .pt2.
        """
        export_model(self.load(), file)

    # ------------------------------------------------------------ versions

    def history(self) -> list[Version]:
        """Return all versions, oldest first, also those that were refused or whose model was removed.

        A version whose record is damaged is left out with a warning.
        """
        versions = []
        for number in self.folder.numbers():
            try:
                versions.append(self.folder.version(number))
            except FlashbackError as problem:
                warnings.warn(f"version {number} is left out: {problem}", stacklevel=2)
        return versions

    @property
    def current(self) -> int | None:
        """The number of the version in use; None before the first one."""
        return self.folder.current

    def rollback(self, version: int | None = None) -> Version:
        """Use another version from now on; the next update continues it.

        Args:
            version: Its number; None: the parent of the version in use.

        Returns:
            The version that is in use now.

        Raises:
            FlashbackError: If there is no such version, its model was removed, or its files are damaged.
        """
        with self.folder.lock():
            if version is None:
                current = self._current()
                require(
                    current is not None and current.parent is not None,
                    "there is no version before this one; see `flashback history`",
                )
                assert current is not None
                version = current.parent
            assert version is not None
            target = self.folder.version(version)
            self.folder.state(target)
            self.folder.held_out(target)
            require(
                not self.folder.update.exists(),
                f"{printable(self.folder.update)} holds an unfinished update; finish it, or remove that folder, first",
            )
            self.folder.set_current(version)
        return target

    def prune(self, keep: int = 5) -> int:
        """Remove the models of all but the newest versions; their records stay in the history.

        Args:
            keep: How many models to keep beside the one in use.

        Returns:
            The bytes freed.

        Raises:
            FlashbackError: If `keep` is negative.
        """
        require(keep >= 0, f"keep must not be negative, not {keep}")
        with self.folder.lock():
            self._recover()
            stored = [n for n in self.folder.numbers() if self.folder.has_model(n) and n != self.folder.current]
            return sum(self.folder.remove_model(number) for number in stored[: max(0, len(stored) - keep)])


# ---------------------------------------------------------------- an update


@dataclass(frozen=True)
class Update:
    """The images of an update, the model that they go to, and the record of the new version before it is judged."""

    version: Version
    parent: Version | None
    train: Images
    evaluation: Images  # held-out images: those kept by the parent, and those of this update of other classes
    sample: Images  # the share of them that the new version keeps

    def benchmark(self) -> Benchmark:
        """The updates so far as tasks without images, and this one."""
        classes, tasks = self.version.classes, self.version.tasks
        past, columns = (
            past_tasks(tasks[:-1], self.version.image_shape),
            range(len(classes) - tasks[-1].new, len(classes)),
        )
        task = Task(len(past), columns, self.train, no_images(self.train.x), tasks[-1].revisited)
        return benchmark_of((*past, task), self.version)


def fresh(state: RunState) -> RunState:
    """The state at the end of a version, as the start of an update, without its measurements."""
    return RunState(state.tensors, {**state.values, "history": asdict(History())})


def past_tasks(tasks: Sequence[PastTask], shape: Sequence[int]) -> list[Task]:
    blank, start, past = torch.zeros(0, *shape, dtype=torch.uint8), 0, list[Task]()
    for index, task in enumerate(tasks):
        classes = range(start, start + task.new)
        past.append(Task(index, classes, no_images(blank), no_images(blank), task.revisited))
        start = classes.stop
    return past


def benchmark_of(tasks: Sequence[Task], version: Version) -> Benchmark:
    names, order = version.classes, tuple(range(len(version.classes)))
    return Benchmark(
        BENCHMARK, BENCHMARK, order, tuple(tasks), version.mean, version.std, names, version.digest, is_open=True
    )


def open_benchmark(version: Version) -> Benchmark:
    """The updates up to a version, without images."""
    return benchmark_of(past_tasks(version.tasks, version.image_shape), version)


def accuracy_by_class(host: Host, images: Images, names: Sequence[str]) -> dict[str, float]:
    """Percent correct of each class that has images."""
    if not len(images):
        return {}
    correct = host.predict(images) == images.y
    accuracies = {}
    for label in torch.unique(images.y).tolist():
        accuracies[names[label]] = 100.0 * float(correct[images.y == label].double().mean())
    return accuracies


def reason_to_refuse(version: Version, max_drop: float | None, max_class_drop: float | None) -> str:
    """Say which limit an update breaks; empty if none."""
    drop = version.drop
    if max_drop is not None and drop is not None and drop > max_drop:
        return f"the known classes lost {drop:.1f} points of mean accuracy, more than {max_drop:g}"
    losses = {name: version.before[name] - version.after[name] for name in version.known}
    worst = max(losses, key=lambda name: losses[name], default="")
    if max_class_drop is not None and worst and losses[worst] > max_class_drop:
        return f"'{worst}' lost {losses[worst]:.1f} points, more than {max_class_drop:g}"
    return ""
