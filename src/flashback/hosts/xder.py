"""X-DER (Boschini et al. 2022): DER whose memory is edited and whose heads are prepared for classes to come.

One linear layer is read as one head per task: past heads, the present one, future ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from flashback.batches import Batch
from flashback.benchmarks import Task
from flashback.config import above_zero, at_least_one, not_negative
from flashback.errors import require
from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.editing import EditingHost, EditingSettings
from flashback.hosts.losses import mean_violation, supervised_contrastive
from flashback.hosts.replay import ReplayStep
from flashback.memory import first_occurrences
from flashback.nets import joint_forward


@dataclass(frozen=True)
class XDERSettings(EditingSettings):
    alpha: float = 0.6
    beta: float = 0.9  # weight of the cross-entropy on replayed images, over the past heads
    contrastive_weight: float = 0.05  # lambda, of the preparation of future heads
    contrastive_batch: int = 64  # new images, and as many from the memory, that prepare future heads
    temperature: float = 5.0  # of the contrastive loss
    constraint_weight: float = 0.01  # eta, of the constraints on past and future heads
    margin: float = 0.2  # m, by which the own head should win over them

    def check(self) -> None:
        super().check()
        not_negative(self, "beta", "contrastive_weight", "constraint_weight", "margin")
        at_least_one(self, "contrastive_batch")
        above_zero(self, "temperature")


@dataclass
class XDERStep(ReplayStep):
    strong: tuple[Tensor, Tensor] | None  # logits and labels of the strong views, while future heads exist


@HOSTS.register("xder")
class XDER(EditingHost):
    """Replays from an edited memory, keeps the heads apart in every loss, and trains those that wait for classes."""

    Settings = XDERSettings
    draws = 2
    task_of: Tensor  # the task of every column

    def build(self) -> None:
        super().build()
        sizes = torch.tensor(self.benchmark.sizes)
        self.register_buffer("task_of", torch.arange(len(sizes)).repeat_interleave(sizes), persistent=False)

    def check(self) -> None:
        tasks = len(self.benchmark.tasks)
        require(tasks >= 2, "xder prepares heads for later tasks, and this benchmark has only one task; use der++")
        super().check()

    @property
    def later(self) -> tuple[Task, ...]:
        """The tasks whose heads still wait for their classes."""
        return self.benchmark.tasks[self.task.index + 1 :]

    def variant(self) -> object:
        return super().variant(), self.available(self.settings.contrastive_batch)

    # ------------------------------------------------------------ a batch

    def forward(self, batch: Batch) -> XDERStep:
        recalled = self.recall(self.draws)
        views, labels = self.strong_views(batch) if self.later else ([], None)
        output, *others = joint_forward(self.net, [batch.x, *(own.x for own in recalled)], untracked=views)
        draws = self.answered(recalled, others[: len(recalled)])
        return XDERStep(batch, output, draws, None if labels is None else (others[-1].logits, labels))

    def strong_views(self, batch: Batch) -> tuple[list[Tensor], Tensor]:
        """Two strong views of new and of stored images as one batch, and their labels."""
        size = self.settings.contrastive_batch
        raw, labels = batch.raw[:size], batch.y[:size]
        if stored := self.available(size):
            slots = self.memory.draw(stored, self.generator)
            raw, labels = torch.cat([raw, self.memory.images[slots]]), torch.cat([labels, self.memory.labels[slots]])
        return [self.views.strong(torch.cat([raw, raw]), self.generator)], torch.cat([labels, labels])

    def losses(self, step: XDERStep) -> Mapping[str, Tensor]:
        new, old, logits = self.task.new, self.task.old, step.output.logits
        # Each head competes with its like: new images in the present head, stored ones in past heads.
        terms = {"task": cross_entropy(logits[:, new], step.batch.y - new.start)}
        if step.draws:
            second = step.draws[1]
            terms["stability"] = self.stability(step)
            terms["replay"] = self.settings.beta * cross_entropy(second.output.logits[:, old], second.labels)
            terms["past constraint"] = self.settings.constraint_weight * self.past_constraint(step)
        if step.strong is not None:
            terms["preparation"] = self.settings.contrastive_weight * self.preparation(*step.strong)
            terms["future constraint"] = self.settings.constraint_weight * self.future_constraint(step)
        return terms

    def preparation(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Future heads learn to tell the classes apart that are there already; mean over heads."""
        # Columns of zeros, where heads are of unequal width, change no cosine.
        heads = pad_sequence([logits[:, task.new].T for task in self.later]).permute(1, 2, 0)
        return supervised_contrastive(heads, labels, self.settings.temperature).mean()

    def past_constraint(self, step: XDERStep) -> Tensor:
        """On new images, no past class should be as probable as the present ones."""
        share = step.output.logits[:, self.task.seen].softmax(dim=1)
        past, present = share[:, self.task.old].amax(dim=1), share[:, self.task.new].amax(dim=1)
        return mean_violation(past.detach() + self.settings.margin - present)

    def future_constraint(self, step: XDERStep) -> Tensor:
        """On any image, no future logit should come near those of the image's own head; each slot counts once."""
        logits = torch.cat([step.output.logits, *(draw.output.logits for draw in step.draws)])
        labels = torch.cat([step.batch.y, *(draw.labels for draw in step.draws)])
        unstored = -1 - torch.arange(len(step.batch), device=labels.device)  # new images all count
        counted = first_occurrences(torch.cat([unstored, *(draw.slots for draw in step.draws)]))
        foreign = self.task_of[labels][:, None] != self.task_of
        own = logits.masked_fill(foreign, -torch.inf).amax(dim=1)
        return mean_violation(logits[:, self.task.seen.stop :].amax(dim=1) + self.settings.margin - own, counted)
