"""The typed configuration of a run: frozen dataclasses that YAML, the command line and Python share.

Unknown keys and wrong types are errors of one sentence. A resolved configuration, written as YAML, starts the same run
again.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, get_args, get_origin

from flashback.errors import LONGEST_VALUE, FlashbackError, abbreviate, require, unknown
from flashback.plain_yaml import LARGEST_NUMBER, read_yaml

T = TypeVar("T")


@dataclass(frozen=True)
class BenchmarkConfig:
    """The data of a run, and how its classes are split into tasks."""

    name: str = "split-fashion-mini"  # a registered name, or the path of an .npz file or a folder of images
    order: str | int | tuple[int | str, ...] | None = None  # identity, a number, `seed` or a list; None: the default
    sizes: tuple[int, ...] | None = None  # classes per task; None: the benchmark's
    tasks: int | None = None  # train on the first tasks only
    validation: float = 0.0  # share of the training images that replaces the test images (for tuning)

    def check(self) -> None:
        require(0.0 <= self.validation < 1.0, f"benchmark.validation must lie in [0, 1), not {self.validation}")
        require(self.tasks is None or self.tasks >= 1, f"benchmark.tasks must be at least 1, not {self.tasks}")


@dataclass(frozen=True)
class TrainingConfig:
    """How a host's main stage is trained."""

    epochs: int = 10  # E, per task
    first_epochs: int | None = None  # epochs of the first task; None: as the others
    batch_size: int = 32
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.03
    momentum: float = 0.0  # of sgd
    weight_decay: float = 0.0  # adamw subtracts it from the weights, the others add it to the gradient
    nesterov: bool = False  # of sgd
    betas: tuple[float, ...] = (0.9, 0.999)  # of adam and adamw
    eps: float = 1e-8  # of adam and adamw
    schedule: Literal["none", "step", "cosine"] = "step"
    first_schedule: Literal["none", "step", "cosine"] | None = None  # of the first task; None: as the others
    milestones: tuple[float, ...] = (0.7, 0.9)  # fractions of a stage's epochs at which "step" lowers the rate
    gamma: float = 0.1  # factor of each drop
    views: tuple[str, ...] = ("crop", "flip")  # augmentation of training images; they act in a fixed order
    image_size: int | None = None  # side of the training view, at most that of the stored images
    evaluation_batch: int = 500
    precision: Literal["fp32", "tf32", "bf16"] | None = None  # None: bf16 on CUDA, fp32 on the CPU

    def check(self) -> None:
        for name in ("epochs", "batch_size", "evaluation_batch"):
            require(getattr(self, name) >= 1, f"training.{name} must be at least 1, not {getattr(self, name)}")
        require(self.first_epochs is None or self.first_epochs >= 1, "training.first_epochs must be at least 1")
        require(self.lr > 0, f"training.lr must be above 0, not {self.lr}")
        require(0 <= self.momentum < 1, f"training.momentum must lie in [0, 1), not {self.momentum}")
        require(self.weight_decay >= 0, f"training.weight_decay must not be negative, not {self.weight_decay}")
        self.check_optimiser()
        require("none" not in self.views, "training.views: write none or [] alone for no augmentation")
        require(all(0 < m <= 1 for m in self.milestones), "training.milestones must lie in (0, 1]")
        require(self.gamma > 0, f"training.gamma must be above 0, not {self.gamma}")
        require(self.image_size is None or self.image_size >= 1, "training.image_size must be at least 1")

    def check_optimiser(self) -> None:
        """Refuse also what the optimiser would ignore: whoever gives it expects it to act."""
        pair = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        require(pair, f"training.betas must be two numbers in [0, 1), not {abbreviate(list(self.betas))}")
        require(self.eps > 0, f"training.eps must be above 0, not {self.eps}")
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
class FlashbackConfig:
    """Settings of Flashback Learning."""

    enabled: bool = False
    epochs: int = 2  # E1, the epochs of phase 1
    second_epochs: int | None = None  # E2, the epochs of phase 2; None: E - E1, the paper's equal budget
    alpha: float = 0.01  # alpha_p, the weight of the plasticity loss (Eq. 19)
    support: Literal["host", "all", "memory"] = "host"  # the samples of the plasticity distance
    phase1_stability: float = 1.0  # weight of the host's stability loss in phase 1 (Eq. 14: 1; prose of the paper: 0)
    phase1_schedule: Literal["none", "host"] = "none"
    start: float = 0.0  # phase 2 starts from: 0 the stable state (the paper), 1 the primary weights, or between
    alpha_schedule: Literal["constant", "rising", "falling"] = "constant"  # alpha_p over phase 2

    def check(self) -> None:
        require(self.epochs >= 0, f"flashback.epochs (E1) must not be negative, not {self.epochs}")
        require(
            self.second_epochs is None or self.second_epochs >= 1, "flashback.second_epochs (E2) must be at least 1"
        )
        require(self.alpha >= 0, f"flashback.alpha (alpha_p) must not be negative, not {self.alpha}")
        require(self.phase1_stability >= 0, "flashback.phase1_stability must not be negative")
        require(0 <= self.start <= 1, f"flashback.start must lie in [0, 1], not {self.start}")

    def split(self, epochs: int) -> tuple[int, int]:
        """E1 and E2 for a main stage of `epochs` epochs."""
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
class CheckpointConfig:
    """When a run saves its state; a run may be resumed with other values."""

    minutes: float = 2.0  # between checkpoints
    epochs: int = 0  # save every so many epochs too; 0: by time only
    tasks: bool = False  # keep the model after every task, for load_trained

    def check(self) -> None:
        require(self.minutes >= 0, f"checkpoint.minutes must not be negative, not {self.minutes}")
        require(self.epochs >= 0, f"checkpoint.epochs must not be negative, not {self.epochs}")


@dataclass(frozen=True)
class HostSettings:
    """Settings that every host has; a host extends them with its own."""

    name: str = ""
    net: str = ""  # a registered backbone; empty: chosen by the size of the images

    def check(self) -> None:
        """Raise a FlashbackError for values that cannot work."""


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


def not_negative(settings: HostSettings, *names: str) -> None:
    """Check these settings of a host; None always passes."""
    _bounded(settings, names, lambda value: value >= 0, "not be negative")


def above_zero(settings: HostSettings, *names: str) -> None:
    _bounded(settings, names, lambda value: value > 0, "be above 0")


def at_least_one(settings: HostSettings, *names: str) -> None:
    _bounded(settings, names, lambda value: value >= 1, "be at least 1")


def _bounded(settings: HostSettings, names: Sequence[str], holds: Callable[[Any], bool], rule: str) -> None:
    for name in names:
        value = getattr(settings, name)
        require(value is None or holds(value), f"host.{name} must {rule}, not {value}")


# ---------------------------------------------------------------- mappings to dataclasses and back


def build(cls: type[T], values: Mapping[str, Any], path: str = "") -> T:
    """Make a dataclass from a mapping; errors for unknown keys and wrong types name the dotted key."""
    if not isinstance(values, Mapping):
        raise FlashbackError(f"{path.rstrip('.') or 'the configuration'} must be a mapping, not {abbreviate(values)}")
    hints = typing.get_type_hints(cls)
    known = fields_of(cls)
    for key in values:
        if key not in known:
            raise unknown("key", f"{path}{key}", (f"{path}{name}" for name in known))
    return cls(**{key: _convert(hints[key], value, f"{path}{key}") for key, value in values.items()})


def check_sections(values: Mapping[str, Any], host: type[HostSettings]) -> None:
    """Refuse a key without its section, such as `epochs`, and name the full keys."""
    for key in values.keys() - fields_of(RunConfig):
        keys = [f"'{full}'" for full in full_keys(key, host)]
        require(not keys, f"unknown key '{key}'; did you mean {' or '.join(keys)}?")


def full_keys(name: str, host: type[HostSettings]) -> list[str]:
    """The keys that end with a plain name, each with its section."""
    sections = {**typing.get_type_hints(RunConfig), "host": host}
    return [f"{key}.{name}" for key, section in sections.items() if name in fields_of(section)]


def fields_of(section: Any) -> set[str]:
    return {f.name for f in dataclasses.fields(section)} if dataclasses.is_dataclass(section) else set()


def _convert(hint: Any, value: Any, path: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    value = _plain_number(value)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return value if isinstance(value, hint) else build(hint, value, f"{path}.")
    if origin in (typing.Union, types.UnionType):
        return _convert_union(arguments, value, path)
    if origin is Literal:
        return _convert_choice(arguments, value, path)
    if origin in (tuple, list):
        value = [] if value == "none" else value
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise FlashbackError(f"{path} must be a list, not {abbreviate(value)}{_list_advice(arguments[0], value)}")
        return origin(_convert(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise FlashbackError(f"{path} must be a mapping, not {abbreviate(value)}")
        return {str(key): _convert(arguments[1], item, f"{path}.{key}") for key, item in value.items()}
    return _convert_plain(hint, value, path)


def _plain_number(value: Any) -> Any:
    """Turn numpy numbers into Python numbers, which YAML and JSON accept."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _list_advice(hint: Any, value: Any) -> str:
    """How to write the value as a list, if that would be valid."""
    if not isinstance(value, (str, int, float)) or len(str(value)) >= LONGEST_VALUE:
        return ""
    try:
        _convert(tuple[hint, ...], read_yaml(f"[{value}]", "the value"), "")
    except FlashbackError:
        return ""
    return f"; write [{value}]"


def _convert_union(options: tuple[Any, ...], value: Any, path: str) -> Any:
    if value is None and type(None) in options:
        return None
    failure: FlashbackError | None = None
    # Try the exact type first: the string "1993" must not become a number, nor 3 a string.
    for option in sorted((o for o in options if o is not type(None)), key=lambda o: not _is_exactly(o, value)):
        try:
            return _convert(option, value, path)
        except FlashbackError as error:
            failure = failure or error
    raise failure or FlashbackError(f"{path} cannot be {abbreviate(value)}")


def _is_exactly(option: Any, value: Any) -> bool:
    kind = get_origin(option) or option
    return isinstance(value, Sequence) and not isinstance(value, str) if kind is tuple else type(value) is kind


def _convert_choice(choices: tuple[Any, ...], value: Any, path: str) -> Any:
    # YAML reads `none` as a string, but `null` and `~` as None; all may mean the choice "none".
    value = "none" if value is None and "none" in choices else value
    if value not in choices:
        raise FlashbackError(f"{path} must be one of {', '.join(map(str, choices))}, not {abbreviate(value)}")
    return value


def _convert_plain(hint: Any, value: Any, path: str) -> Any:
    if hint is Any:
        return value
    if hint is float and isinstance(value, (int, str)) and not isinstance(value, bool):
        try:
            value = float(value)  # YAML reads 1e-3 as a string
        except (ValueError, OverflowError):
            raise FlashbackError(f"{path} must be a number, not {abbreviate(value)}") from None
    if hint is float and isinstance(value, float) and not math.isfinite(value):
        raise FlashbackError(f"{path} must be a finite number, not {abbreviate(value)}")
    if hint is int and type(value) is int and abs(value) > LARGEST_NUMBER:
        raise FlashbackError(f"{path} must be a whole number of at most {LARGEST_NUMBER}")
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        kind = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}.get(hint, hint)
        raise FlashbackError(f"{path} must be {kind}, not {abbreviate(value)}")
    return value


def to_dict(config: Any) -> dict[str, Any]:
    """A plain mapping, with lists for tuples, that `build` turns back into the same dataclass."""
    return {key: _plain(value) for key, value in dataclasses.asdict(config).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else value


def set_dotted(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a value in nested mappings by its dotted key."""
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
