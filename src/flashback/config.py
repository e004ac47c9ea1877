"""The typed configuration of a run: frozen dataclasses that YAML, the command line and Python share."""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, get_args, get_origin

from flashback.errors import LONGEST_VALUE, FlashbackError, abbreviate, require, unknown
from flashback.plain_yaml import LARGEST_NUMBER, read_yaml

T = TypeVar("T")
hints_of: Callable[..., dict[str, Any]] = cache(typing.get_type_hints)
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


class Rule(NamedTuple):
    """What the value of a setting must obey, written into its type as `Annotated[float, Rule(...)]`."""

    text: str  # completes the sentence "KEY must ..."
    holds: Callable[[Any], bool]


NOT_NEGATIVE = Rule("not be negative", lambda value: value >= 0)
NotNegative = Annotated[float, NOT_NEGATIVE]
NaturalNumber = Annotated[int, NOT_NEGATIVE]
Count = Annotated[int, Rule("be at least 1", lambda value: value >= 1)]
Positive = Annotated[float, Rule("be above 0", lambda value: value > 0)]
BelowOne = Annotated[float, Rule("lie in [0, 1)", lambda value: 0 <= value < 1)]
Share = Annotated[float, Rule("lie in [0, 1]", lambda value: 0 <= value <= 1)]
PositiveShare = Annotated[float, Rule("lie in (0, 1]", lambda value: 0 < value <= 1)]


class Section:
    """A section of a configuration, under the key `section`."""

    section: ClassVar[str]

    def check(self) -> None:
        """Raise a FlashbackError for values that cannot work: by default, those that break the rule of their type."""
        for name, hint in hints_of(type(self), include_extras=True).items():
            value = getattr(self, name)
            for option in (hint, *get_args(hint)):  # the type, or those of a union
                for rule in getattr(option, "__metadata__", ()):
                    if isinstance(rule, Rule) and value is not None:
                        require(rule.holds(value), f"{self.section}.{name} must {rule.text}, not {value}")


@dataclass(frozen=True)
class BenchmarkConfig(Section):
    """The data of a run, and how its classes are split into tasks."""

    section = "benchmark"
    name: str = "split-fashion-mini"  # a registered name, or the path of an .npz file or a folder of images
    order: str | int | tuple[int | str, ...] | None = None  # identity, a number, `seed` or a list; None: the default
    sizes: tuple[int, ...] | None = None  # classes per task; None: the benchmark's
    tasks: Count | None = None  # train on the first tasks only
    validation: BelowOne = 0.0  # share of the training images that replaces the test images (for tuning)


@dataclass(frozen=True)
class TrainingConfig(Section):
    """How a host's main stage is trained."""

    section = "training"
    epochs: Count = 10  # E, per task
    first_epochs: Count | None = None  # epochs of the first task; None: as the others
    batch_size: Count = 32
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Positive = 0.03
    backbone_lr_factor: Positive = 1.0  # the rate of the backbone as a multiple of lr, which the head has
    freeze_backbone: bool = False  # train the head alone
    momentum: BelowOne = 0.0  # of sgd
    weight_decay: NotNegative = 0.0  # adamw subtracts it from the weights, the others add it to the gradient
    nesterov: bool = False  # of sgd
    betas: tuple[float, ...] = (0.9, 0.999)  # of adam and adamw
    eps: Positive = 1e-8  # of adam and adamw
    schedule: Literal["none", "step", "cosine"] = "step"
    first_schedule: Literal["none", "step", "cosine"] | None = None  # of the first task; None: as the others
    milestones: tuple[float, ...] = (0.7, 0.9)  # fractions of a stage's epochs at which "step" lowers the rate
    gamma: Positive = 0.1  # factor of each drop
    stability: NotNegative = 1.0  # factor of the loss term 'stability', from the second task on
    average: BelowOne | None = None  # decay of the running average of the weights on which a task ends; None: off
    merge: PositiveShare | None = None  # share of the weights before a task in those after it; None: off
    teacher_statistics: Literal["stored", "batch"] = "stored"  # batch-norm statistics of frozen copies of the network
    views: tuple[str, ...] = ("crop", "flip")  # augmentation of training images; they act in a fixed order
    image_size: Count | None = None  # side of the training view, at most that of the stored images
    evaluation_batch: Count = 500
    precision: Literal["fp32", "tf32", "bf16"] | None = None  # None: bf16 on CUDA, fp32 on the CPU

    def check(self) -> None:
        super().check()
        require("none" not in self.views, "training.views: 'none' cannot be combined with other views")
        require(all(0 < m <= 1 for m in self.milestones), "training.milestones must lie in (0, 1]")
        require(
            not self.freeze_backbone or self.backbone_lr_factor == 1,
            "training.backbone_lr_factor does nothing with training.freeze_backbone=true; leave one of them out",
        )
        require(
            not self.freeze_backbone or self.teacher_statistics == "stored",
            "with training.freeze_backbone=true the network itself normalises by stored statistics, so "
            "training.teacher_statistics=batch would make its teacher another model; leave one of them out",
        )
        self.check_optimiser()

    def check_optimiser(self) -> None:
        """Refuse also what the optimiser would ignore: whoever gives it expects it to act."""
        pair = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        require(pair, f"training.betas must be two numbers in [0, 1), not {abbreviate(list(self.betas))}")
        if self.optimiser == "sgd":
            require(not self.nesterov or self.momentum > 0, "training.nesterov needs training.momentum above 0")
            require(
                (self.betas, self.eps) == (TrainingConfig.betas, TrainingConfig.eps),
                "training.betas and training.eps do nothing with sgd; leave them out, or choose another "
                "training.optimiser",
            )
        else:
            require(
                not self.momentum and not self.nesterov,
                f"training.momentum and training.nesterov do nothing with {self.optimiser}; set training.momentum=0 "
                "and training.nesterov=false",
            )


@dataclass(frozen=True)
class FlashbackConfig(Section):
    """Settings of Flashback Learning."""

    section = "flashback"
    enabled: bool = False
    epochs: NaturalNumber = 2  # E1, the epochs of phase 1
    second_epochs: Count | None = None  # E2, the epochs of phase 2; None: E - E1, the paper's equal budget
    teacher: Literal["primary", "running"] = "primary"  # the end of phase 1, or a running average without a phase 1
    decay: BelowOne = 0.999  # of the weights of the running teacher
    alpha: NotNegative = 0.01  # alpha_p, the weight of the plasticity loss (Eq. 19)
    # Where Lp acts: as the host declares, on all seen columns, or on stored images (all seen columns).
    support: Literal["host", "all", "memory"] = "host"
    # What Lp compares: the host's own distance, 1 - cos of features, or logits with those of both teachers.
    distance: Literal["host", "features", "logits"] = "host"
    # The images of a batch on which plasticity acts: all, or new ones; divided: and stability on the stored ones alone.
    images: Literal["all", "new", "divided"] = "all"
    # The images on which the plastic knowledge counts: all; those whose class the primary model names; those to whose
    # class it gives a higher probability than the stable model.
    where: Literal["all", "correct", "better"] = "all"
    phase1_stability: NotNegative = 1.0  # weight of the stability loss in phase 1 (Eq. 14: 1; prose of the paper: 0)
    phase1_schedule: Literal["none", "host"] = "none"
    merge: Share = 0.0  # share of the primary weights in those on which a task ends; 0: off
    start: Share = 0.0  # phase 2 starts from: 0 the stable state (the paper), 1 the primary weights, or between
    alpha_schedule: Literal["constant", "rising", "falling"] = "constant"  # alpha_p over phase 2

    def check(self) -> None:
        super().check()
        if self.teacher == "primary":
            require(
                self.decay == FlashbackConfig.decay,
                "flashback.decay does nothing with flashback.teacher=primary; leave it out, or set "
                "flashback.teacher=running",
            )
        else:
            require(
                self.phase1_stability == 1 and self.start == 0 and self.merge == 0,
                "flashback.phase1_stability, flashback.start and flashback.merge need a phase 1, and "
                "flashback.teacher=running has none; leave them out",
            )

    def split(self, epochs: int) -> tuple[int, int]:
        """E1 and E2 for a main stage of `epochs` epochs; a running teacher needs no phase 1."""
        if self.teacher == "running":
            return 0, self.second_epochs or epochs
        if self.second_epochs is not None:
            return self.epochs, self.second_epochs
        if self.epochs >= epochs:
            raise FlashbackError(
                f"flashback.epochs (E1 = {self.epochs}) leaves nothing for phase 2 of the host's {epochs} "
                f"epoch{'' if epochs == 1 else 's'}; lower it, or set flashback.second_epochs"
            )
        return self.epochs, epochs - self.epochs

    def equal_budget(self, epochs: int) -> bool:
        return not self.enabled or sum(self.split(epochs)) == epochs


@dataclass(frozen=True)
class CheckpointConfig(Section):
    """When a run saves its state; a run may be resumed with other values."""

    section = "checkpoint"
    minutes: NotNegative = 2.0  # between checkpoints
    epochs: NaturalNumber = 0  # save after every n epochs too; 0: by time only
    tasks: bool = False  # keep the model after every task, for load_trained


@dataclass(frozen=True)
class HostSettings(Section):
    """Settings that every host has; a host extends them with its own."""

    section = "host"
    name: str = ""
    net: str = ""  # a registered backbone; empty: chosen by the size of the images


@dataclass(frozen=True)
class RunConfig:
    """The configuration of one run; `configure` makes one.

    Attributes:
        host: The host's name, its net and its own settings.
        benchmark: The data, and how classes are split into tasks.
        training: Epochs, optimiser, schedule, augmentation, precision.
        flashback: Whether Flashback is on, and its settings.
        checkpoint: When the run saves its state.
        seed: Decides everything random.
        recipe: The recipe that the values come from.
        fast: Give up determinism for speed on a GPU.
        capture: On CUDA, capture the training step in a graph.
        compile: On CUDA, compile the backbones of the captured step; None: only in a long run.
    """

    host: HostSettings = field(default_factory=HostSettings)
    benchmark: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    flashback: FlashbackConfig = field(default_factory=FlashbackConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    seed: int = 0
    recipe: str = "controlled"
    fast: bool = False
    capture: bool = True
    compile: bool | None = None

    def check(self) -> None:
        require(self.seed >= 0, f"seed must not be negative, not {self.seed}")
        for section in (self.host, self.benchmark, self.training, self.flashback, self.checkpoint):
            section.check()
        if self.flashback.enabled:
            self.flashback.split(self.training.epochs)


# ---------------------------------------------------------------- mappings to dataclasses and back


def build(cls: type[T], values: Mapping[str, Any], path: str = "") -> T:
    """Make a dataclass from a mapping; errors for unknown keys and wrong types name the dotted key."""
    if not isinstance(values, Mapping):
        raise FlashbackError(f"{path.rstrip('.') or 'the configuration'} must be a mapping, not {abbreviate(values)}")
    hints = hints_of(cls)
    known = fields_of(cls)
    for key in values:
        if key not in known:
            raise unknown("key", f"{path}{key}", (f"{path}{name}" for name in known))
    for name in required_fields(cls):
        require(name in values, f"{path}{name} is missing")
    return cls(**{key: _convert(hints[key], value, f"{path}{key}") for key, value in values.items()})


def check_sections(values: Mapping[str, Any], host: type[HostSettings]) -> None:
    for key in values.keys() - fields_of(RunConfig):
        keys = [f"'{full}'" for full in full_keys(key, host)]
        require(not keys, f"unknown key '{key}'; did you mean {' or '.join(keys)}?")


def full_keys(name: str, host: type[HostSettings]) -> list[str]:
    sections = {**hints_of(RunConfig), "host": host}
    return [f"{key}.{name}" for key, section in sections.items() if name in fields_of(section)]


def fields_of(section: Any) -> set[str]:
    return {f.name for f in dataclasses.fields(section)} if dataclasses.is_dataclass(section) else set()


def required_fields(section: Any) -> list[str]:
    missing = dataclasses.MISSING
    return [f.name for f in dataclasses.fields(section) if f.default is missing and f.default_factory is missing]


def _convert(hint: Any, value: Any, path: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if isinstance(value, Real) and not isinstance(value, bool):  # a numpy number, which YAML and JSON refuse
        value = int(value) if isinstance(value, Integral) else float(value)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return value if isinstance(value, hint) else build(hint, value, f"{path}.")
    if origin in (typing.Union, types.UnionType):
        return _convert_union(arguments, value, path)
    if origin is Literal:
        value = "none" if value is None and "none" in arguments else value  # YAML's null may mean the choice "none"
        if value not in arguments:
            raise FlashbackError(f"{path} must be one of {', '.join(map(str, arguments))}, not {abbreviate(value)}")
        return value
    if origin in (tuple, list):
        value = [] if value == "none" else value
        if isinstance(value, str) or not isinstance(value, Sequence):
            fits = arguments[0] is str or str(value)[:1].isdigit()
            advice = f"; write [{value}]" if fits and len(str(value)) < LONGEST_VALUE else ""
            raise FlashbackError(f"{path} must be a list, not {abbreviate(value)}{advice}")
        return origin(_convert(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        require(isinstance(value, Mapping), f"{path} must be a mapping, not {abbreviate(value)}")
        return {str(key): _convert(arguments[1], item, f"{path}.{key}") for key, item in value.items()}
    return value if hint is Any else _convert_plain(hint, value, path)


def _convert_union(options: tuple[Any, ...], value: Any, path: str) -> Any:
    if value is None and type(None) in options:
        return None
    errors = []
    # Try the exact type first: the string "1993" must not become a number, nor 3 a string.
    for option in sorted((o for o in options if o is not type(None)), key=lambda o: not _is_exactly(o, value)):
        try:
            return _convert(option, value, path)
        except FlashbackError as error:
            errors.append(error)
    raise errors[0]


def _is_exactly(option: Any, value: Any) -> bool:
    kind = get_origin(option) or option
    return isinstance(value, Sequence) and not isinstance(value, str) if kind is tuple else type(value) is kind


def _convert_plain(hint: Any, value: Any, path: str) -> Any:
    if hint is float and isinstance(value, int | str) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            value = float(value)  # YAML reads 1e-3 as a string
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise FlashbackError(f"{path} must be {KINDS.get(hint, hint)}, not {abbreviate(value)}")
    if hint is float and not math.isfinite(value):
        raise FlashbackError(f"{path} must be a finite number, not {abbreviate(value)}")
    if hint is int and abs(value) > LARGEST_NUMBER:
        raise FlashbackError(f"{path} must be a whole number of at most {LARGEST_NUMBER}")
    return value


def to_dict(config: Any) -> dict[str, Any]:
    """A plain mapping, with lists for tuples, that `build` turns back into the same dataclass."""
    return {key: _plain(value) for key, value in dataclasses.asdict(config).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else value


def set_dotted(values: dict[str, Any], key: str, value: Any) -> None:
    *parents, leaf = key.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise FlashbackError(f"unknown key '{key}'; '{parent}' holds a value, not further keys")
    values[leaf] = value


def parse_assignment(assignment: str) -> tuple[str, Any]:
    """Split 'training.lr=0.1' into its key and its value, read as YAML."""
    key, equals, text = assignment.partition("=")
    if not equals or not key.strip():
        raise FlashbackError(f"'{assignment}' is not of the form key=value, e.g. training.lr=0.1")
    return key.strip(), read_yaml(text, f"the value of {key.strip()}")
