"""X-DER (Boschini et al. 2022): DER whose memory is edited and whose heads are prepared for classes to come.

One linear layer is read as one head per task: past heads, the present one, future ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from flashback.batches import Batch
from flashback.benchmarks import Task
from flashback.config import within
from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.contrastive import supervised_contrastive
from flashback.hosts.replay import ReplayHost, ReplaySettings, ReplayStep
from flashback.memory import Field, balanced_quotas, within_quotas
from flashback.nets import untracked_batchnorm


@dataclass(frozen=True)
class XDERSettings(ReplaySettings):
    alpha: float = 0.6
    beta: float = 0.9  # weight of the cross-entropy on replayed images, over the past heads
    gamma: float = 0.85  # edited logits reach at most this share of the true class's logit
    contrastive_weight: float = 0.05  # lambda, of the preparation of future heads
    contrastive_batch: int = 64  # new images, and as many from the memory, that prepare future heads
    temperature: float = 5.0  # of the contrastive loss
    constraint_weight: float = 0.01  # eta, of the constraints on past and future heads
    margin: float = 0.2  # m, by which the own head should win over them

    def check(self) -> None:
        super().check()
        for name in ("beta", "contrastive_weight", "constraint_weight", "margin"):
            within(getattr(self, name) >= 0, f"host.{name} is not negative, not {getattr(self, name)}")
        within(0 < self.gamma <= 1, f"host.gamma lies in (0, 1], not {self.gamma}")
        within(self.contrastive_batch >= 1, f"host.contrastive_batch is at least 1, not {self.contrastive_batch}")
        within(self.temperature > 0, f"host.temperature is above 0, not {self.temperature}")


@dataclass
class XDERStep(ReplayStep):
    strong: tuple[Tensor, Tensor] | None  # logits and labels of the strong views, while future heads exist


@HOSTS.register("xder")
class XDER(ReplayHost):
    """Images enter the memory at the end of a task; in between, the targets of past images are kept up to date."""

    Settings = XDERSettings
    task_of: Tensor  # the task of every column

    def build(self) -> None:
        super().build()
        sizes = torch.tensor(self.benchmark.sizes)
        self.register_buffer("task_of", torch.arange(len(sizes)).repeat_interleave(sizes), persistent=False)

    def fields(self) -> dict[str, Field]:
        return {**super().fields(), "replays": ((), torch.int64)}  # how often a slot was replayed in this task

    def check(self) -> None:
        tasks, classes, size = len(self.benchmark.tasks), self.benchmark.classes, self.settings.memory_size
        within(tasks >= 2, "xder prepares heads for later tasks, and this benchmark has only one task; use der++")
        within(size >= classes, f"host.memory_size is {size}, less than one image for {classes} classes each; raise it")

    @property
    def later(self) -> tuple[Task, ...]:
        """The tasks whose heads still wait for their classes."""
        return self.benchmark.tasks[self.task.index + 1 :]

    def available(self, wanted: int) -> int:
        # In the first task the memory is empty to the end; asking it would wait for the device in every step.
        return super().available(wanted) if self.task.index > 0 else 0

    def variant(self) -> object:
        return super().variant(), self.available(self.settings.contrastive_batch)

    # ------------------------------------------------------------ a batch

    def forward(self, batch: Batch) -> XDERStep:
        output, draws = self.net(batch.x), self.recall(2)
        return XDERStep(batch, output, draws, self.strong_views(batch) if self.later else None)

    def strong_views(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Two strong views of new and of stored images, in a pass that leaves batch-norm statistics alone."""
        size = self.settings.contrastive_batch
        raw, labels = batch.raw[:size], batch.y[:size]
        if stored := self.available(size):
            slots = self.memory.draw(stored, self.generator)
            raw, labels = torch.cat([raw, self.memory.images[slots]]), torch.cat([labels, self.memory.labels[slots]])
        views = self.views.strong(torch.cat([raw, raw]), self.generator)
        with untracked_batchnorm(self.net):
            return self.net(views).logits, torch.cat([labels, labels])

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
        heads = (logits[:, task.new] for task in self.later)
        return torch.stack([supervised_contrastive(head, labels, self.settings.temperature) for head in heads]).mean()

    def past_constraint(self, step: XDERStep) -> Tensor:
        """On new images, no past class should be as probable as the present ones."""
        share = step.output.logits[:, : self.task.seen.stop].softmax(dim=1)
        past, present = share[:, self.task.old].amax(dim=1), share[:, self.task.new].amax(dim=1)
        return mean_violation(past.detach() + self.settings.margin - present)

    def future_constraint(self, step: XDERStep) -> Tensor:
        """On any image, no future logit should come near those of the image's own head; each slot counts once."""
        logits = torch.cat([step.output.logits, *(draw.output.logits for draw in step.draws)])
        labels = torch.cat([step.batch.y, *(draw.labels for draw in step.draws)])
        unstored = -1 - torch.arange(len(step.batch), device=labels.device)  # new images all count
        counted = first_of_each(torch.cat([unstored, *(draw.slots for draw in step.draws)]))
        foreign = self.task_of[labels][:, None] != self.task_of
        own = logits.masked_fill(foreign, -torch.inf).amax(dim=1)
        return mean_violation(logits[:, self.task.seen.stop :].amax(dim=1) + self.settings.margin - own, counted)

    # ------------------------------------------------------------ memory editing

    def after_step(self, step: XDERStep) -> None:
        """Write what the model now says in the present and future heads over the targets of replayed images.

        A slot replayed for the c-th time in this task is edited with probability 1/c.
        """
        if not step.draws:
            return
        slots = torch.cat([draw.slots for draw in step.draws])
        first = first_of_each(slots)
        times = self.memory["replays"][slots] + 1
        luck = torch.rand(len(slots), generator=self.generator, device=slots.device)
        self.memory.write(slots, replays=times)  # a slot in both draws counts once: each time it gets the same number
        self.edit(slots, torch.cat([draw.output.logits for draw in step.draws]), first & (luck * times < 1))

    def edit(self, slots: Tensor, fresh: Tensor, chosen: Tensor) -> None:
        """Take fresh logits over, kept below the true class's, for columns that no past task has settled."""
        targets = self.memory["targets"][slots]
        truth = targets.gather(1, self.memory.labels[slots][:, None])
        since = self.task.new.start
        edited = torch.cat([targets[:, :since], attenuated(fresh[:, since:], truth, self.settings.gamma)], dim=1)
        self.memory.write(slots.where(chosen, self.memory.capacity), targets=edited)

    # ------------------------------------------------------------ the end of a task

    @torch.no_grad()
    def end(self) -> None:
        """Trim past classes to their quotas, store new images, edit all past targets, forget the counts."""
        memory, old = self.memory, len(self.task.before)
        quotas = balanced_quotas(memory.capacity, old, len(self.task.classes), self.generator)
        memory.keep(within_quotas(memory.labels[: memory.filled], quotas[:old]))
        past = torch.randperm(memory.filled, generator=self.generator, device=self.device)
        self.store_new(quotas)
        if len(past):
            self.edit(past, self.training_logits(memory.images[past]), torch.ones_like(past, dtype=torch.bool))
        memory["replays"].zero_()

    def store_new(self, quotas: list[int]) -> None:
        """The first images of each new class in a random order; their past heads are attenuated like edited ones."""
        order = torch.randperm(len(self.task.train), generator=self.generator, device=self.device).cpu()
        chosen = order[within_quotas(self.task.train.y[order], quotas)]
        images, labels = self.task.train.x[chosen].to(self.device), self.task.train.y[chosen].to(self.device)
        targets, since = self.training_logits(images), self.task.new.start
        if since:
            truth = targets.gather(1, labels[:, None])
            past = attenuated(targets[:, :since], truth, self.settings.gamma)
            targets = torch.cat([past, targets[:, since:]], dim=1)
        self.memory.append(images, labels, targets=targets, replays=torch.zeros_like(labels))

    def training_logits(self, raw: Tensor) -> Tensor:
        """Logits as a training step would see them: augmented, with batch statistics, which are not tracked here."""
        self.net.train()
        batches = raw.tensor_split(-(-len(raw) // self.config.training.batch_size))
        with untracked_batchnorm(self.net):
            return torch.cat([self.net(self.views.weak(part, self.generator)).logits for part in batches])


def attenuated(logits: Tensor, truth: Tensor, gamma: float) -> Tensor:
    """Scale each row so that its largest logit is at most gamma times the true one, where it exceeds that one.

    Only for positive true logits: with others the ratio would turn signs round.
    """
    largest = logits.amax(dim=1, keepdim=True)
    exceeds = (largest > truth) & (truth > 0)
    return torch.where(exceeds, logits * (gamma * truth / largest.where(exceeds, 1.0)), logits)


def first_of_each(slots: Tensor) -> Tensor:
    """Marks the first occurrence of every slot."""
    same = slots[:, None] == slots
    return ~same.tril(diagonal=-1).any(dim=1)


def mean_violation(hinge: Tensor, counted: Tensor | bool = True) -> Tensor:
    """The mean over those that violate a constraint; zero if none does."""
    violated = (hinge > 0) & counted
    return (hinge * violated).sum() / violated.sum().clamp(min=1)
