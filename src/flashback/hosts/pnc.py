"""P&C, progress and compress (Schwarz et al. 2018): one network learns, another is distilled from it under EWC."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from flashback.batches import Batch
from flashback.config import Count, Positive
from flashback.hosts.base import HOSTS, trainable
from flashback.hosts.ewc import OnlineEWC, OnlineEWCSettings
from flashback.hosts.stages import Stage, Step
from flashback.knowledge import bytes_of, copy_state, soft_binary_cross_entropy, soft_cross_entropy
from flashback.nets import Net, evaluating
from flashback.nets.combined import ActiveColumn


@dataclass(frozen=True)
class PnCSettings(OnlineEWCSettings):
    column: Literal["fresh", "kept"] = "fresh"  # whether each task has a new active column or continues the last
    progress_epochs: Count | None = None  # None: as many as the compression, so that each has half of a task
    progress_lr: Positive | None = None  # None: the rate of the compression, which the quadratic penalty keeps low


@dataclass
class CompressionStep(Step):
    """A step of the knowledge base, with the logits of the active column for the same images."""

    target: Tensor


@HOSTS.register("pnc")
class ProgressAndCompress(OnlineEWC):
    """An active column learns a task freely; the knowledge base then learns from it under online EWC.

    Progress: the active column, which reads the features of the knowledge base, learns from the labels. Compress: the
    knowledge base, `self.net`, minimises KL(active column || knowledge base), which differs from the cross-entropy
    used here by a constant, plus the penalty of online EWC.
    """

    Settings = PnCSettings
    has_one_backbone = False
    accumulates_structure = False
    net: Net
    column: Net

    def build(self) -> None:
        super().build()
        self.column = self.fresh_net()

    def grow(self, columns: int) -> None:
        super().grow(columns)
        self.column.grow(columns)

    def check(self) -> None:
        self.net.backbone.levels()  # refuses a network without levels

    def fresh_net(self) -> Net:
        net = self.new_net()
        net.backbone.copy_frozen(self.net.backbone)
        return net

    def stages(self) -> list[Stage]:
        compress = self.main_stage(name="compress")
        progress = self.extra_stage(
            "progress",
            self.settings.progress_epochs or compress.epochs,
            {"lr": self.settings.progress_lr, "schedule": compress.optimisation.schedule},
            parameters=lambda: trainable(self.column),
            forward=lambda batch: Step(batch, self.column(batch.x)),
            losses=lambda step: {"task": self.task_loss(step.output.logits, step.batch.y)},
            allocate=self.allocate_column,
            begin=self.copy_knowledge_base,
        )
        return [progress, compress]

    def allocate_column(self) -> None:
        """Connect the column to the knowledge base; not in the first task, when that is untrained."""
        if self.task.index == 0:
            return
        if self.settings.column == "fresh":
            self.column = self.fresh_net()
        if not isinstance(self.column, ActiveColumn):
            blank = torch.zeros(1, *self.benchmark.image_shape, dtype=torch.uint8, device=self.device)
            self.column = ActiveColumn(self.column, self.net.backbone, self.views.plain(blank))

    def copy_knowledge_base(self) -> None:
        """Let the column read a copy, so that its predictions do not change while the knowledge base learns from it."""
        if isinstance(self.column, ActiveColumn):
            copy_state(self.net.backbone, self.column.other.module)

    def trained_parameters(self) -> list[nn.Parameter]:
        return self.anchored_parameters()

    def forward(self, batch: Batch) -> CompressionStep:
        step = super().forward(batch)
        with torch.no_grad(), evaluating(self.column):
            return CompressionStep(batch, step.output, self.column(batch.x).logits)

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        """L = KL(active column || knowledge base) + lambda * sum F-hat (theta - theta_s)^2."""
        assert isinstance(step, CompressionStep)
        terms = {"compression": self.distillation(step.output.logits, step.target)}
        if self.task.index > 0:
            terms["stability"] = self.stability(step)
        return terms

    def distillation(self, logits: Tensor, target: Tensor) -> Tensor:
        """Compute the task loss with the predictions of the active column in place of labels."""
        if self.settings.loss == "bce_current":
            new = self.task.new
            return soft_binary_cross_entropy(logits[:, new], target[:, new].sigmoid())
        columns = self.softmax_columns()
        return soft_cross_entropy(logits[:, columns], target[:, columns])

    def knowledge_bytes(self) -> dict[str, int]:
        """Count the anchor, the old knowledge base that the column reads, and the column if it is kept."""
        stable, column = super().knowledge_bytes()["stable"], self.column
        if self.settings.column == "kept":
            return {"stable": stable + bytes_of(column)}
        return {"stable": stable + (bytes_of(column.other) if isinstance(column, ActiveColumn) else 0)}
