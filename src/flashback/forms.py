"""Forms of flashback: what the plasticity loss compares, and on which images each teacher acts."""

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from flashback.batches import NOT_STORED
from flashback.config import FlashbackConfig
from flashback.errors import require
from flashback.hosts.base import DEFINE_DISTANCE, Host
from flashback.hosts.endings import reestimate_batchnorm
from flashback.hosts.prediction import directions, logits_of
from flashback.hosts.replay import StoredTargets
from flashback.hosts.stages import Stage
from flashback.knowledge import Knowledge, ModelKnowledge, ReplayedTargets, Support, cosine_distance, squared_error
from flashback.nets import Net, Output

# Settings that weigh the stability loss, each with what to do where there is none.
DIVIDED = "flashback.images=divided", "use flashback.images=new"
PHASE_1_WEIGHT = "flashback.phase1_stability", "leave it at 1"


class Form:
    """The losses towards plastic knowledge of one host, as the settings of flashback choose them.

    Args:
        host: The host.
        settings: Settings of flashback.

    Raises:
        FlashbackError: The host cannot have this form.
    """

    def __init__(self, host: Host, settings: FlashbackConfig) -> None:
        self.host, self.settings, self.name = host, settings, host.settings.name
        self.plastic_distance = DISTANCES[settings.distance](host)
        self.check()

    # ------------------------------------------------------------ knowledge

    def support(self) -> Support:
        """Return where the plasticity distance acts: as the host declares, on all seen columns, or on the memory."""
        support = self.plastic_distance.support()
        if self.settings.support == "host":
            return support
        samples = "memory" if self.settings.support == "memory" else support.samples
        acts_on_all = support.columns == slice(None)  # and stays so
        columns = support.columns if acts_on_all else self.host.task.seen
        return replace(support, columns=columns, samples=samples)

    def blank(self) -> Knowledge:
        """Make blank plastic knowledge."""
        knowledge = self.plastic_distance.blank(self.support())
        require(self.settings.teacher == "primary" or isinstance(knowledge, ModelKnowledge), self.no_copy_message())
        return knowledge

    def fill(self, plastic: Knowledge) -> None:
        """Fill it from the primary model."""
        self.plastic_distance.fill(plastic)
        if self.settings.where != "all" and isinstance(plastic, ReplayedTargets):
            self.mark_targets(plastic)

    def mark_targets(self, plastic: ReplayedTargets) -> None:
        """Keep only the targets that `flashback.where` accepts; the host is the primary model now."""
        host, memory = self.host, self.host.memory
        assert memory is not None
        stored, labels = memory.images[: memory.filled], memory.labels[: memory.filled]
        stable = None
        if self.settings.where == "better" and isinstance(host.stable, ModelKnowledge):
            stable = host.embed(stored, logits_of, host.stable)
        elif self.settings.where == "better":
            stable = memory["targets"][: memory.filled]
        plastic.keep_only(self.is_expert(host.embed(stored, logits_of), stable, labels))

    # ------------------------------------------------------------ losses

    def plasticity(self, step: Any, plastic: Knowledge) -> Tensor:
        """Compute Lp, without alpha_p."""
        support = replace(self.support(), images=self.image_mask(step, plastic))
        return self.plastic_distance.distance(step, plastic, support)

    def stability_on_exemplars(self, step: Any) -> Tensor:
        """Compute Ls on the stored images alone, for `flashback.images=divided`."""
        exemplars = (step.batch.slots != NOT_STORED).float()
        support = replace(self.host.stability_support(), images=exemplars)
        return self.host.config.training.stability * self.host.weighted_distance(step, self.host.stable, support)

    def image_mask(self, step: Any, plastic: Any) -> Tensor | None:
        """Mark the images of the batch that count in Lp, 1 or 0; None: all."""
        batch, chosen = step.batch, []
        if self.settings.images != "all":
            chosen.append(batch.slots == NOT_STORED)
        if self.settings.where != "all" and isinstance(plastic, ModelKnowledge):
            stable: Any = self.host.stable
            known = stable(batch.x).logits if self.settings.where == "better" else None
            chosen.append(self.is_expert(plastic(batch.x).logits, known, batch.y))
        return torch.stack(chosen).all(dim=0).float() if chosen else None

    def is_expert(self, plastic: Tensor, stable: Tensor | None, labels: Tensor) -> Tensor:
        """Mark the images on which plastic logits count: see the setting `where`; all over the classes seen."""
        seen = self.host.task.seen
        if stable is None:
            return plastic[:, seen].argmax(dim=1) == labels
        return true_log_probability(plastic[:, seen], labels) > true_log_probability(stable[:, seen], labels)

    # ------------------------------------------------------------ the end of a task

    @torch.no_grad()
    def merge(self, plastic: Any, stage: Stage) -> None:
        """Move the trained weights towards the primary ones by the share `merge`, and measure batch norm anew.

        Args:
            plastic: A copy of the primary network.
            stage: The main stage, whose images the batch-norm statistics are measured on.
        """
        primary = dict(plastic.model.module.named_parameters())
        for name, weight in self.host.net.named_parameters():
            if weight.requires_grad:
                weight.lerp_(primary[name], self.settings.merge)
        reestimate_batchnorm(self.host, stage)

    # ------------------------------------------------------------ checks

    def check(self) -> None:
        """Refuse what this host cannot have, before any training."""
        settings, host = self.settings, self.host
        require(self.has_distance or host.memory is not None, self.no_distance_message())
        require(
            settings.distance != "features" or host.copies_network() or host.has_one_backbone,
            f"flashback.distance=features needs a host that keeps a copy of its network or trains a single one; "
            f"{self.name} does neither, leave it out",
        )
        require(
            settings.distance != "features" or not host.reads_gradients,
            f"{self.name} computes importance from the gradients of the task loss, which flashback.distance=features "
            "would change; leave it out",
        )
        require(
            settings.support != "memory" or host.memory is not None,
            f"flashback.support=memory needs a host with a memory; {self.name} has none, use host or all",
        )
        require(settings.teacher == "primary" or self.plastic_copies_network, self.no_copy_message())
        require(
            settings.distance != "logits" or (host.copies_network() and not self.on_memory),
            self.no_copy_message("flashback.distance=logits", "leave it out"),
        )
        if settings.merge:
            self.check_merge()
        require(host.has_stability or settings.phase1_stability == 1, self.no_stability_message(PHASE_1_WEIGHT))
        if settings.images != "all":
            self.check_images()
        if settings.where != "all":
            self.check_where()

    def check_merge(self) -> None:
        require(self.plastic_copies_network, self.no_copy_message("flashback.merge", "leave it out"))
        require(
            self.host.has_one_backbone,
            f"flashback.merge needs a host with one backbone, and {self.name} makes several; leave it out",
        )
        require(
            self.host.config.training.average is None,
            "flashback.merge and training.average end a task on different weights; leave one of them out",
        )

    def check_images(self) -> None:
        setting = f"flashback.images={self.settings.images}"
        require(
            self.host.memory is not None,
            f"{setting} needs a host that trains on new and stored images; {self.name} has no memory, leave it out",
        )
        where = "with flashback.support=memory" if self.settings.support == "memory" else f"in {self.name}"
        require(not self.on_memory, f"{setting} has nothing to choose: {where} plasticity acts on stored images alone")
        require(
            self.weighs_images and (self.host.weighs_images or self.settings.images != "divided"),
            self.no_weights_message(setting),
        )
        require(self.host.has_stability or self.settings.images != "divided", self.no_stability_message(DIVIDED))

    def check_where(self) -> None:
        setting, host = f"flashback.where={self.settings.where}", self.host
        require(
            self.plastic_copies_network or self.host.copies_network() or host.replays_targets,
            f"{setting} needs plastic knowledge that gives each image a logit for each class, and that of {self.name} "
            "does not; leave it out",
        )
        require(self.on_memory or self.weighs_images, self.no_weights_message(setting))
        output = Output(torch.ones(1, 1), torch.ones(1, 1))  # does the host store logits, or another part of it?
        stores_logits = isinstance(host.stable, StoredTargets) and host.response(output) is output.logits
        require(
            self.settings.where != "better" or self.host.copies_network() or stores_logits,
            f"{setting} compares with the logits of the stable model, and {self.name} keeps none; use "
            "flashback.where=correct",
        )

    def check_task(self) -> None:
        """Refuse a host without a distance whose plasticity does not act on the memory."""
        require(self.has_distance or self.support().samples == "memory", self.no_distance_message())

    @property
    def has_distance(self) -> bool:
        """Whether there is a distance to plastic knowledge; a support on the memory alone does without."""
        return type(self.host).distance is not Host.distance or self.settings.distance != "host"

    @property
    def weighs_images(self) -> bool:
        """Whether the plasticity loss can weigh the images of a batch."""
        return self.host.weighs_images or self.settings.distance != "host"

    @property
    def on_memory(self) -> bool:
        """Whether plastic knowledge is targets for the images of the memory."""
        return self.host.replays_targets or self.settings.support == "memory"

    @property
    def plastic_copies_network(self) -> bool:
        """Whether plastic knowledge is a copy of the network."""
        return not self.on_memory and (self.host.copies_network() or self.settings.distance == "features")

    def no_weights_message(self, setting: str) -> str:
        return (
            f"{setting} needs a distance that weighs images, and that of {self.name} does not; leave it out, or see "
            "weighs_images in docs/your-own-host.md"
        )

    def no_distance_message(self) -> str:
        return f"flashback needs a distance, and {self.name} has none; {DEFINE_DISTANCE}"

    def no_stability_message(self, case: tuple[str, str]) -> str:
        setting, advice = case
        return f"{setting} weighs the loss term 'stability', and {self.name} has none of this name; {advice}"

    def no_copy_message(
        self, setting: str = "flashback.teacher=running", advice: str = "use flashback.teacher=primary"
    ) -> str:
        kept = f"{self.name} keeps other plastic knowledge"
        if self.settings.support == "memory":
            kept = "with flashback.support=memory it is targets for the memory"
        return f"{setting} needs plastic knowledge that is a copy of the whole network, and {kept}; {advice}"


class HostDistance:
    """What Lp compares by default: the host's own distance, to knowledge of its own kind."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def support(self) -> Support:
        """Return where the distance acts unless the settings say otherwise."""
        return self.host.plasticity_support()

    def blank(self, support: Support) -> Knowledge:
        """Make a blank knowledge base."""
        return self.host.blank_for(support)

    def fill(self, knowledge: Any) -> None:
        """Fill it from the present model."""
        self.host.extract(knowledge)

    def distance(self, step: Any, knowledge: Any, support: Support) -> Tensor:
        """Compute the weighted distance."""
        return self.host.weighted_distance(step, knowledge, support)


class FeatureDistance(HostDistance):
    """The distance 1 - cos between features, as in LUCIR, with weight 1; for any host with one network.

    Its knowledge is a copy of the network, or the directions of features for the images of a memory.
    """

    def support(self) -> Support:
        return Support(samples=self.host.plasticity_support().samples)

    def blank(self, support: Support) -> Knowledge:
        if support.samples == "all" or self.host.memory is None:
            return self.host.blank_copy()
        return ReplayedTargets(self.host.memory, cast(Net, self.host.net).feature_width)

    def fill(self, knowledge: Any) -> None:
        if isinstance(knowledge, ReplayedTargets) and self.host.memory is not None:
            knowledge.fill(self.host.memory, lambda raw: self.host.embed(raw, directions))
        else:
            knowledge.fill(self.host.net)

    def distance(self, step: Any, knowledge: Any, support: Support) -> Tensor:
        if isinstance(knowledge, ReplayedTargets) and self.host.memory is not None:
            output, slots = self.host.replayed(step)
            return knowledge.distance(directions(output), slots, self.host.memory)
        return cosine_distance(step.output.features, knowledge(step.batch.x).features, support.images)


class LogitDistance(HostDistance):
    """Double distillation: the mean squared error to the logits of the stable model and of the primary one.

    The stable model gives the old columns and the primary model the new ones. For each image, both are shifted to mean
    zero over their columns, so that neither set of classes is favoured (Zhang et al. 2020, Deep Model Consolidation).
    """

    def distance(self, step: Any, knowledge: Any, support: Support) -> Tensor:
        task, x, stable = self.host.task, step.batch.x, cast(ModelKnowledge, self.host.stable)
        targets = [centred(stable(x).logits[:, task.old]), centred(knowledge(x).logits[:, task.new])]
        return squared_error(step.output.logits[:, task.seen], torch.cat(targets, dim=1), weights=support.images)


DISTANCES = {"host": HostDistance, "features": FeatureDistance, "logits": LogitDistance}


def centred(logits: Tensor) -> Tensor:
    """Shift the logits of each image to mean zero."""
    return logits - logits.mean(dim=1, keepdim=True)


def true_log_probability(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the log-probability of each row's label."""
    return logits.log_softmax(dim=1).gather(1, labels[:, None]).squeeze(1)
