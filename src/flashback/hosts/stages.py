"""Stages: parts of the training of a task, each with its own images, optimiser and losses. A host lists them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from flashback.batches import Batch, Stream
from flashback.nets import Output

if TYPE_CHECKING:
    from flashback.config import TrainingConfig


@dataclass
class Step:
    """A batch and the outputs of the trained network for it; frozen models run in `distance`.

    Attributes:
        batch: Augmented images `x`, labels `y`, `raw` images, and their memory `slots` (-1: not from the memory).
        output: The network's `features` and `logits` for `batch.x`.
    """

    batch: Batch
    output: Output


@dataclass(frozen=True)
class Optimisation:
    """The optimiser of a stage and its learning-rate schedule; the fields are those of the section `training`."""

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
    backbone_lr_factor: float = 1.0

    @classmethod
    def of(cls, training: TrainingConfig, first_task: bool) -> Optimisation:
        """Take the settings of a run.

        Args:
            training: The section `training` of the configuration.
            first_task: Whether they are for the first task, which may have its own schedule.
        """
        settings = {field.name: getattr(training, field.name) for field in fields(cls)}
        if first_task and training.first_schedule:
            settings["schedule"] = training.first_schedule
        return cls(**settings)

    def rate(self, epoch: int, epochs: int) -> float:
        """Return the learning rate of an epoch.

        Args:
            epoch: The epoch, counted from 0; the first one has the base rate.
            epochs: The epochs of the stage.
        """
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1.0 + math.cos(math.pi * epoch / epochs))
        if self.schedule == "step":
            # The margin keeps 0.7 * 10 from ending up above 7.
            drops = sum(epoch >= max(1, math.ceil(share * epochs - 1e-9)) for share in self.milestones)
            return self.lr * self.gamma**drops
        return self.lr


def no_op(*_: Any) -> None:
    """Do nothing. The default of a stage's hooks."""


@dataclass(frozen=True)
class Stage:
    """One part of the training of a task. `Host.main_stage` and `Host.extra_stage` make stages.

    The randomness of the steps is seeded with (seed, task, `key`), that of `allocate` and `begin` with `setup_key`.

    Attributes:
        name: Its name in the log.
        epochs: Passes over the stream.
        batch_size: Images of a batch.
        stream: Gives the training images when the stage starts.
        parameters: Gives what the optimiser trains.
        optimisation: The optimiser and its schedule.
        forward: Runs the network on a batch and keeps the results in a `Step`.
        losses: Gives the named terms whose sum is minimised.
        before_update: Called between the backward pass and the optimiser step.
        after_step: Called after the optimiser step, without gradients.
        allocate: Builds structure before the stage (heads, blank knowledge); must not need data; replayed on resume.
        begin: Fills that structure with content, once.
        end: Called once after the last epoch.
        before_epoch: Called with the number of the epoch before it.
        after_epoch: Called with the number of the epoch after it.
        variant: Returns what the shapes of a step depend on besides the batch size.
        main: Whether Flashback splits this stage into its two phases.
        key: Seeds the randomness of the steps; by default the name.
        setup_key: Seeds the randomness of `allocate` and `begin`; by default the key.
    """

    name: str
    epochs: int
    batch_size: int
    stream: Callable[[], Stream]
    parameters: Callable[[], list[nn.Parameter]]
    optimisation: Optimisation
    forward: Callable[[Batch], Step]
    losses: Callable[[Step], Mapping[str, Tensor]]
    before_update: Callable[[Any], None] = no_op
    after_step: Callable[[Any], None] = no_op
    allocate: Callable[[], None] = no_op
    begin: Callable[[], None] = no_op
    end: Callable[[], None] = no_op
    before_epoch: Callable[[int], None] = no_op
    after_epoch: Callable[[int], None] = no_op
    variant: Callable[[], object] = no_op
    main: bool = False
    key: str = ""
    setup_key: str = ""

    @property
    def training_key(self) -> str:
        """The name that seeds the randomness of the steps: `key`, or the name of the stage."""
        return self.key or self.name

    @property
    def structure_key(self) -> str:
        """The name that seeds `allocate` and `begin`: `setup_key`, or that of the steps."""
        return self.setup_key or self.training_key
