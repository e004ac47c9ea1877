"""Host conformance: short runs that test the promises which comparisons rely on (`flashback check`)."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
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

TASK_SIZES = (2, 3, 2)  # unequal on purpose
DEFAULTS: dict[str, Any] = {
    "host.net": "smallcnn",
    "training.epochs": 2,
    "training.batch_size": 8,
    "training.lr": 0.05,
    "training.momentum": 0.9,
    "training.schedule": "cosine",  # each phase goes through the whole schedule
    "flashback.epochs": 1,
    "flashback.alpha": 0.1,
}
WITHOUT_PLASTIC: dict[str, Any] = {"flashback__alpha": 0.0, "flashback__merge": 0.0, "flashback__start": 0.0}


@dataclass(frozen=True)
class Check:
    """The result for one promise; `problem` is None if the host keeps it."""

    promise: str
    problem: str | None

    @property
    def kept(self) -> bool:
        return self.problem is None


def check_host(
    name: str,
    *,
    settings: Mapping[str, Any] | None = None,
    host_file: HostFiles = None,
    watch: Callable[[Check], None] = lambda check: None,
    benchmark: Benchmark | None = None,
) -> list[Check]:
    """Test on the CPU, with short runs, whether a host keeps its promises.

    Args:
        name: The registered name of the host.
        settings: Settings of the short runs, by dotted key.
        host_file: Python files to import first, which register the host.
        watch: Called with each result as soon as it is there.
        benchmark: The tasks to train on; None: a few generated images of 32 x 32 pixels.

    Returns:
        One result per promise. A host that cannot be trained breaks the first promise and is not asked for the others.

    Raises:
        FlashbackError: The host is unknown, or a setting is.
    """
    find_hosts(host_file)
    trial = Trial(name, dict(settings or {}), benchmark or load_benchmark(generate_images(), sizes=TASK_SIZES))
    trial.config()  # refuses bad settings here, before any promise is tested
    checks: list[Check] = []
    for promise in PROMISES if HOSTS[name].has_knowledge else PROMISES_OF_ANY_HOST:
        checks.append(Check(promise.__doc__ or "", problem_with(promise, trial)))
        watch(checks[-1])
        if not checks[0].kept:
            break
    return checks


def problem_with(promise: Promise, trial: Trial) -> str | None:
    try:
        return promise(trial)
    except FlashbackError as error:
        return str(error)
    except Exception as error:
        return f"{in_one_line(error)} ({origin_of(error, HOSTS[trial.name])})"


def origin_of(error: Exception, host: type[Host]) -> str:
    """Return the last line of the traceback in the module of an external host; for a built-in one the last of all."""
    modules = {cls.__module__ for cls in host.__mro__ if cls.__module__.split(".")[0] not in ("flashback", "torch")}
    frames = list(traceback.walk_tb(error.__traceback__))
    frame, line = ([pair for pair in frames if pair[0].f_globals.get("__name__") in modules] or frames)[-1]
    return f"{frame.f_code.co_filename}:{line}"


def short_settings(host: type[Host]) -> dict[str, Any]:
    small = {"memory_size": 21, "minibatch": 6, "contrastive_batch": 6, "projection": 40}
    names = [setting.name for setting in fields(host.Settings)]
    short = {name: 1 for name in names if name.endswith("_epochs")}
    return {f"host.{name}": value for name, value in {**small, **short}.items() if name in names}


def generate_images(classes: int = sum(TASK_SIZES), side: int = 32) -> dict[str, Any]:
    draw = np.random.default_rng(7)
    patterns = draw.integers(40, 216, (classes, side, side, 3))
    arrays: dict[str, Any] = {}
    for part, count in (("train", 10), ("test", 4)):
        labels = np.arange(classes).repeat(count)
        noise = draw.integers(-40, 40, (len(labels), side, side, 3))
        arrays |= {f"x_{part}": (patterns[labels] + noise).clip(0, 255).astype(np.uint8), f"y_{part}": labels}
    return arrays


@dataclass(frozen=True)
class Ending:
    """The end of a run: results, final state, budget, bytes of knowledge, and the sum of each loss term."""

    results: dict[str, Any]
    weights: dict[str, Tensor]
    budget: list[dict[str, Any]]
    bytes: dict[str, int]
    terms: Mapping[str, float]

    @classmethod
    def of(cls, trainer: Trainer) -> Ending:
        terms = Counter[str]()

        def note_losses(event: Event) -> None:
            terms.update({name: abs(value) for name, value in event.get("losses", {}).items()})

        trainer.observers = [*trainer.observers, note_losses]
        results = trainer.run().as_dict()
        weights = {name: tensor.clone() for name, tensor in trainer.host.state_dict().items()}
        return cls(results, weights, trainer.history.budget, trainer.history.bytes, terms)

    def differs_from(self, other: Ending) -> str | None:
        return "accuracies" if self.results != other.results else first_difference(self.weights, other.weights)


def first_difference(tensors: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> str | None:
    if tensors.keys() != others.keys():
        return "the names in its state_dict"
    return next((name for name, tensor in tensors.items() if not torch.equal(tensor, others[name])), None)


def state_difference(state: RunState, other: RunState) -> str | None:
    """Compare host, flashback and accuracies; a wrong optimiser or generator shows in these later."""
    if state.values["history"]["matrices"] != other.values["history"]["matrices"]:
        return "accuracies"
    parts = ({k: v for k, v in s.tensors.items() if k.startswith(("host.", "method."))} for s in (state, other))
    return first_difference(*parts)


class Interruption(BaseException):
    """Ends a run at once."""


@dataclass
class StateRecorder:
    """A checkpointer that copies the state at every transition and after the first step of every epoch."""

    states: list[RunState] = field(default_factory=list)
    interrupt: bool = False

    def due(self, position: Position) -> bool:
        return position.step in (0, 1)

    def save(self, state: RunState) -> None:
        tensors = {name: tensor.clone() for name, tensor in state.tensors.items()}
        self.states.append(RunState(tensors, deepcopy(state.values)))
        if self.interrupt:
            raise Interruption


@dataclass
class Trial:
    """A host under test, with the short runs that several promises share."""

    name: str
    settings: dict[str, Any]
    benchmark: Benchmark
    watch: Watch = field(default_factory=lambda: Watch())  # of the host alone

    @property
    def flashback(self) -> bool:
        return HOSTS[self.name].has_knowledge

    def config(self, flashback: bool = False, **changes: Any) -> RunConfig:
        overrides = {**dotted(self.settings), **{key.replace("__", "."): value for key, value in changes.items()}}
        no_momentum = {} if overrides.get("training.optimiser", "sgd") == "sgd" else {"training.momentum": 0.0}
        settings = {**DEFAULTS, **no_momentum, **short_settings(HOSTS[self.name]), **overrides}
        return configure(self.name, self.benchmark.name, flashback=flashback, settings=settings)

    def trainer(self, config: RunConfig, recorder: StateRecorder | None = None) -> Trainer:
        return Trainer(build_method(config, self.benchmark, "cpu"), self.benchmark, checkpointer=recorder)

    def train(self, config: RunConfig, change: Callable[[Host, Stage], Stage] = lambda host, stage: stage) -> Ending:
        """Train to the end; `change` may replace every stage of the host."""
        trainer = self.trainer(config)
        host, stages = trainer.host, trainer.host.stages
        host.stages = lambda: [change(host, stage) for stage in stages()]  # type: ignore[method-assign]
        return Ending.of(trainer)

    @cached_property
    def host_alone(self) -> Ending:
        return self.train(self.config(), change=self.watch.stage)

    @cached_property
    def with_flashback(self) -> Ending:
        return self.train(self.config(True)) if self.flashback else self.host_alone

    @cached_property
    def recorded(self) -> tuple[Ending, list[RunState]]:
        recorder = StateRecorder()
        return Ending.of(self.trainer(self.config(self.flashback), recorder)), recorder.states


@dataclass
class Watch:
    """What a run trains, what its losses reach, and what changes in its stable knowledge during the main stage."""

    requiring: set[str] = field(default_factory=set)  # parameters that require gradients
    trained: set[str] = field(default_factory=set)  # parameters that a stage trains
    foreign: set[tuple[int, ...]] = field(default_factory=set)  # shapes of parameters that are not the host's
    changed: set[str] = field(default_factory=set)  # tensors of the stable knowledge

    def stage(self, host: Host, stage: Stage) -> Stage:
        before: dict[str, Tensor] = {}

        def stable() -> dict[str, Tensor]:
            return {} if host.stable is None else dict(host.stable.state_dict())

        def losses(step: Any) -> Mapping[str, Tensor]:
            terms = checked(stage.losses(step), host.settings.name)
            trained, parameters = set(map(id, stage.parameters())), dict(host.named_parameters())
            known = trained | set(map(id, parameters.values()))
            self.requiring |= {name for name, parameter in parameters.items() if parameter.requires_grad}
            self.trained |= {name for name, parameter in parameters.items() if id(parameter) in trained}
            self.foreign |= {tuple(leaf.shape) for leaf in graph_leaves(terms.values()) if id(leaf) not in known}
            return terms

        def begin() -> None:
            stage.begin()
            before.update({name: tensor.clone() for name, tensor in stable().items()})

        def end() -> None:
            self.changed |= {name for name, now in stable().items() if not torch.equal(now, before[name])}
            stage.end()

        replacement = replace(stage, losses=losses)
        return replace(replacement, begin=begin, end=end) if stage.main else replacement


def graph_leaves(terms: Iterable[Tensor]) -> Iterator[nn.Parameter]:
    waiting: list[Any] = [term.grad_fn for term in terms]
    visited = {None}
    while waiting:
        if (node := waiting.pop()) not in visited:
            visited.add(node)
            waiting += [following for following, _ in node.next_functions]
            variable = getattr(node, "variable", None)
            if isinstance(variable, nn.Parameter):
                yield variable


def perturbed(part: str, host: Host, stage: Stage) -> Stage:
    """Return the stage with other values in `host.stable` or `host.memory`, from the second task on."""

    @torch.no_grad()
    def begin() -> None:
        stage.begin()
        module, generator = getattr(host, part), torch.Generator().manual_seed(1)
        for tensor in module.state_dict().values() if host.task.index > 0 and module is not None else ():
            if tensor.is_floating_point() and tensor.numel():  # upwards, so that variances stay positive
                tensor += 0.1 * (tensor.abs().mean() + 0.01) * torch.rand(tensor.shape, generator=generator)
            elif tensor.dtype == torch.uint8:
                tensor.bitwise_not_()  # images become their negatives

    return replace(stage, begin=begin) if stage.main else stage


# ---------------------------------------------------------------- the promises: their docstrings are shown to users


def learns(trial: Trial) -> str | None:
    """It learns three tasks of unequal size and gives every class a score"""
    host, images = build_method(trial.config(), trial.benchmark, "cpu").host.eval(), trial.benchmark.image_shape
    for name, classifier in host.classifiers().items():
        shape = list(classifier(torch.zeros(2, *images)).shape)
        if len(shape) != 2 or shape[1] < trial.benchmark.tasks[0].seen.stop:
            return f"its classifier '{name}' gives {shape} for two images, not a column for every class"
    rows = [len(row) for row in trial.host_alone.results["class_incremental"]["matrix"]]
    is_complete = rows == list(range(1, len(trial.benchmark.tasks) + 1))
    return None if is_complete else f"after its tasks it was tested on {rows} of them"


def trains_all(trial: Trial) -> str | None:
    """Every parameter that requires gradients is trained"""
    if missed := sorted(trial.watch.requiring - trial.watch.trained):
        return (
            f"no stage trains {' and '.join(missed)}; add it to trained_parameters() or to the stage's parameters, or "
            "call requires_grad_(False)"
        )
    if foreign := sorted(trial.watch.foreign):
        return (
            f"a loss reaches parameters of shape {' and '.join(map(str, map(list, foreign)))} that the host does not "
            "know; make each module an attribute of the host in build(), several in an nn.ModuleList"
        )
    return None


def repeats(trial: Trial) -> str | None:
    """A seed decides a run: the same again ends the same, bit for bit"""
    difference = trial.recorded[0].differs_from(trial.with_flashback)
    return difference and f"the second run ends with other values ({difference}); draw from self.generator or torch"


def resumes(trial: Trial) -> str | None:
    """Stopped at any moment and continued, it ends as if nobody had stopped it"""
    state, *following = trial.recorded[1]
    for expected in following:  # one run that is stopped at every moment and continued by a new host
        recorder, position = StateRecorder(interrupt=True), state.values["position"]
        trainer = trial.trainer(trial.config(trial.flashback), recorder)
        trainer.resume(state)
        with suppress(Interruption):
            trainer.run()
        (state,) = recorder.states
        if difference := state_difference(state, expected):
            place = ", ".join(f"{name} {position[name]}" for name in ("task", "stage", "epoch", "step"))
            return (
                f"stopped at {place} (counted from 0), it continues with other values ({difference}); what it "
                "remembers between steps belongs in its state_dict (parameters and buffers)"
            )
    return None


def equals_host_without_plasticity(trial: Trial) -> str | None:
    """Flashback of nothing (E1 = 0, alpha_p = 0) is the host, bit for bit"""
    nothing = trial.train(trial.config(True, **WITHOUT_PLASTIC, flashback__epochs=0))
    difference = nothing.differs_from(trial.host_alone)
    return difference and f"the two end with other values ({difference})"


def restores_state(trial: Trial) -> str | None:
    """After phase 1 it is back where the task began: with alpha_p = 0 it is the host trained for phase 2 alone"""
    config = trial.config(True, **WITHOUT_PLASTIC, training__epochs=3, flashback__epochs=1)
    restarted = trial.train(config)
    shorter = trial.train(trial.config(training__first_epochs=3, training__epochs=config.flashback.split(3)[1]))
    difference = restarted.differs_from(shorter)
    return difference and f"something of phase 1 is left ({difference}); what steps change belongs in its state_dict"


def uses_stable_knowledge(trial: Trial) -> str | None:
    """Stable knowledge changes what it learns"""
    weights = trial.host_alone.weights
    if trial.host_alone.terms.get("stability", 1.0) == 0.0:  # hosts that replay may have no such term
        return "its stability loss is always 0; does anything fill the stable knowledge before a task begins?"
    prefixes = {name.split(".")[0] for name in weights}
    part = next((part for part in ("stable", "memory") if part in prefixes), None)
    if part is None:
        return None  # it keeps its knowledge in other modules
    other = trial.train(trial.config(), change=partial(perturbed, part)).weights
    is_same = all(torch.equal(weights[name], other[name]) for name in trial.watch.trained & weights.keys())
    problem = f"whatever self.{part} holds, it learns the same; does a loss use it, as stability(step) does?"
    return problem if is_same else None


def keeps_stable_fixed(trial: Trial) -> str | None:
    """Stable knowledge does not change while a task is learned"""
    if not trial.watch.changed:
        return None
    return (
        f"{' and '.join(sorted(trial.watch.changed)[:3])} of self.stable changes from step to step; only begin() and "
        "end() may change it, and a Knowledge stays in evaluation mode by itself"
    )


def uses_plastic_knowledge(trial: Trial) -> str | None:
    """Plastic knowledge changes what it learns"""
    without = trial.train(trial.config(True, flashback__alpha=0.0))
    problem = "with and without its weight a run ends the same; does distance() use the knowledge it is given?"
    return None if trial.with_flashback.differs_from(without) else problem


def costs_the_same(trial: Trial) -> str | None:
    """Both arms take the same steps on the same number of images"""
    for unit in ("steps", "images"):
        alone, flashback = (
            [sum(e[unit] for e in run.budget if e["task"] == task.index) for task in trial.benchmark.tasks]
            for run in (trial.host_alone, trial.with_flashback)
        )
        if alone != flashback:
            return f"{unit} by task: {alone} alone, {flashback} with flashback"
    return None


def plastic_is_no_larger(trial: Trial) -> str | None:
    """Plastic knowledge takes at most the bytes of stable knowledge"""
    stable, plastic = (trial.with_flashback.bytes.get(kind, 0) for kind in ("stable", "plastic"))
    return None if 0 < plastic <= stable else f"{plastic:,} bytes of plastic knowledge, {stable:,} of stable"


Promise = Callable[[Trial], str | None]  # returns what the host does instead
PROMISES_OF_ANY_HOST: Sequence[Promise] = (learns, trains_all, repeats, resumes)  # learns: first, its run is watched
OF_FLASHBACK = (
    equals_host_without_plasticity,
    restores_state,
    uses_stable_knowledge,
    keeps_stable_fixed,
    uses_plastic_knowledge,
    costs_the_same,
    plastic_is_no_larger,
)
PROMISES: Sequence[Promise] = (*PROMISES_OF_ANY_HOST, *OF_FLASHBACK)
