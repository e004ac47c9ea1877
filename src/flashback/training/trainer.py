"""The trainer runs the stages of a host task by task, evaluates it, and can save and resume its state."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from flashback import ranks, seeds
from flashback.batches import Stream, count_batches, prefetch, split_batches
from flashback.benchmarks import Benchmark, Task
from flashback.errors import FlashbackError
from flashback.hosts.base import Host, copy_tensors
from flashback.hosts.stages import Stage
from flashback.nets import ModuleNets
from flashback.plugin import Flashback
from flashback.training.evaluation import Accuracies, count_confusion, evaluate_unlearned, measure
from flashback.training.fast import make_step, prepare_backbones
from flashback.training.result import History, TrainingResult
from flashback.training.step import TrainingStep, set_rate

Event = Mapping[str, Any]
Observer = Callable[[Event], None]


@dataclass(frozen=True)
class Position:
    """A position in a run: before `step` of `epoch` of a stage if `begun`, otherwise between stages."""

    task: int = 0
    stage: int = 0
    begun: bool = False
    epoch: int = 0
    step: int = 0


@dataclass(frozen=True)
class RunState:
    """Everything needed to continue: tensors by name, and plain values."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]


class Checkpointer(Protocol):
    """Decides when to save, and saves; asked after every step and every stage."""

    def due(self, position: Position) -> bool: ...
    def save(self, state: RunState) -> None: ...


class Trainer:
    """Trains a host on a benchmark, task by task; `train` and `run` set the device up and use it.

    Args:
        method: A host, or `Flashback(host)`.
        benchmark: The benchmark that the host was built for.
        observers: Functions that are called with every event.
        checkpointer: Decides when the state is saved, and saves it.
        precision: "fp32", "tf32" or "bf16".
    """

    def __init__(
        self,
        method: Host | Flashback,
        benchmark: Benchmark,
        observers: Sequence[Observer] = (),
        checkpointer: Checkpointer | None = None,
        precision: str = "fp32",
    ) -> None:
        self.method, self.host, self.benchmark = method, method.host, benchmark
        self.observers, self.checkpointer, self.precision = observers, checkpointer, precision
        self.position, self.history = Position(), History()
        self.step: TrainingStep | None = None
        self.seed = self.host.config.seed
        self._resumed: RunState | None = None
        self._began = False
        self._clock = time.monotonic()
        self._trained_until: float | None = None
        prepare_backbones(self.host, self.method.networks())

    def run(self) -> TrainingResult:
        """Train from the current position to the end and return the result."""
        self.claim_host()
        self._clock = time.monotonic()
        # Only the captured step compiles, for full batches.
        with torch.compiler.set_stance("force_eager"), seeds.isolated_layer_randomness(self.host.device):
            if self.position == Position() and not self.history.untrained:
                self.history.untrained = self.evaluate_untrained()
            for task in self.benchmark.tasks[self.position.task :]:
                self.run_task(task)
            self.save()
        self.count_seconds()
        return TrainingResult.from_history(self.history, self.benchmark, self.host.task_by_task)

    def run_task(self, task: Task) -> None:
        """Learn one task, stage by stage, and evaluate the host on all tasks so far."""
        self.host.learned = task.classes.start  # a task that was interrupted is entered again
        self.method.enter(task)
        if self.position == Position(task.index):
            self.emit("task", classes=len(task.classes), tasks=len(self.benchmark.tasks))
            if task.index > 0 and not self.benchmark.is_open:
                # Before the host begins the task, since imprinting would look at its images.
                self.history.add_zero_shot(evaluate_unlearned(self.host, [task]))
        stages = self.method.stages()
        for index in range(self.position.stage, len(stages)):
            self.run_stage(task, stages[index])
            self.move(Position(task.index, index + 1))
        if not self.benchmark.is_open:
            self.evaluate(self.benchmark.tasks[: task.index + 1])
        self.move(Position(task.index + 1))

    def evaluate_untrained(self) -> dict[str, Accuracies]:
        """Accuracy before any training, on a second host like this one that has the columns of all classes."""
        host, benchmark = self.host, self.benchmark
        if benchmark.is_open or not host.scores_unseen:
            return {}
        backbones = host.backbones.afresh() if isinstance(host.backbones, ModuleNets) else host.backbones
        untrained = type(host)(host.config, benchmark, host.device, backbones)
        for task in benchmark.tasks:
            untrained.enter(task)
        return evaluate_unlearned(untrained, benchmark.tasks)

    def evaluate(self, learned: Sequence[Task]) -> None:
        measured = measure(self.host, learned)
        row = {name: accuracies for name, (accuracies, _) in measured.items()}
        self.history.add_row(row)
        if len(learned) == len(self.benchmark.tasks):
            confusion = {name: count_confusion(learned, predicted) for name, (_, predicted) in measured.items()}
            self.history.confusion = confusion
        self.emit("evaluation", accuracy=row)

    def run_stage(self, task: Task, stage: Stage) -> None:
        key = (self.seed, task.index, stage.training_key)
        if not self.position.begun:
            self.allocate(stage)
            self.seed_generators(self.seed, task.index, stage.structure_key, "begin")
            stage.begin()
        stream = stage.stream()
        self.host.train()
        step = self.step = make_step(self.host, stage, stream, self.precision) if stage.epochs else None
        if step is not None and self.position.begun:
            self.restore_step(step)
        else:
            self.seed_generators(*key)
            self.history.budget.append({"task": task.index, "stage": stage.name, "steps": 0, "images": 0})
            for name, size in self.method.knowledge_bytes().items():
                self.history.bytes[name] = max(size, self.history.bytes.get(name, 0))
            steps = count_batches(len(stream), stage.batch_size)
            self.emit("stage", stage=stage.name, epochs=stage.epochs, steps_per_epoch=steps)
            self.position = Position(task.index, self.position.stage, begun=True)
        for epoch in range(self.position.epoch, stage.epochs):
            assert step is not None, "a stage with epochs has a step"
            self.run_epoch(step, stage, stream, epoch, stream.order(*key, epoch))
        self.step = None
        self.seed_generators(*key, "end")
        stage.end()
        self.check_ranks()

    def run_epoch(self, step: TrainingStep, stage: Stage, stream: Stream, epoch: int, order: Tensor) -> None:
        rate = stage.optimisation.rate(epoch, stage.epochs)
        set_rate(step.optimiser, rate)
        stage.before_epoch(epoch)
        spent = self.history.budget[-1]
        batches = split_batches(order, stage.batch_size)
        self._trained_until = self.training_clock()
        for indices, raw in prefetch(stream, batches[self.position.step :]):
            step(indices, raw)
            spent["steps"] += 1
            spent["images"] += len(indices)
            self.move(replace(self.position, epoch=epoch, step=self.position.step + 1))
        step.check_finite(epoch)
        stage.after_epoch(epoch)
        terms = step.read_means(len(stream))  # synchronises with the GPU, so the time is right
        self.count_seconds()
        self._trained_until = None
        self.emit("epoch", stage=stage.name, epoch=epoch, epochs=stage.epochs, lr=rate, losses=terms)
        self.move(replace(self.position, epoch=epoch + 1, step=0))

    def check_ranks(self) -> None:
        """Refuse a host that ends a stage with another state on another rank."""
        tensors = {**self.host.state_dict(), **self.random_state()}
        names = ranks.names_that_differ(tensors) if ranks.world_size() > 1 else []
        if names:
            raise FlashbackError(
                f"the ranks of this run came to different values of {names[0]} in task {self.host.task.index + 1}; "
                f"{self.host.settings.name} or its net computes something that depends on the images of one rank, so "
                "run it on one device"
            )

    def claim_host(self) -> None:
        """Refuse a host that another trainer has trained."""
        if not self._began:
            self.host.check_untrained()
        self._began = self.host.trained = True

    def allocate(self, stage: Stage) -> None:
        with seeds.seeded_initialisation(self.seed, self.host.task.index, stage.structure_key):
            stage.allocate()
        self.host.to(self.host.device)
        prepare_backbones(self.host, self.method.networks())

    def seed_generators(self, *key: object) -> None:
        """Seed the host's generator (augmentation, draws from a memory) and torch's (layers such as dropout)."""
        self.host.generator.manual_seed(seeds.derive_seed(*key))
        torch.manual_seed(seeds.derive_seed(*key, "layers"))

    def emit(self, event: str, **values: Any) -> None:
        for observer in self.observers:
            observer({"event": event, "task": self.host.task.index, "steps": self.history.steps, **values})

    def move(self, position: Position) -> None:
        self.position = position
        if self.checkpointer is not None and self.checkpointer.due(position):
            self.save()

    def save(self) -> None:
        if self.checkpointer is not None:
            self.checkpointer.save(self.state())
            if self._trained_until is not None:
                self._trained_until = self.training_clock()  # saving is not training

    def count_seconds(self) -> None:
        """Add the time since the last call, and within an epoch the training time."""
        if self._trained_until is not None:
            trained = self.training_clock()
            self.history.training_seconds += trained - self._trained_until
            self._trained_until = trained
        now = time.monotonic()
        self.history.seconds += now - self._clock
        self._clock = now

    def training_clock(self) -> float:
        """A clock that stops during captures and compilations."""
        return time.monotonic() - (self.step.preparation_seconds if self.step is not None else 0.0)

    # ------------------------------------------------------------ state, for exact resume

    def state(self) -> RunState:
        if self.step is not None:
            self.step.check_finite(self.position.epoch)
        self.count_seconds()
        parts: dict[str, Mapping[str, Tensor]] = {
            "host": self.host.state_dict(),
            "method": self.method.extra_state(),
            "step": self.step.state() if self.step is not None else {},
            "random": self.random_state() if self.position.begun else {},  # a new stage seeds its generators
        }
        tensors = {f"{part}.{name}": tensor for part, state in parts.items() for name, tensor in state.items()}
        return RunState(tensors, {"position": asdict(self.position), "history": asdict(self.history)})

    @torch.no_grad()
    def resume(self, state: RunState) -> None:
        """Restore a saved state: rebuild the structure of that moment and copy the tensors into it."""
        self.claim_host()
        self.position = Position(**state.values["position"])
        self.history = History(**state.values["history"])
        begun = self.position.stage + self.position.begun  # stages of the current task; with none, it has no columns
        tasks = self.benchmark.tasks[: self.position.task + (begun > 0)]
        if not self.host.accumulates_structure:
            tasks = tasks[:1] + tasks[1:][-1:]
        for task in tasks:
            self.method.enter(task)
            for stage in self.method.stages()[: begun if task.index == self.position.task else None]:
                self.allocate(stage)
        copy_tensors(self.host.state_dict(), select(state.tensors, "host"))
        self.method.load_extra_state(select(state.tensors, "method"))
        self._resumed = state if self.position.begun else None  # for the step, once it exists

    def restore_step(self, step: TrainingStep) -> None:
        assert self._resumed is not None
        step.load(select(self._resumed.tensors, "step"))
        randomness = self.random_state()
        copy_tensors(randomness, select(self._resumed.tensors, "random"))
        try:
            self.host.generator.set_state(randomness["generator"])
            seeds.set_layer_randomness(randomness, self.host.device)
        except RuntimeError:
            raise FlashbackError("the checkpoint does not hold the state of a random generator") from None
        self._resumed = None

    def random_state(self) -> dict[str, Tensor]:
        return {"generator": self.host.generator.get_state(), **seeds.layer_randomness(self.host.device)}


def select(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    prefix = f"{part}."
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
