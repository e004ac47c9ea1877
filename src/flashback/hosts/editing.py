"""Replay from a memory that is kept up to date (X-DER, Boschini et al. 2022): balanced over classes, targets edited."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flashback.errors import require
from flashback.hosts.balanced import BalancedHost
from flashback.hosts.replay import ReplayHost, ReplaySettings, ReplayStep
from flashback.memory import Field, first_occurrences
from flashback.nets import untracked_batchnorm


@dataclass(frozen=True)
class EditingSettings(ReplaySettings):
    gamma: float = 0.85  # edited logits reach at most this share of the true class's logit

    def check(self) -> None:
        super().check()
        require(0 < self.gamma <= 1, f"host.gamma lies in (0, 1], not {self.gamma}")


class EditingHost(BalancedHost, ReplayHost):
    """Images enter the memory at the end of a task; in between, the targets of past images are kept up to date."""

    Settings = EditingSettings

    def fields(self) -> dict[str, Field]:
        return {**ReplayHost.fields(self), "replays": ((), torch.int64)}  # how often a slot was replayed in this task

    # ------------------------------------------------------------ after a step

    def after_step(self, step: ReplayStep) -> None:
        """Write what the model now says in the present and future heads over the targets of replayed images.

        A slot replayed for the c-th time in this task is edited with probability 1/c.
        """
        if not step.draws:
            return
        slots = torch.cat([draw.slots for draw in step.draws])
        first = first_occurrences(slots)
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
        memory, quotas = self.memory, self.trim()
        past = torch.randperm(memory.filled, generator=self.generator, device=self.device)
        self.store_new(quotas)
        if len(past):
            self.edit(past, self.training_logits(memory.images[past]), torch.ones_like(past, dtype=torch.bool))
        memory["replays"].zero_()

    def stored_with(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Logits of which the past heads are attenuated like edited ones."""
        targets, since = self.training_logits(images), self.task.new.start
        if since:
            truth = targets.gather(1, labels[:, None])
            past = attenuated(targets[:, :since], truth, self.settings.gamma)
            targets = torch.cat([past, targets[:, since:]], dim=1)
        return {"targets": targets, "replays": torch.zeros_like(labels)}

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
