"""What LUCIR and PODNet share: class vectors compared by direction, imprinted and then balanced on exemplars."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from flashback.config import above_zero
from flashback.errors import require
from flashback.hosts.exemplars import ExemplarHost, ExemplarSettings
from flashback.hosts.prediction import features_of
from flashback.hosts.stages import Stage, Step
from flashback.nets import CosineNet, Output, evaluating, untracked_batchnorm


@dataclass(frozen=True)
class CosineSettings(ExemplarSettings):
    imprint_view: Literal["plain", "train"] = "plain"  # the view of the images that imprint new class vectors
    # Class vectors of the balanced fine-tuning: all, with batch-norm statistics and sigma held (the original), or those
    # of the task, with statistics of the batch and sigma trained (Mammoth).
    finetune: Literal["seen", "current", "none"] = "seen"
    finetune_epochs: int = 20
    finetune_lr: float = 0.01
    finetune_milestones: tuple[float, ...] = (0.5,)  # shares of these epochs at which the rate falls to a tenth

    def check(self) -> None:
        super().check()
        require(
            self.finetune_epochs >= 1, "host.finetune_epochs is at least 1; host.finetune=none leaves the stage out"
        )
        above_zero(self, "finetune_lr")
        require(all(0 < m <= 1 for m in self.finetune_milestones), "host.finetune_milestones are shares in (0, 1]")


class CosineHost(ExemplarHost):
    """Learns new class vectors beside frozen old ones, then balances the classifier on the exemplars alone.

    Classes to come have a column too, but random vectors until they are imprinted: zero-shot accuracy is chance.
    """

    Settings = CosineSettings
    family = "distillation"
    net: CosineNet

    # ------------------------------------------------------------ stages

    def stages(self) -> list[Stage]:
        balanced = self.task.index > 0 and self.settings.finetune != "none"
        return [self.main_stage(), self.balanced_finetuning()] if balanced else [self.main_stage()]

    def allocate(self) -> None:
        super().allocate()
        self.net.train_only(range(self.task.index, self.task.index + 1), backbone=True)

    @torch.no_grad()
    def begin(self) -> None:
        """Imprint: new class vectors start in directions of their class, with the mean length of old ones."""
        if self.task.index == 0:
            return
        weak = partial(self.views.weak, generator=self.generator)
        view = weak if self.settings.imprint_view == "train" else self.views.plain
        features = self.embed(self.task.train.x, features_of, view=view)
        labels = self.task.train.y.to(self.device) - self.task.new.start
        blocks: list[Tensor] = [*self.net.blocks()]
        length = torch.cat(blocks[: self.task.index]).norm(dim=1).mean()
        blocks[self.task.index].copy_(length * self.directions(features, labels))

    def directions(self, features: Tensor, labels: Tensor) -> Tensor:
        """Unit vectors for the new classes, whose labels count from 0."""
        raise NotImplementedError

    def balanced_finetuning(self) -> Stage:
        """The classifier alone, on the exemplars, of which every class has as many."""
        settings, all_seen = self.settings, self.settings.finetune == "seen"
        tuned = range(0 if all_seen else self.task.index, self.task.index + 1)
        mode = evaluating if all_seen else untracked_batchnorm
        return self.later_stage(
            "balanced fine-tuning",
            settings.finetune_epochs,
            {"lr": settings.finetune_lr, "schedule": "step", "milestones": settings.finetune_milestones, "gamma": 0.1},
            stream=self.memory_stream,
            forward=mode(self.net)(self.forward),
            losses=self.classification,  # a distance between features has no gradient here: they stand still
            allocate=lambda: self.net.train_only(tuned, backbone=False, sigma=not all_seen),
        )

    # ------------------------------------------------------------ losses and knowledge

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        terms = self.classification(step)
        if self.stable is not None:
            terms["stability"] = self.stability(step)
        return terms

    def classification(self, step: Step) -> dict[str, Tensor]:
        """The terms that train the classifier."""
        raise NotImplementedError

    def response(self, output: Output) -> Tensor:
        """Replayed knowledge is a direction too, of a length for which 1 - cos is the mean squared difference."""
        return math.sqrt(self.response_width() / 2) * F.normalize(output.features)

    def response_width(self) -> int:
        return self.net.backbone.width
