"""Does a host keep the promises that comparisons rest on? Short runs on made images tell."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flashback.benchmarks import Benchmark, load_benchmark
from flashback.config import RunConfig
from flashback.errors import FlashbackError
from flashback.hosts.base import HOSTS, Host
from flashback.hosts.external import HostFiles, find_hosts, in_one_line
from flashback.hosts.stages import Stage
from flashback.recipes import configure
from flashback.records import dotted
from flashback.training.building import build_method
from flashback.training.step import checked
from flashback.training.trainer import Event, Position, RunState, Trainer

TASKS = (2, 3, 2)  # classes of each: tasks of unequal size
MADE: dict[str, Any] = {
    "host.net": "smallcnn",
    "training.epochs": 2,
    "training.batch_size": 8,
    "training.lr": 0.05,
    "training.momentum": 0.9,
    "training.schedule": "cosine",  # which each phase goes through whole
    "flashback.epochs": 1,
    "flashback.alpha": 0.1,
}


@dataclass(frozen=True)
class Check:
    """A promise, and what a host did instead; None where it kept it."""

    promise: str
    problem: str | None

    @property
    def kept(self) -> bool:
        return self.problem is None


class Broken(Exception):  # noqa: N818 - it is the answer, not an error
    """What a host did instead of what was promised."""


def check_host(
    name: str,
    *,
    settings: Mapping[str, Any] | None = None,
    host_file: HostFiles = None,
    watch: Callable[[Check], None] = lambda check: None,
) -> list[Check]:
    """Train a host a few steps at a time, on the CPU and on made images, and see whether it keeps each promise.

    Settings are those of the short runs; a host that cannot be trained at all breaks the first promise and is not
    asked for the others. `watch` is told of every promise when it has been looked into.
    """
    find_hosts(host_file)
    trial = Trial(name, dict(settings or {}))
    trial.config()  # a setting that makes no sense is refused, not found broken
    found: list[Check] = []
    for promise in PROMISES if HOSTS[name].has_knowledge else PROMISES_OF_ANY_HOST:
        found.append(Check(promise.__doc__ or "", problem_with(promise, trial)))
        watch(found[-1])
        if not found[0].kept:
            break
    return found


def problem_with(promise: Callable[[Trial], None], trial: Trial) -> str | None:
    try:
        promise(trial)
    except Broken as broken:
        return str(broken)
    except FlashbackError as error:
        return str(error)
    except Exception as error:
        return f"{in_one_line(error)} ({place_of(error, HOSTS[trial.name])})"
    return None


def place_of(error: Exception, host: type[Host]) -> str:
    """The last line that was on its way where the host is written; the last of all for a host of the package."""
    frames, folders = traceback.extract_tb(error.__traceback__), set(folders_of(host))
    last = ([frame for frame in frames if folder_of(frame.filename) in folders] or frames)[-1]
    return f"{last.filename}:{last.lineno}"


def folders_of(host: type[Host]) -> Iterator[Path]:
    """Where the code of a host from outside lies, told by its functions: a class of a notebook has no file."""
    for cls in host.__mro__:
        if cls.__module__.split(".")[0] not in ("flashback", "torch"):
            functions = filter(inspect.isfunction, map(inspect.unwrap, filter(callable, vars(cls).values())))
            yield from (folder_of(function.__code__.co_filename) for function in functions)


def folder_of(file: str) -> Path:
    return Path(file).resolve().parent


def short_settings(host: type[Host]) -> dict[str, Any]:
    """Settings that make any host quick on a few images: a small memory, short further stages."""
    small = {"memory_size": 21, "minibatch": 6, "contrastive_batch": 6}
    names = [field.name for field in fields(host.Settings)]
    short = {name: 1 for name in names if name.endswith("_epochs")}
    return {f"host.{name}": value for name, value in {**small, **short}.items() if name in names}


def made_images(classes: int, side: int = 32) -> dict[str, Any]:
    """Classes that a small network can tell apart: a fixed random pattern for each, plus noise."""
    draw = np.random.default_rng(7)
    patterns = draw.integers(40, 216, (classes, side, side, 3))
    arrays: dict[str, Any] = {}
    for part, count in (("train", 10), ("test", 4)):
        labels = np.arange(classes).repeat(count)
        noise = draw.integers(-40, 40, (len(labels), side, side, 3))
        arrays |= {f"x_{part}": (patterns[labels] + noise).clip(0, 255).astype(np.uint8), f"y_{part}": labels}
    return arrays


# ---------------------------------------------------------------- short runs


@dataclass(frozen=True)
class Ending:
    """What a run ended with."""

    results: dict[str, Any]
    weights: dict[str, Tensor]
    budget: list[dict[str, Any]]
    bytes: dict[str, int]
    terms: dict[str, float]  # of its losses, the largest mean of an epoch

    @classmethod
    def of(cls, trainer: Trainer) -> Ending:
        """Train to the end."""
        terms: dict[str, float] = {}

        def note(event: Event) -> None:
            for name, value in event.get("losses", {}).items():
                terms[name] = max(abs(value), terms.get(name, 0.0))

        trainer.observers = [*trainer.observers, note]
        results = trainer.run().as_dict()
        weights = {name: tensor.clone() for name, tensor in trainer.host.state_dict().items()}
        return cls(results, weights, trainer.history.budget, trainer.history.bytes, terms)

    def differs_from(self, other: Ending) -> str | None:
        """The first thing that is not the same, bit for bit."""
        if self.results != other.results:
            return "accuracies"
        if self.weights.keys() != other.weights.keys():
            return "the names in its state_dict"
        differing = (name for name, tensor in self.weights.items() if not torch.equal(tensor, other.weights[name]))
        return next(differing, None)


@dataclass
class Moments:
    """A checkpointer that copies the state of a run at some moments and lets it go on."""

    states: list[RunState]
    wanted: Callable[[Position], bool]

    def due(self, position: Position) -> bool:
        return self.wanted(position)

    def save(self, state: RunState) -> None:
        self.states.append(deepcopy(RunState({k: v.clone() for k, v in state.tensors.items()}, state.values)))


@dataclass
class Trial:
    """A host under test, and the short runs of it that were made so far."""

    name: str
    settings: dict[str, Any]

    @cached_property
    def benchmark(self) -> Benchmark:
        return load_benchmark(made_images(sum(TASKS)), sizes=TASKS)

    @property
    def flashback(self) -> bool:
        return HOSTS[self.name].has_knowledge

    def config(self, flashback: bool = False, **changes: Any) -> RunConfig:
        own = {**dotted(self.settings), **{key.replace("__", "."): value for key, value in changes.items()}}
        made = {**MADE, "training.momentum": 0.0} if own.get("training.optimiser", "sgd") != "sgd" else MADE
        settings = {**made, **short_settings(HOSTS[self.name]), **own}
        return configure(self.name, self.benchmark.name, flashback=flashback, settings=settings)

    def train(
        self,
        config: RunConfig,
        checkpointer: Moments | None = None,
        state: RunState | None = None,
        change: Callable[[Host, Stage], Stage] | None = None,
    ) -> Ending:
        """Train to the end; `change` takes every stage of the host and gives one to run in its place."""
        method = build_method(config, self.benchmark, "cpu")
        if change is not None:
            host, own = method.host, method.host.stages
            host.stages = lambda: [change(host, stage) for stage in own()]  # type: ignore[method-assign]
        trainer = Trainer(method, self.benchmark, checkpointer=checkpointer)
        if state is not None:
            trainer.resume(state)
        return Ending.of(trainer)

    @cached_property
    def looked_into(self) -> tuple[Ending, Gradients, Still]:
        gradients, still = Gradients(), Still()
        ending = self.train(
            self.config(), change=lambda host, stage: still.watched(host, gradients.watched(host, stage))
        )
        return ending, gradients, still

    @property
    def alone(self) -> Ending:
        return self.looked_into[0]

    @property
    def gradients(self) -> Gradients:
        """Of the host alone."""
        return self.looked_into[1]

    @property
    def still(self) -> Still:
        return self.looked_into[2]

    @cached_property
    def whole(self) -> Ending:
        """With flashback, where the host can have it."""
        return self.train(self.config(self.flashback)) if self.flashback else self.alone


# ---------------------------------------------------------------- a look into the steps of a run


@dataclass
class Gradients:
    """Which parameters ask for gradients in a run, by name, and which of them its stages train."""

    asking: set[str] = field(default_factory=set)
    trained: set[str] = field(default_factory=set)
    strangers: set[tuple[int, ...]] = field(default_factory=set)  # shapes of those that are none of the host's

    def watched(self, host: Host, stage: Stage) -> Stage:
        def losses(step: Any) -> Mapping[str, Tensor]:
            terms = checked(stage.losses(step), host.settings.name)
            self.note(dict(host.named_parameters()), stage.parameters(), terms.values())
            return terms

        return replace(stage, losses=losses)

    def note(self, own: Mapping[str, Tensor], trained: Iterable[Tensor], terms: Iterable[Tensor]) -> None:
        known, at_work = {id(parameter) for parameter in own.values()}, {id(parameter) for parameter in trained}
        self.asking |= {name for name, parameter in own.items() if parameter.requires_grad}
        self.trained |= {name for name, parameter in own.items() if id(parameter) in at_work}
        self.strangers |= {tuple(leaf.shape) for leaf in leaves(terms) if id(leaf) not in known | at_work}


@dataclass
class Still:
    """What of the stable knowledge changes while the main stage trains, by name."""

    moved: set[str] = field(default_factory=set)

    def watched(self, host: Host, stage: Stage) -> Stage:
        kept: dict[str, Tensor] = {}

        def begin() -> None:
            stage.begin()
            kept.update({name: tensor.clone() for name, tensor in self.held(host).items()})

        def end() -> None:
            self.moved |= {name for name, tensor in self.held(host).items() if not torch.equal(tensor, kept[name])}
            stage.end()

        return replace(stage, begin=begin, end=end) if stage.main else stage

    @staticmethod
    def held(host: Host) -> dict[str, Tensor]:
        return {} if host.stable is None else dict(host.stable.state_dict())


def leaves(terms: Iterable[Tensor]) -> Iterator[nn.Parameter]:
    """The parameters that a backward pass from these would reach."""
    waiting, seen = [term.grad_fn for term in terms], set[Any]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, nn.Parameter):
            yield variable
        waiting += [following for following, _ in node.next_functions]


def varied(part: str, host: Host, stage: Stage) -> Stage:
    """The stage with other values in what the host keeps, from the second task on."""

    def begin() -> None:
        stage.begin()
        kept = getattr(host, part)
        if host.task.index > 0 and kept is not None:
            vary(kept.state_dict().values())

    return replace(stage, begin=begin) if stage.main else stage


@torch.no_grad()
def vary(tensors: Iterable[Tensor]) -> None:
    """Move numbers a little, up so that variances stay above 0, and turn stored images into their negatives."""
    generator = torch.Generator().manual_seed(1)
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.numel():
            tensor += 0.1 * (tensor.abs().mean() + 0.01) * torch.rand(tensor.shape, generator=generator)
        elif tensor.dtype == torch.uint8:
            tensor.bitwise_not_()


# ---------------------------------------------------------------- the promises


def learns(trial: Trial) -> None:
    """It learns three tasks of unequal size and gives every class a score"""
    config = trial.config()
    scores = {
        name: classifier(torch.zeros(2, *trial.benchmark.image_shape))
        for name, classifier in build_method(config, trial.benchmark, "cpu").host.eval().classifiers().items()
    }
    for name, given in scores.items():
        if given.ndim != 2 or given.shape[1] < trial.benchmark.tasks[0].seen.stop:
            raise Broken(
                f"its classifier '{name}' gives {list(given.shape)} for two images, not a column for every class"
            )
    rows = [len(row) for row in trial.alone.results["class_incremental"]["matrix"]]
    if rows != [1, 2, 3]:
        raise Broken(f"after its tasks it was tested on {rows} of them")


def repeats(trial: Trial) -> None:
    """A seed decides a run: the same again ends the same, bit for bit"""
    if differing := trial.train(trial.config(trial.flashback)).differs_from(trial.whole):
        raise Broken(f"the second run ends with other values ({differing}); draw from self.generator or torch alone")


def resumes(trial: Trial) -> None:
    """Stopped at any moment and continued, it ends as if nobody had stopped it"""
    checkpointer = Moments([], lambda at: at.step in (0, 1))  # every transition, and inside every epoch
    if differing := trial.train(trial.config(trial.flashback), checkpointer).differs_from(trial.whole):
        raise Broken(f"being saved changes it ({differing})")
    for state in checkpointer.states:
        if differing := trial.train(trial.config(trial.flashback), state=state).differs_from(trial.whole):
            raise Broken(
                f"stopped {place_in_run(state)}, it ends with other values ({differing}); what it remembers between "
                "steps belongs in its state_dict (parameters and buffers)"
            )


def place_in_run(state: RunState) -> str:
    at = state.values["position"]
    where = [f"task {at['task'] + 1}", f"stage {at['stage'] + 1}", f"epoch {at['epoch'] + 1}", f"step {at['step']}"]
    return "in " + ", ".join(where)


def trains_all(trial: Trial) -> None:
    """What asks for gradients is trained"""
    if missed := sorted(trial.gradients.asking - trial.gradients.trained):
        raise Broken(
            f"no stage trains {' and '.join(missed)}; let trained_parameters() or the stage's parameters name it, or "
            "say requires_grad_(False)"
        )
    if strangers := sorted(trial.gradients.strangers):
        raise Broken(
            f"a loss reaches parameters of shape {' and '.join(map(str, map(list, strangers)))} that the host does not "
            "know; make each module an attribute of the host in build(), several in an nn.ModuleList"
        )


def stands_aside(trial: Trial) -> None:
    """Flashback of nothing (E1 = 0, alpha_p = 0) is the host, bit for bit"""
    nothing = trial.train(trial.config(True, flashback__epochs=0, flashback__alpha=0.0))
    if differing := nothing.differs_from(trial.alone):
        raise Broken(f"the two end with other values ({differing})")


def goes_back(trial: Trial) -> None:
    """After phase 1 it is back where the task began: with alpha_p = 0 it is the host trained for phase 2 alone"""
    restarted = trial.train(trial.config(True, flashback__alpha=0.0, training__epochs=3, flashback__epochs=1))
    shorter = trial.train(trial.config(training__first_epochs=3, training__epochs=2))
    if differing := restarted.differs_from(shorter):
        raise Broken(f"something of phase 1 is left ({differing}); what steps change belongs in its state_dict")


def is_held(trial: Trial) -> None:
    """Stable knowledge changes what it learns"""
    if trial.alone.terms.get("stability", 1.0) == 0.0:  # hosts that replay may have no such term
        raise Broken("its stability loss is always 0; does anything fill the stable knowledge before a task begins?")
    kept = {name.split(".")[0] for name in trial.alone.weights}
    part = next((part for part in ("stable", "memory") if part in kept), None)
    if part is None:
        return  # it keeps its knowledge in modules of its own
    other = trial.train(trial.config(), change=partial(varied, part))
    left = trial.gradients.trained & trial.alone.weights.keys()
    if all(torch.equal(trial.alone.weights[name], other.weights[name]) for name in left):
        raise Broken(
            f"whatever self.{part} holds, it learns the same; does a loss look at it, as stability(step) does?"
        )


def stands_still(trial: Trial) -> None:
    """Stable knowledge stands still while a task is learned"""
    if moved := sorted(trial.still.moved):
        raise Broken(
            f"{' and '.join(moved[:3])} of self.stable changes from step to step; only begin() and end() may "
            "change it, and as a Knowledge it would be in evaluation mode by itself"
        )


def is_pulled(trial: Trial) -> None:
    """Plastic knowledge changes what it learns"""
    unpulled = trial.train(trial.config(True, flashback__alpha=0.0))
    if trial.whole.differs_from(unpulled) is None:
        raise Broken("with and without its weight a run ends the same; does distance() look at what it is given?")


def costs_the_same(trial: Trial) -> None:
    """Both arms take the same steps on the same number of images"""
    for what in ("steps", "images"):
        alone, whole = (list(spent_by_task(ending, what)) for ending in (trial.alone, trial.whole))
        if alone != whole:
            raise Broken(f"{what} by task: {alone} alone, {whole} with flashback")


def spent_by_task(ending: Ending, what: str) -> Iterator[int]:
    for task in range(len(TASKS)):
        yield sum(entry[what] for entry in ending.budget if entry["task"] == task)


def keeps_little(trial: Trial) -> None:
    """Plastic knowledge takes at most the bytes of stable knowledge"""
    stable, plastic = (trial.whole.bytes.get(kind, 0) for kind in ("stable", "plastic"))
    if not 0 < plastic <= stable:
        raise Broken(f"{plastic:,} bytes of plastic knowledge, {stable:,} of stable")


PROMISES_OF_ANY_HOST: Sequence[Callable[[Trial], None]] = (learns, trains_all, repeats, resumes)
PROMISES: Sequence[Callable[[Trial], None]] = (
    *PROMISES_OF_ANY_HOST,
    stands_aside,
    goes_back,
    is_held,
    stands_still,
    is_pulled,
    costs_the_same,
    keeps_little,
)
