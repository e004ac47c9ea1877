"""A stage: one stretch of training with its own data, optimiser and losses. A host makes a list of them for a task."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from flashback.batches import Batch, Stream
from flashback.nets import Output

if TYPE_CHECKING:
    from flashback.config import TrainingConfig


@dataclass
class Step:
    """Everything one batch produced: every pass is run once and kept here."""

    batch: Batch
    output: Output


@dataclass(frozen=True)
class Optimisation:
    """The optimiser and how its learning rate moves over a stage."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    schedule: str = "none"
    milestones: tuple[float, ...] = (0.7, 0.9)
    gamma: float = 0.1
    optimiser: str = "sgd"
    betas: tuple[float, ...] = (0.9, 0.999)
    eps: float = 1e-8

    @classmethod
    def of(cls, training: TrainingConfig, first_task: bool) -> Optimisation:
        schedule = training.first_schedule if first_task and training.first_schedule else training.schedule
        return cls(
            training.lr,
            training.momentum,
            training.weight_decay,
            training.nesterov,
            schedule,
            training.milestones,
            training.gamma,
            training.optimiser,
            training.betas,
            training.eps,
        )

    def rate(self, epoch: int, epochs: int) -> float:
        """The learning rate of an epoch. The first epoch always has the base rate."""
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1.0 + math.cos(math.pi * epoch / epochs))
        if self.schedule == "step":
            # The margin keeps 0.7 * 10 from ending up above 7.
            drops = sum(epoch >= max(1, math.ceil(share * epochs - 1e-9)) for share in self.milestones)
            return self.lr * self.gamma**drops
        return self.lr


def nothing(*_: Any) -> None:
    """The hook of a stage that has nothing to do there."""


@dataclass(frozen=True)
class Stage:
    """`allocate` builds structure and is replayed on resume; `begin` and `end` fill it with content, once.

    All randomness of a stage comes from (seed, task, key); that of `allocate` and `begin` from `setup_key`.
    """

    name: str
    epochs: int
    batch_size: int
    stream: Callable[[], Stream]
    parameters: Callable[[], list[nn.Parameter]]
    optimisation: Optimisation
    forward: Callable[[Batch], Step]
    losses: Callable[[Step], Mapping[str, Tensor]]
    before_update: Callable[[Any], None] = nothing
    after_step: Callable[[Any], None] = nothing
    allocate: Callable[[], None] = nothing
    begin: Callable[[], None] = nothing
    end: Callable[[], None] = nothing
    before_epoch: Callable[[int], None] = nothing
    after_epoch: Callable[[int], None] = nothing
    variant: Callable[[], object] = nothing  # what besides the batch size decides the shapes of a step
    main: bool = False
    key: str = ""
    setup_key: str = ""

    @property
    def training_key(self) -> str:
        return self.key or self.name

    @property
    def structure_key(self) -> str:
        return self.setup_key or self.training_key
