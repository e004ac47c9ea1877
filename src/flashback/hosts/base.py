"""Host: a continual-learning method. It says what it trains, what it keeps, and how far the model is from that.

A host never knows whether Flashback is on. It gives stages, named losses, and one distance between the model and a
knowledge base; it calls that distance with its stable knowledge, Flashback with the plastic one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashback.batches import Batch, Stream, Views
from flashback.benchmarks import Benchmark, Images, Task
from flashback.config import HostSettings, RunConfig
from flashback.errors import FlashbackError, require, unknown
from flashback.hosts.stages import Optimisation, Stage, Step, nothing
from flashback.knowledge import Knowledge, ModelKnowledge, ReplayedTargets, Support
from flashback.memory import Memory
from flashback.nets import Backbone, Net, Output, build_backbone, evaluating, net_for
from flashback.nets.base import Shape
from flashback.registry import Registry
from flashback.seeds import seeded_initialisation

HOW_TO_SAY_IT = "give its class a method distance(step, knowledge, support)"

HOSTS: Registry[type[Host]] = Registry("host")
Classifier = Callable[[Tensor], Tensor]
Raw = Images | Tensor | npt.NDArray[np.uint8]  # images as they are stored, uint8 [n, C, H, W]

Own_co = TypeVar("Own_co", bound=HostSettings, covariant=True)


class WithSettings(Protocol[Own_co]):
    """A host seen from its `Settings`: by them a type checker and an editor know what `settings` holds."""

    config: RunConfig

    @property
    def Settings(self) -> type[Own_co]: ...  # noqa: N802 - a class attribute


class Host(nn.Module):
    """Base of all hosts. Everything a host mutates is in its state_dict: parameters, buffers, memory, knowledge."""

    Settings = HostSettings  # a host with settings of its own names their class
    family: ClassVar[str] = "none"  # distillation, replay, regularisation, dynamic
    has_knowledge: ClassVar[bool] = True  # a host without knowledge refuses Flashback
    has_stability: ClassVar[bool] = True  # whether later tasks have a loss term 'stability', which phase 1 may weigh
    task_by_task: ClassVar[bool] = True  # whether it learns each task when it comes
    scores_unseen: ClassVar[bool] = True  # whether classes not met yet have a column (needed for forward transfer)

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Refuse, where a class is written, what would go wrong without a word later."""
        super().__init_subclass__(**keywords)
        require(
            not any("__init__" in vars(base) for base in cls.__mro__[: cls.__mro__.index(Host)]),
            f"{cls.__name__} has an __init__ of its own, where no seed decides the weights; make what it needs in "
            "build(self), after super().build()",
        )
        settings = cls.Settings
        require(
            issubclass(settings, HostSettings),
            f"{settings.__name__} is no class of settings; let it inherit flashback.config.HostSettings, or the "
            "settings of the host it stands on",
        )
        require(
            "__dataclass_fields__" in vars(settings) or not inspect.get_annotations(settings),
            f"the fields of {settings.__name__} are no settings yet; write @dataclass(frozen=True) above the class",
        )

    def __init__(
        self,
        config: RunConfig,
        benchmark: Benchmark,
        device: torch.device,
        backbones: Callable[[Shape, float], Backbone] | None = None,
    ) -> None:
        super().__init__()
        self.backbones = backbones  # makes the backbones in place of the registered net
        self.config = config
        self.benchmark = benchmark
        self.device = device
        self.task: Task = benchmark.tasks[0]
        self.generator = torch.Generator(device=device)
        training = config.training
        side = min(benchmark.image_shape[1:])
        require(
            training.image_size is None or training.image_size <= side,
            f"training.image_size is {training.image_size}, but the images are stored at {side}; lower it",
        )
        self.views = Views(benchmark.mean, benchmark.std, training.views, size=training.image_size)
        self.memory: Memory | None = None
        self.stable: Knowledge | None = None
        self.blank_since: int | None = None  # the task that `allocate` has made room for it in
        self.trained = False  # whether a trainer has begun with it
        with seeded_initialisation(config.seed, "net"):
            self.build()
        require(hasattr(self, "net"), f"{type(self).__name__}.build makes no self.net; begin it with super().build()")
        self.to(device)

    @property
    def settings(self: WithSettings[Own_co]) -> Own_co:
        """The section `host` of the configuration, an instance of the host's own `Settings`."""
        return cast(Own_co, self.config.host)

    # ------------------------------------------------------------ structure

    def build(self) -> None:
        """Make the networks, the memory and the modules of its own that a host starts with."""
        self.net: nn.Module = self.new_net()

    def new_backbone(self, width: float = 1.0) -> Backbone:
        """A fresh one. Where it brings weights, images are normalised as those were that it learned from."""
        stored, side = self.benchmark.image_shape, self.views.size
        seen = stored if side is None else (stored[0], side, side)
        name = self.settings.net or net_for(stored)
        backbone = self.backbones(seen, width) if self.backbones else build_backbone(name, seen, width)
        if backbone.normalisation is not None:
            mean, std = backbone.normalisation
            self.views = replace(self.views, mean=mean, std=std)
        return backbone

    def new_net(self) -> Net:
        """Backbone and a linear head with a column for every class there will ever be."""
        backbone = self.new_backbone()
        return Net(backbone, nn.Linear(backbone.width, self.benchmark.classes))

    def check(self) -> None:
        """Refuse settings that cannot work on this benchmark, before any training."""

    def check_untrained(self) -> None:
        """Training starts from the initial state, which a host has once."""
        require(not self.trained, "this host has been trained already; build a new one")

    # ------------------------------------------------------------ state

    @property
    def host(self) -> Host:
        """The host of a host is itself, so that a bare host and a wrapped one are driven alike."""
        return self

    def networks(self) -> list[nn.Module]:
        """All modules that run in a step; a plug-in has some of its own."""
        return [self]

    def own_state(self) -> dict[str, Tensor]:
        """State beside the host's own; a plug-in has some."""
        return {}

    def load_own_state(self, state: Mapping[str, Tensor]) -> None:
        """See own_state."""

    # ------------------------------------------------------------ a task as stages

    def enter(self, task: Task) -> None:
        """The task all methods below speak of."""
        self.task = task

    def stages(self) -> list[Stage]:
        """The stages of the present task, the same list for the same task whatever happened before."""
        return [self.main_stage()]

    def main_stage(self, **changes: Any) -> Stage:
        """The stage Flashback splits in two: E epochs with the settings of the run."""
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
        return replace(stage, **changes)

    def later_stage(self, name: str, epochs: int | None, optimisation: Mapping[str, Any], **changes: Any) -> Stage:
        """A stage beside the main one, the same with Flashback and without it; what is None is as in the main stage.

        Its data, passes and losses are those of the main stage unless it is given others; its hooks do nothing.
        """
        main = Optimisation.of(self.config.training, first_task=False)
        own_rates = {key: value for key, value in optimisation.items() if value is not None}
        stage = self.main_stage(
            name=name,
            epochs=self.config.training.epochs if epochs is None else epochs,
            optimisation=replace(main, **own_rates),
            before_update=nothing,
            after_step=nothing,
            allocate=nothing,
            begin=nothing,
            end=nothing,
            main=False,
        )
        return replace(stage, **changes)

    def allocate(self) -> None:
        """Structure for the main stage of this task. By default: room for what the model knows before it."""
        if self.has_knowledge and self.task.index > 0:
            self.stable = self.blank_for(self.stability_support())
            self.blank_since = self.task.index

    def begin(self) -> None:
        """Content for the main stage of this task, e.g. imprinting. The stable knowledge is filled by then."""

    def fill_and_begin(self) -> None:
        """What the model knows goes into the room that `allocate` made for it, whatever else a host does there."""
        if self.stable is not None and self.blank_since == self.task.index:
            self.extract(self.stable)
        self.begin()

    def end(self) -> None:
        """After the main stage, e.g. herding, Fisher information."""

    def stream(self) -> Stream:
        """The images of the main stage: the new task alone."""
        return Stream.of(self.task.train, self.device)

    def trained_parameters(self) -> list[nn.Parameter]:
        """What a stage trains unless it says otherwise: all that asks for gradients, the network first.

        Knowledge is never among it. A host with modules that a stage of their own trains leaves them out here.
        """
        known = {id(p) for module in self.modules() if isinstance(module, Knowledge) for p in module.parameters()}
        return [p for p in dict.fromkeys([*trainable(self.net), *trainable(self)]) if id(p) not in known]

    # ------------------------------------------------------------ a batch

    def answering_net(self) -> nn.Module:
        """The network whose answers a step descends on; a host may run several as one."""
        return self.net

    def forward(self, batch: Batch) -> Step:
        return Step(batch, self.answering_net()(batch.x))

    def losses(self, step: Any) -> Mapping[str, Tensor]:
        """Named terms whose sum is descended: 'task', 'stability', and whatever else the method has.

        By the name 'stability' phase 1 knows what `flashback.phase1_stability` weighs; the others are only logged.
        """
        raise FlashbackError(f"{self.settings.name} says nothing of its losses; give its class a method losses(step)")

    def before_update(self, step: Any) -> None:
        """Between backward and the optimiser step: clip or project `parameter.grad`, or add another pass to it."""

    def after_step(self, step: Any) -> None:
        """After the optimiser step, without gradients: reservoir insertion, memory edits."""

    def variant(self) -> object:
        """What besides the batch size decides the shapes of a step; a change means another captured graph."""
        return None

    def filling(self) -> bool:
        """Whether a memory still grows with every step: the shapes of such a step do not come back."""
        return False

    # ------------------------------------------------------------ knowledge

    def stability_support(self) -> Support:
        return Support(columns=self.task.old)

    def plasticity_support(self) -> Support:
        return Support(columns=self.task.seen)

    def blank_knowledge(self) -> Knowledge:
        """A knowledge base of this host's kind; for a model that is a copy of it."""
        return ModelKnowledge(self.net)

    def fill_knowledge(self, knowledge: Any) -> None:
        """Fill it from the present state."""
        knowledge.fill(self.net)

    def stability(self, step: Any) -> Tensor:
        """The weighted distance to the stable knowledge."""
        return self.weighted_distance(step, self.stable, self.stability_support())

    def distance(self, step: Any, knowledge: Any, support: Support) -> Tensor:
        """The one distance between the model and what a knowledge base holds."""
        raise FlashbackError(f"{self.settings.name} says nothing of its distance to what it knows; {HOW_TO_SAY_IT}")

    def knowledge_bytes(self) -> dict[str, int]:
        """The size of what is kept from earlier tasks."""
        return {"stable": sum(part.nbytes() for part in (self.stable, self.memory) if part is not None)}

    # ------------------------------------------------------------ replayed knowledge, for any host with a memory

    def replayed(self, step: Any) -> tuple[Output, Tensor]:
        """The model's answers on samples of this step that may come from the memory, and their slots."""
        return step.output, step.batch.slots

    def response(self, output: Output) -> Tensor:
        """What of an answer is kept for replay: the logits o, or the embeddings z, of Eq. 10."""
        return output.logits

    def response_width(self) -> int:
        return self.benchmark.classes

    def blank_for(self, support: Support) -> Knowledge:
        return self.blank_knowledge() if support.samples == "all" else self._blank_targets()

    def extract(self, knowledge: Knowledge) -> None:
        """Put into a blank knowledge base what the present model state holds."""
        if isinstance(knowledge, ReplayedTargets) and self.memory is not None:
            knowledge.fill(self.memory, lambda raw: self.embed(raw, self.response))
        else:
            self.fill_knowledge(knowledge)

    def weighted_distance(self, step: Any, knowledge: Any, support: Support) -> Tensor:
        if support.samples == "all":
            return support.weight * self.distance(step, knowledge, support)
        output, slots = self.replayed(step)
        distance: Tensor = knowledge.distance(self.response(output), slots, self.memory, support.columns)
        return support.weight * distance

    def _blank_targets(self) -> Knowledge:
        require(self.memory is not None, f"a support on samples 'memory' needs a memory; {self.settings.name} has none")
        assert self.memory is not None
        return ReplayedTargets(self.memory, self.response_width())

    # ------------------------------------------------------------ evaluation

    def predictor(self) -> nn.Module:
        """The network that the host predicts with."""
        return self.net

    def scores(self, x: Tensor) -> Tensor:
        """One score per class column for normalised images, in evaluation mode."""
        logits: Tensor = self.predictor()(x).logits
        return logits

    def classifiers(self) -> dict[str, Classifier]:
        """The ways this host can predict by name; the first is the method's own."""
        return {"linear": self.scores}

    def as_module(self) -> nn.Module:
        """The network that predicts, by itself: raw images in, a score for every class learned out. Weights are shared.

        It is in evaluation mode and can be exported (`torch.export`, `torch.jit.trace`). A method's own classifier,
        such as a nearest mean, is not in it: scores are those of the last layer.
        """
        return Scoring(self.predictor(), self.views, self.task.seen.stop).eval()

    @torch.no_grad()
    def predict(self, images: Raw, classifier: str | None = None, task: Task | int | None = None) -> Tensor:
        """The class column of each raw image, uint8 [n, C, H, W]: among all classes learned, or those of one task.

        Column k is the class `benchmark.class_names[k]`. The classifier is one of `classifiers()`, by default the
        method's own. The host is looked at in evaluation mode, whatever mode it is in, and left as it was.
        """
        columns = self._columns(task)
        with evaluating(self), torch.compiler.set_stance("force_eager"):
            classifiers = self.classifiers()
            name = next(iter(classifiers)) if classifier is None else classifier
            if name not in classifiers:
                raise unknown("classifier", name, classifiers)
            pieces = torch.split(self._raw(images), self.config.training.evaluation_batch)
            scores = (classifiers[name](self.views.plain(piece.to(self.device))) for piece in pieces)
            return torch.cat([columns.start + part[:, columns].argmax(dim=1).cpu() for part in scores])

    def features(self, images: Raw) -> Tensor:
        """What the network that predicts makes of raw images before its last layer, [n, width]; see `predict`."""
        with torch.compiler.set_stance("force_eager"):
            return self.embed(self._raw(images), features_of, self.predictor()).cpu()

    def _columns(self, task: Task | int | None) -> slice:
        if task is None:
            return self.task.seen
        index = task.index if isinstance(task, Task) else task
        require(
            isinstance(index, int) and 0 <= index <= self.task.index,
            f"task {index} is none that this host has learned; give one of benchmark.tasks, or a number from 0 to "
            f"{self.task.index}",
        )
        return self.benchmark.tasks[index].new

    def _raw(self, images: Raw) -> Tensor:
        raw = images.x if isinstance(images, Images) else images
        shape = ", ".join(map(str, self.benchmark.image_shape))
        wanted = f"raw images are a uint8 tensor or array of shape [n, {shape}]"
        require(isinstance(raw, Tensor | np.ndarray), f"{wanted}, not {type(raw).__name__}")
        kind = str(raw.dtype).removeprefix("torch.")
        fits = kind == "uint8" and tuple(raw.shape[1:]) == self.benchmark.image_shape
        require(fits, f"{wanted}, not {kind} {list(raw.shape)}")
        return raw if isinstance(raw, Tensor) else torch.from_numpy(np.require(raw, requirements=["C", "W"]))

    @torch.no_grad()
    def embed(
        self,
        raw: Tensor,
        part: Callable[[Output], Tensor],
        net: nn.Module | None = None,
        view: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Features or logits of raw images in evaluation mode, in large batches, un-augmented if no view is given."""
        net = self.answering_net() if net is None else net
        view = self.views.plain if view is None else view
        pieces = torch.split(raw, self.config.training.evaluation_batch)
        with evaluating(net):
            return torch.cat([part(net(view(piece.to(self.device)))) for piece in pieces])


class Scoring(nn.Module):
    """A network with what goes before and after it, from raw images to scores of classes."""

    def __init__(self, net: nn.Module, views: Views, classes: int) -> None:
        super().__init__()
        self.net, self.views, self.classes = net, views, classes

    def forward(self, raw: Tensor) -> Tensor:
        scores: Tensor = self.net(self.views.plain(raw)).logits[:, : self.classes]
        return scores


@torch.no_grad()
def copy_tensors(own: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Copy saved tensors over those that stand there now; what does not fit is refused before the first copy."""
    if own.keys() != saved.keys():
        raise FlashbackError("the checkpoint does not fit this host: it holds other tensors; start a new run")
    for name, tensor in own.items():
        if tensor.shape != saved[name].shape or tensor.dtype != saved[name].dtype:
            raise FlashbackError(f"the checkpoint does not fit this host: {name} has another shape or type")
    for name, tensor in own.items():
        tensor.copy_(saved[name])


def trainable(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def features_of(output: Output) -> Tensor:
    return output.features


def one_hot(labels: Tensor, columns: slice, dtype: torch.dtype = torch.float32) -> Tensor:
    """One-hot targets on a range of columns; all zero for labels outside it."""
    return (labels[:, None] == torch.arange(columns.start or 0, columns.stop, device=labels.device)).to(dtype)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels)
