"""X-DER (Boschini et al. 2022): DER whose memory is kept up to date and whose heads are prepared for later classes.

It follows the authors' release of 2022, not the later default of Mammoth, which aligns batch norms and takes four
views. One linear layer is read as one head per task: past heads, the current one, future ones.

This file has the losses, the strong views and the editing of stored targets. Draws and the quotas of the balanced
memory are in `replay.py`, the memory itself is in `memory.py`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from flashback.batches import Batch, Views, augment
from flashback.batches.views import RATIO, normalise
from flashback.benchmarks import Task
from flashback.config import Count, NotNegative, Positive, Rule
from flashback.errors import require
from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.replay import ReplayHost, ReplaySettings, ReplayStep, sample_new_images, trim_to_quotas
from flashback.knowledge import Support, masked_mean
from flashback.memory import Field
from flashback.nets import full_precision, joint_forward, untracked_batchnorm


@dataclass(frozen=True)
class XDERSettings(ReplaySettings):
    alpha: NotNegative = 0.6  # weight of the squared error to the stored targets (alpha_s of FL Eq. 14)
    # Logits above the true one are scaled down to this share of it.
    gamma: Annotated[float, Rule("lie in (0, 1]", lambda gamma: 0 < gamma <= 1)] = 0.85
    beta: NotNegative = 0.9  # weight of the cross-entropy on replayed images, over the past heads
    contrastive_weight: NotNegative = 0.05  # lambda, of the preparation of future heads
    contrastive_batch: Count = 64  # new images, and as many from the memory, that prepare future heads
    temperature: Positive = 5.0  # of the contrastive loss
    constraint_weight: NotNegative = 0.01  # eta, of the constraints on past and future heads
    margin: NotNegative = 0.2  # m, by which the true head should win over them


@dataclass
class XDERStep(ReplayStep):
    strong: tuple[Tensor, Tensor] | None  # logits and labels of the strong views, while future heads exist


@HOSTS.register("xder")
class XDER(ReplayHost):
    """DER++ with edited targets, heads that do not compete across tasks, and future heads trained in advance.

    As in DER, the model is held near the logits stored with an image. Four things are added:
    - implanting: the targets of stored images take over the current logits in the current and future heads,
      scaled to stay below the true logit (not scaled if the true logit is not positive);
    - new images are classified in the current head only, stored ones in the past heads only;
    - future heads learn to separate the classes seen so far, by a contrastive loss on SimCLR's views without blur;
    - constraints keep past and future logits below those of the true head, by a margin.
    A step draws two minibatches uniformly from the memory (`draw`) for the losses, and a third for the strong views. It
    runs the network on the batch and on each draw, as if one after the other (`joint_forward`). When a task ends, the
    memory is balanced over the classes; there is no reservoir.

    In the authors' code, implanting is `update_logits` and the preparation of future heads the future consistency loss.
    """

    Settings = XDERSettings
    draws_per_step = 2
    stores_at_end = True
    task_of: Tensor  # the task of each column that exists from the start

    def build(self) -> None:
        super().build()
        sizes = torch.tensor(self.initial_sizes())
        self.register_buffer("task_of", torch.arange(len(sizes)).repeat_interleave(sizes), persistent=False)

    def fields(self) -> dict[str, Field]:
        return {**super().fields(), "replays": ((), torch.int64)}  # how often a slot was replayed in this task

    def check(self) -> None:
        require(
            self.benchmark.is_open or len(self.benchmark.tasks) >= 2,
            "xder prepares heads for later tasks, and this benchmark has only one task; use der++",
        )
        super().check()

    @property
    def future_tasks(self) -> tuple[Task, ...]:
        """The tasks after the current one."""
        return self.benchmark.tasks[self.task.index + 1 :]

    def variant(self) -> object:
        return super().variant(), self.available(self.settings.contrastive_batch)

    def forward(self, batch: Batch) -> XDERStep:
        """Run the batch, two draws from the memory and, while there are future heads, strong views.

        The strong views, of new images and of a third draw, do not update the running statistics of batch norm.
        """
        draws, strong = self.draw(), self.strong_views(batch)
        untracked = [] if strong is None else [strong[0]]
        output, *others = joint_forward(self.net, [batch.x, *(draw.x for draw in draws)], untracked=untracked)
        for draw, draw_output in zip(draws, others, strict=False):  # the strong views come last
            draw.output = draw_output
        return XDERStep(batch, output, draws, None if strong is None else (others[-1].logits, strong[1]))

    def strong_views(self, batch: Batch) -> tuple[Tensor, Tensor] | None:
        """Return two strong views of new and of stored images as one batch, and their labels.

        None without future heads.
        """
        if not self.future_tasks:
            return None
        size = self.settings.contrastive_batch
        raw, labels = batch.raw[:size], batch.y[:size]
        if stored := self.available(size):
            slots = self.memory.draw(stored, self.generator)
            raw, labels = torch.cat([raw, self.memory.images[slots]]), torch.cat([labels, self.memory.labels[slots]])
        return strong_view(self.views, torch.cat([raw, raw]), self.generator), torch.cat([labels, labels])

    def trains_future_classes(self) -> bool:
        return True

    def losses(self, step: XDERStep) -> Mapping[str, Tensor]:
        """Return the terms that the class lists.

        L = CE(new, current head) + alpha * mean (o - o_stored)^2 on draw 1 + beta * CE(past heads) on draw 2
            + lambda * contrastive loss of the future heads + eta * (past constraint + future constraint)
        """
        new, old, logits = self.task.new, self.task.old, step.output.logits
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
        """Contrastive loss of each future head on the classes seen so far; mean over heads."""
        # Columns of zeros, where heads are of unequal width, change no cosine.
        heads = pad_sequence([logits[:, task.new].T for task in self.future_tasks]).permute(1, 2, 0)
        return supervised_contrastive(heads, labels, self.settings.temperature).mean()

    def past_constraint(self, step: XDERStep) -> Tensor:
        """On new images, the current head's largest probability should exceed that of the past heads by `margin`."""
        p = step.output.logits[:, self.task.seen].softmax(dim=1)
        past, current = p[:, self.task.old].amax(dim=1), p[:, self.task.new].amax(dim=1)
        return mean_violation(past.detach() + self.settings.margin - current)

    def future_constraint(self, step: XDERStep) -> Tensor:
        """The largest logit of an image's own head should exceed every future logit by `margin`; a slot counts once."""
        logits = torch.cat([step.output.logits, *(draw.output.logits for draw in step.draws)])
        labels = torch.cat([step.batch.y, *(draw.labels for draw in step.draws)])
        unstored = -1 - torch.arange(len(step.batch), device=labels.device)  # every new image counts
        mask = first_occurrences(torch.cat([unstored, *(draw.slots for draw in step.draws)]))
        other_heads = self.task_of[labels][:, None] != self.task_of
        true_head = logits.masked_fill(other_heads, -torch.inf).amax(dim=1)
        return mean_violation(logits[:, self.task.seen.stop :].amax(dim=1) + self.settings.margin - true_head, mask)

    def stability_support(self) -> Support:
        """The first draw, all columns, weight alpha; `ReplayHost.distance` is the squared error to stored targets."""
        return Support(samples="memory", weight=self.settings.alpha)

    def after_step(self, step: ReplayStep) -> None:
        """Implant the current and future logits of replayed images into their targets.

        A slot replayed for the c-th time in this task is edited with probability 1/c.
        """
        if not step.draws:
            return
        slots = torch.cat([draw.slots for draw in step.draws])
        first = first_occurrences(slots)
        times = self.memory["replays"][slots] + 1
        uniform = torch.rand(len(slots), generator=self.generator, device=slots.device)
        self.memory.write(slots, replays=times)  # a slot in both draws counts once: each time it gets the same number
        self.implant(slots, torch.cat([draw.output.logits for draw in step.draws]), first & (uniform * times < 1))

    def implant(self, slots: Tensor, fresh: Tensor, mask: Tensor) -> None:
        """Write fresh logits, attenuated, over the targets of the chosen slots, in the current and future heads."""
        targets = self.memory["targets"][slots]
        truth = targets.gather(1, self.memory.labels[slots][:, None])
        start = self.task.new.start
        edited = torch.cat([targets[:, :start], attenuated(fresh[:, start:], truth, self.settings.gamma)], dim=1)
        # slot `capacity` discards the write
        self.memory.write(slots.where(mask, self.memory.capacity), targets=edited)

    @torch.no_grad()
    def end(self) -> None:
        """Balance the memory over all classes, store new images, implant into all past targets, reset the counts."""
        memory = self.memory
        quotas = trim_to_quotas(memory, self.task, self.generator)
        past = torch.randperm(memory.filled, generator=self.generator, device=self.device)  # batches of mixed classes
        images, labels = sample_new_images(self.task, quotas, self.generator, self.device)
        memory.append(images, labels, targets=self.new_targets(images, labels), replays=torch.zeros_like(labels))
        if len(past):
            self.implant(past, self.training_logits(memory.images[past]), torch.ones_like(past, dtype=torch.bool))
        memory["replays"].zero_()

    def new_targets(self, images: Tensor, labels: Tensor) -> Tensor:
        """Logits of new images, of which the past heads are attenuated."""
        targets, start = self.training_logits(images), self.task.new.start
        if start == 0:
            return targets
        truth = targets.gather(1, labels[:, None])
        past = attenuated(targets[:, :start], truth, self.settings.gamma)
        return torch.cat([past, targets[:, start:]], dim=1)

    def training_logits(self, raw: Tensor) -> Tensor:
        """Logits as a training step would see them: augmented, with batch statistics, which are not tracked here."""
        self.net.train()
        batches = raw.tensor_split(math.ceil(len(raw) / self.config.training.batch_size))
        with untracked_batchnorm(self.net):
            return torch.cat([self.net(self.views.weak(part, self.generator)).logits for part in batches])


def strong_view(views: Views, raw: Tensor, generator: torch.Generator) -> Tensor:
    """Augment uint8 images [B, C, H, W] as SimCLR does, without blur, and normalise them."""
    x = augment.random_flip(augment.as_unit(raw), generator)
    x = augment.random_resized_crop(x, views.shape(raw), (0.2, 1.0), RATIO, generator)
    x = augment.color_jitter(x, 0.4, 0.4, 0.4, 0.1, generator, p=0.8)
    x = augment.greyscale(x, 0.2, generator)
    return normalise(x, views.mean, views.std)


def first_occurrences(slots: Tensor) -> Tensor:
    """Mark the first occurrence of each slot."""
    same = slots[:, None] == slots
    return ~same.tril(diagonal=-1).any(dim=1)


def attenuated(logits: Tensor, truth: Tensor, gamma: float) -> Tensor:
    """Where the largest logit of a row exceeds the true one, scale the row so that it equals gamma times the true one.

    Other rows stay, and so do rows whose true logit is not positive, since the ratio would flip their signs.
    """
    largest = logits.amax(dim=1, keepdim=True)
    exceeds = (largest > truth) & (truth > 0)
    return torch.where(exceeds, logits * (gamma * truth / largest.where(exceeds, 1.0)), logits)


def supervised_contrastive(vectors: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Mean over all anchors of the loss with the sum outside the logarithm (Khosla et al. 2020, Eq. 2).

    Vectors are [..., N, width], labels [N]; each set of N vectors has its loss. Positives are the other rows with the
    anchor's label, so every label must appear at least twice: give two views.
    """
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    positives = (labels[:, None] == labels) & ~itself
    with full_precision(vectors):
        unit = F.normalize(vectors.float(), dim=-1)
        similarity = unit @ unit.mT / temperature
    log_share = similarity - similarity.masked_fill(itself, -torch.inf).logsumexp(dim=-1, keepdim=True)
    return -((log_share * positives).sum(dim=-1) / positives.sum(dim=-1)).mean(dim=-1)


def mean_violation(hinge: Tensor, mask: Tensor | bool = True) -> Tensor:
    """Mean over those that violate a constraint; zero if none does."""
    return masked_mean(hinge, (hinge > 0) & mask)
