"""Host: a continual-learning method.

A host defines stages, named losses, and one distance between the model and a knowledge base. The host calls the
distance with its stable knowledge, and Flashback calls it with the plastic knowledge. A host does not know whether
Flashback is on. The contract of a host is in this file, in `stages.py` and `prediction.py`, and in `knowledge/kinds.py`
(`Support`, frozen copies).

FL Eq. n is equation n of the Flashback Learning paper. Primary model: the model at the end of Flashback's phase 1, from
which the plastic knowledge is read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from flashback.batches import Batch, Stream, Views
from flashback.benchmarks import Benchmark, Task
from flashback.config import HostSettings, RunConfig
from flashback.errors import FlashbackError, require, shorten
from flashback.hosts.prediction import Predictor
from flashback.hosts.stages import Optimisation, Stage, Step, no_op
from flashback.hosts.weight_averaging import WeightCopies, with_weight_averaging
from flashback.knowledge import Knowledge, ModelKnowledge, ReplayedTargets, Support
from flashback.memory import Memory
from flashback.nets import Backbone, Net, Output, Shape, build_backbone, net_for
from flashback.registry import Registry
from flashback.seeds import seeded_initialisation

HOSTS: Registry[type[Host]] = Registry("host")

Settings_co = TypeVar("Settings_co", bound=HostSettings, covariant=True)


class WithSettings(Protocol[Settings_co]):
    """Lets type checkers and editors infer the type of `settings` from the class `Settings` of a host."""

    config: RunConfig

    @property
    def Settings(self) -> type[Settings_co]: ...  # noqa: N802 - a class attribute


class Host(Predictor):
    """Base class of all methods. A method overrides `losses`, `distance` and whatever else it does differently.

    Everything that a host changes is in its `state_dict`: parameters, buffers, memory, knowledge. This makes flashbacks
    and resumed runs exact. `flashback.hosts.prediction` says how a host predicts.

    Attributes:
        settings: The section `host` of the configuration, an instance of `Settings`.
        net: The network; `net(x)` gives an `Output` with features and logits.
        columns: The current number of class columns.
        task: The current task, with column slices `old`, `new`, `seen` and the labels `before` (earlier) and `classes`.
        stable: The knowledge of earlier tasks. None in the first task for hosts that copy their network.
        memory: The stored images; None for hosts without a memory.
        generator: The source of all randomness in a step.
        views: Normalisation and augmentation of raw images.

    Args:
        config: The configuration of the run.
        benchmark: The tasks to learn.
        device: The device of the host.
        backbones: Builds the backbones from image shape and width; None: the registered net.
    """

    Settings = HostSettings  # the dataclass of the settings; a host with further settings overrides it
    family: ClassVar[str] = "none"  # distillation, replay, regularisation, dynamic
    has_knowledge: ClassVar[bool] = True  # a host without knowledge refuses Flashback
    refuses_flashback_because: ClassVar[str] = "keeps no knowledge of earlier tasks"
    replays_targets: ClassVar[bool] = False  # whether its plastic knowledge is targets for the images of the memory
    has_stability: ClassVar[bool] = True  # whether its losses have a term 'stability' from the second task on
    task_by_task: ClassVar[bool] = True  # whether it learns each task when it comes
    accumulates_structure: ClassVar[bool] = True  # whether each task adds parts, which a resumed run has to rebuild
    reads_gradients: ClassVar[bool] = False  # whether importance comes from gradients of the task loss during training
    supports_image_weights: ClassVar[bool] = False  # whether `distance` applies the image weights `support.images`
    has_one_backbone: ClassVar[bool] = True  # required by settings of training that act on the backbone

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Refuse class definitions that would fail later without an error message."""
        super().__init_subclass__(**keywords)
        # Not inherited, since a subclass may add parts, or override the distance.
        cls.accumulates_structure = vars(cls).get("accumulates_structure", True)
        if "distance" in vars(cls):
            cls.supports_image_weights = vars(cls).get("supports_image_weights", False)
        require(
            not any("__init__" in vars(base) for base in cls.__mro__[: cls.__mro__.index(Host)]),
            f"{cls.__name__} defines __init__, where the seed of the run does not determine weights; move it to "
            "build(self), after super().build()",
        )
        settings = cls.Settings
        require(
            issubclass(settings, HostSettings),
            f"{settings.__name__} is not a settings class; let it inherit from flashback.config.HostSettings, or from "
            "the settings of the host it extends",
        )
        require(
            "__dataclass_fields__" in vars(settings) or not inspect.get_annotations(settings),
            f"{settings.__name__} is not a dataclass; write @dataclass(frozen=True) above the class",
        )

    def __init__(
        self,
        config: RunConfig,
        benchmark: Benchmark,
        device: torch.device,
        backbones: Callable[[Shape, float], Backbone] | None = None,
    ) -> None:
        super().__init__()
        self.backbones = backbones
        self.config = config
        self.benchmark = benchmark
        self.device = device
        self.task = benchmark.tasks[0]
        self.generator = torch.Generator(device=device)
        training = config.training
        side = min(benchmark.image_shape[1:])
        require(
            training.image_size is None or training.image_size <= side,
            f"training.image_size is {training.image_size}, but the images are stored at {side}; lower it",
        )
        require(
            self.has_one_backbone or not (training.freeze_backbone or training.backbone_lr_factor != 1),
            f"training.freeze_backbone and training.backbone_lr_factor need a host with one backbone, and "
            f"{config.host.name} builds several; leave them out",
        )
        require(
            self.has_one_backbone or (training.average is None and training.merge is None),
            f"training.average and training.merge need a host with one backbone, and {config.host.name} builds "
            "several; leave them out",
        )
        require(
            self.task_by_task or training.merge is None,
            f"training.merge needs a host that learns task by task, and {config.host.name} learns all tasks at once; "
            "leave it out",
        )
        require(
            training.stability == 1 or (self.has_knowledge and self.has_stability),
            no_stability_message(config.host.name, "training.stability"),
        )
        require(
            training.teacher_statistics == "stored" or self.copies_network(),
            f"training.teacher_statistics=batch needs a host that keeps a copy of its network, which "
            f"{config.host.name} does not; leave it out",
        )
        self.views = Views(benchmark.mean, benchmark.std, training.views, size=training.image_size)
        self.memory: Memory | None = None
        self.stable: Knowledge | None = None
        # Of the main stage, for training.average and training.merge. Checkpoints contain the name `ending`.
        self.ending: WeightCopies | None = None
        self.stable_blank_for_task: int | None = None  # the task for which `allocate` has made blank stable knowledge
        self.trained = False  # whether a trainer has started to train it
        self.learned = 0  # columns of the tasks whose training has begun
        self.columns = sum(self.initial_sizes())
        with seeded_initialisation(config.seed, "net"):
            self.build()
        require(hasattr(self, "net"), f"{type(self).__name__}.build does not set self.net; call super().build() first")
        require(
            training.teacher_statistics == "stored" or any(isinstance(part, _BatchNorm) for part in self.net.modules()),
            "training.teacher_statistics=batch does nothing for a network without batch norm; leave it out",
        )
        self.to(device)

    @property
    def settings(self: WithSettings[Settings_co]) -> Settings_co:
        return cast(Settings_co, self.config.host)

    # ------------------------------------------------------------ structure

    def build(self) -> None:
        """Make the networks, the memory and the modules that the host starts with; the seed determines the weights."""
        self.net = self.new_net()

    def new_backbone(self, width: float = 1.0) -> Backbone:
        """Make the backbone that `host.net` names.

        If it has pretrained weights, images are normalised from now on as those weights expect.

        Args:
            width: A factor for the channels of all layers.

        Returns:
            The backbone, frozen if `training.freeze_backbone` is set.
        """
        stored, side = self.benchmark.image_shape, self.views.size
        shape = stored if side is None else (stored[0], side, side)
        name = self.settings.net or net_for(stored)
        backbone = self.backbones(shape, width) if self.backbones else build_backbone(name, shape, width)
        if backbone.normalisation is not None:
            mean, std = backbone.normalisation
            self.views = replace(self.views, mean=mean, std=std)
        return backbone.freeze() if self.config.training.freeze_backbone else backbone

    def new_net(self) -> Net:
        """Make a backbone with a linear head for the classes that have a column from the start."""
        backbone = self.new_backbone()
        return Net(backbone, nn.Linear(backbone.width, self.columns))

    def trains_future_classes(self) -> bool:
        """Return whether the losses use the columns of future classes; if so, these columns exist from the start."""
        return False

    def can_revisit(self) -> bool:
        """Return whether a later task may contain known classes, alone or together with new ones."""
        return False

    def initial_sizes(self) -> list[int]:
        """Return the numbers of classes of the tasks that have columns from the start: the first task, or all tasks."""
        all_known = self.trains_future_classes() and not self.benchmark.is_open
        return self.benchmark.sizes if all_known else self.benchmark.sizes[:1]

    def grow(self, columns: int) -> None:
        """Add columns for the new classes of the current task; called when the task is entered, without its data.

        Args:
            columns: The total number of columns from now on.
        """
        cast(Net, self.net).grow(columns)

    def check(self) -> None:
        """Raise a FlashbackError for settings that cannot work on this benchmark, before any training."""

    def check_revisits(self, task: Task) -> None:
        known = ", ".join(f"'{self.benchmark.class_names[column]}'" for column in task.revisited)
        require(
            self.can_revisit() or not known,
            f"{self.settings.name} cannot learn known classes again, and task {task.index + 1} has {shorten(known)}; "
            "choose a host that can, such as replay, or give it only new classes",
        )

    def check_untrained(self) -> None:
        require(not self.trained, "this host has been trained already; build a new one")

    # ------------------------------------------------------------ what a trainer asks a Host and a Flashback for

    @property
    def host(self) -> Host:
        """Returns self, so callers can treat a Host and a Flashback alike."""
        return self

    def networks(self) -> list[nn.Module]:
        """All modules that run in a step."""
        return [self]

    def extra_state(self) -> dict[str, Tensor]:
        """State that is not in the host's state_dict."""
        return {}

    def load_extra_state(self, state: Mapping[str, Tensor]) -> None:
        """Load what `extra_state` gave.

        Args:
            state: Tensors by name.
        """

    # ------------------------------------------------------------ a task as stages

    def enter(self, task: Task) -> None:
        """Make a task the current one and add columns for its new classes. Each task is learned once.

        Args:
            task: The next task of the benchmark.

        Raises:
            FlashbackError: If the task was learned already, or has known classes and the host cannot learn them again.
        """
        require(
            task.classes.start >= self.learned,
            f"the classes of task {task.index + 1} are already learned; enter every task once, in the order of the "
            "benchmark",
        )
        self.check_revisits(task)
        self.task = task
        if task.seen.stop > self.columns:
            self.columns = task.seen.stop
            with seeded_initialisation(self.config.seed, task.index, "columns"):
                self.grow(self.columns)
            self.to(self.device)

    def stages(self) -> list[Stage]:
        """Return the stages of the current task; the list depends only on the configuration and the task."""
        return [self.main_stage()]

    def main_stage(self, **changes: Any) -> Stage:
        """Make the stage that Flashback splits in two: E epochs with the settings of the run.

        Args:
            changes: Fields of `Stage` that differ.
        """
        training, first = self.config.training, self.task.index == 0
        stage = Stage(
            name="learn",
            epochs=training.first_epochs if first and training.first_epochs else training.epochs,
            batch_size=training.batch_size,
            stream=self.stream,
            parameters=self.trained_parameters,
            optimisation=Optimisation.of(training, first),
            forward=self.forward,
            losses=self.losses,
            before_update=self.before_update,
            after_step=self.after_step,
            allocate=self.allocate,
            begin=self.fill_and_begin,
            end=self.end,
            variant=self.variant,
            main=True,
        )
        return with_weight_averaging(self, self.with_stability_weight(replace(stage, **changes)))

    def with_stability_weight(self, stage: Stage) -> Stage:
        """Return the stage with its loss term 'stability' multiplied by `training.stability`.

        Args:
            stage: The main stage.
        """
        factor, losses = self.config.training.stability, stage.losses
        if factor == 1 or self.task.index == 0:
            return stage

        def weighted_losses(step: Any) -> Mapping[str, Tensor]:
            terms = losses(step)
            require("stability" in terms, no_stability_message(self.settings.name, "training.stability"))
            return {**terms, "stability": factor * terms["stability"]}

        return replace(stage, losses=weighted_losses)

    def extra_stage(self, name: str, epochs: int | None, optimisation: Mapping[str, Any], **changes: Any) -> Stage:
        """Make an additional stage. Flashback does not change it.

        Args:
            name: Its name in the log.
            epochs: Its epochs; None: as many as the main stage.
            optimisation: Fields of `Optimisation`; those that are None or missing are as in the main stage.
            changes: Fields of `Stage`. Stream, parameters, forward and losses default to those of the main stage; hooks
                do nothing by default.
        """
        main = Optimisation.of(self.config.training, first_task=False)
        overrides = {key: value for key, value in optimisation.items() if value is not None}
        stage = self.main_stage(
            name=name,
            epochs=self.config.training.epochs if epochs is None else epochs,
            optimisation=replace(main, **overrides),
            main=False,
        )
        hooks = dict.fromkeys(("before_update", "after_step", "allocate", "begin", "end"), no_op)
        return replace(stage, **{**hooks, **changes})

    def allocate(self) -> None:
        """Build the structure of the main stage without data: by default, blank stable knowledge from task 2 on.

        A resumed run calls it again for every past stage and then loads the tensors. If the structure depends only on
        the current task and the number of classes, set `accumulates_structure = False`; then a resumed run calls it for
        the first and the last task only.
        """
        if self.has_knowledge and self.task.index > 0:
            self.stable = self.blank_knowledge_for(self.stability_support())
            self.stable_blank_for_task = self.task.index

    def begin(self) -> None:
        """Prepare the content of the main stage, e.g. by imprinting. The stable knowledge is already filled."""

    def fill_and_begin(self) -> None:
        """Fill the blank stable knowledge of this task, then call `begin`."""
        if self.stable is not None and self.stable_blank_for_task == self.task.index:
            self.fill_for_support(self.stable)
        self.learned = self.task.classes.stop
        self.begin()

    def end(self) -> None:
        """Finish the main stage, e.g. herding or Fisher information."""

    def stream(self) -> Stream:
        """Return the training images of the main stage; by default those of the new task."""
        return Stream.of(self.task.train, self.device)

    def trained_parameters(self) -> list[nn.Parameter]:
        """Return what a stage trains by default: all parameters that require gradients, except those of knowledge."""
        known = {id(p) for module in self.modules() if isinstance(module, Knowledge) for p in module.parameters()}
        return [p for p in dict.fromkeys([*trainable(self.net), *trainable(self)]) if id(p) not in known]

    # ------------------------------------------------------------ a batch

    def forward(self, batch: Batch) -> Step:
        """Run the trained network; frozen models run in `distance`.

        Args:
            batch: The images of this step.

        Returns:
            The batch with its outputs: a `Step`, or a subclass with whatever else `losses` needs.
        """
        return Step(batch, self.trained_net()(batch.x))

    def losses(self, step: Any) -> Mapping[str, Tensor]:
        """Compute the terms whose sum is minimised.

        Args:
            step: What `forward` returned.

        Returns:
            Scalars by name, which are logged: 'task', 'stability', and further terms of the method. The name
            'stability' marks the term that `training.stability` and `flashback.phase1_stability` scale.
        """
        raise FlashbackError(f"{self.settings.name} does not define losses(step); add this method to its class")

    def before_update(self, step: Any) -> None:
        """Clip or project `parameter.grad`, between the backward pass and the optimiser step.

        Args:
            step: What `forward` returned.
        """

    def after_step(self, step: Any) -> None:
        """Fill or edit a memory after the optimiser step, without gradients.

        Args:
            step: What `forward` returned.
        """

    def variant(self) -> object:
        """Return what the shapes of a step depend on besides the batch size; each value has its own captured graph."""
        return None

    def filling(self) -> bool:
        """Return whether a memory still grows with every step, so that the shapes of this step do not occur again."""
        return False

    # ------------------------------------------------------------ knowledge and the one distance

    def stability_support(self) -> Support:
        """Return where, and with which weight, the distance to the stable knowledge acts."""
        return Support(columns=self.task.old)

    def plasticity_support(self) -> Support:
        """Return where the distance to Flashback's plastic knowledge acts."""
        return Support(columns=self.task.seen)

    def distance(self, step: Any, knowledge: Any, support: Support) -> Tensor:
        """Compute the distance between the model and a knowledge base, stable or plastic.

        Args:
            step: What `forward` returned.
            knowledge: A knowledge base of the kind that `blank_knowledge` makes.
            support: The columns to compare, and the weights of the images for a class with `supports_image_weights`.
                The caller multiplies by the weight of the support.

        Returns:
            A scalar with a gradient.
        """
        raise FlashbackError(no_distance_message(self.settings.name))

    def weighted_distance(self, step: Any, knowledge: Any, support: Support) -> Tensor:
        """Compute `support.weight` times the distance; Ls and Lp are both this.

        Args:
            step: What `forward` returned.
            knowledge: The stable or the plastic knowledge.
            support: Where the distance acts. For samples="memory" it is `replay_distance`, otherwise `distance`.
        """
        distance = self.replay_distance if support.samples == "memory" else self.distance
        return support.weight * distance(step, knowledge, support)

    def stability(self, step: Any) -> Tensor:
        """Compute the stability loss Ls: the weighted distance to the stable knowledge.

        Args:
            step: What `forward` returned.
        """
        return self.weighted_distance(step, self.stable, self.stability_support())

    def blank_knowledge(self) -> Knowledge:
        """Make the host's own kind of knowledge base, without content. A host overrides it to keep something else.

        By default it is a frozen copy of the network.
        """
        return self.blank_teacher()

    def blank_teacher(self) -> ModelKnowledge:
        """Make a frozen copy of the network, with batch norm as `training.teacher_statistics` says."""
        return ModelKnowledge(self.net, batch_statistics=self.config.training.teacher_statistics == "batch")

    @classmethod
    def copies_network(cls) -> bool:
        """Return whether the host's own knowledge is a copy of its network."""
        is_default = cls.blank_knowledge is Host.blank_knowledge and cls.fill_knowledge is Host.fill_knowledge
        return cls.has_knowledge and is_default and not cls.replays_targets

    def fill_knowledge(self, knowledge: Any) -> None:
        """Fill the host's own kind of knowledge base from the current model. A host overrides it.

        Args:
            knowledge: What `blank_knowledge` made.
        """
        knowledge.fill(self.net)

    def knowledge_bytes(self) -> dict[str, int]:
        """Return the size of what is kept from earlier tasks."""
        return {"stable": sum(part.nbytes() for part in (self.stable, self.memory) if part is not None)}

    # ------------------------------------------------------------ targets for stored images, in any host with a memory

    def replayed(self, step: Any) -> tuple[Output, Tensor]:
        """Return the outputs for the images of this step that may be stored, and their memory slots.

        Args:
            step: What `forward` returned.
        """
        return step.output, step.batch.slots

    def response(self, output: Output) -> Tensor:
        """Return the part of an output that is compared with targets: logits o or embeddings z of FL Eq. 10.

        Args:
            output: An output of the network.
        """
        return output.logits

    def response_width(self) -> int:
        """Return the number of columns of a response."""
        return self.columns

    def replay_distance(self, step: Any, knowledge: Any, support: Support) -> Tensor:
        """Compute the distance between the responses for stored images and their targets.

        Args:
            step: What `forward` returned.
            knowledge: Targets for the images of the memory.
            support: The columns to compare.
        """
        output, slots = self.replayed(step)
        distance: Tensor = knowledge.distance(self.response(output), slots, self.memory, support.columns)
        return distance

    def blank_knowledge_for(self, support: Support) -> Knowledge:
        """Make a knowledge base without content for a support; the kind depends on where the distance will act.

        Args:
            support: Where the distance to the knowledge will act.

        Returns:
            Targets for stored images if the support has samples="memory", else what `blank_knowledge` makes.
        """
        if support.samples == "all":
            return self.blank_knowledge()
        require(
            self.memory is not None,
            f"a support on samples 'memory' needs a memory; {self.settings.name} does not have one",
        )
        assert self.memory is not None
        return ReplayedTargets(self.memory, self.response_width())

    def fill_for_support(self, knowledge: Knowledge) -> None:
        """Fill a knowledge base of either kind from the current model.

        Args:
            knowledge: What `blank_knowledge_for` made.
        """
        if isinstance(knowledge, ReplayedTargets) and self.memory is not None:
            knowledge.fill(self.memory, lambda raw: self.embed(raw, self.response))
        else:
            self.fill_knowledge(knowledge)


# ---------------------------------------------------------------- helpers


def no_stability_message(host: str, setting: str, advice: str = "leave it at 1") -> str:
    return f"{setting} scales the loss term 'stability', which {host} does not have; {advice}"


def no_distance_message(host: str) -> str:
    return f"{host} does not define distance(step, knowledge, support); add this method to its class"


@torch.no_grad()
def copy_tensors(target: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Copy saved tensors into those of the target. Names, shapes and types are checked before the first copy."""
    if target.keys() != saved.keys():
        raise FlashbackError("the checkpoint does not fit this host: it holds other tensors; start a new run")
    for name, tensor in target.items():
        if tensor.shape != saved[name].shape or tensor.dtype != saved[name].dtype:
            raise FlashbackError(f"the checkpoint does not fit this host: {name} has another shape or type")
    for name, tensor in target.items():
        tensor.copy_(saved[name])


def trainable(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def one_hot(labels: Tensor, columns: slice, dtype: torch.dtype = torch.float32) -> Tensor:
    """One-hot targets on a range of columns; all zero for labels outside it."""
    return (labels[:, None] == torch.arange(columns.start or 0, columns.stop, device=labels.device)).to(dtype)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels)
