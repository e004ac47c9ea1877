"""The plasticity loss: what it compares, and on which images each teacher acts, as the settings of flashback choose."""

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from flashback.batches import NOT_STORED
from flashback.config import FlashbackConfig
from flashback.errors import require
from flashback.hosts.base import Host, no_distance_message, no_stability_message
from flashback.hosts.prediction import directions, logits_of
from flashback.hosts.replay import StoredTargets
from flashback.knowledge import Knowledge, ModelKnowledge, ReplayedTargets, Support, cosine_distance, squared_error
from flashback.nets import Net, Output

# Settings that scale the stability loss, each with what to do if a host has no such loss.
DIVIDED = "flashback.images=divided", "use flashback.images=new"
PHASE_1_WEIGHT = "flashback.phase1_stability", "leave it at 1"


class PlasticityLoss:
    """The loss towards the plastic knowledge of one host, as the settings of flashback choose it.

    Args:
        host: The host.
        settings: Settings of flashback.

    Raises:
        FlashbackError: The host does not support these settings.
    """

    def __init__(self, host: Host, settings: FlashbackConfig) -> None:
        self.host, self.settings, self.name = host, settings, host.settings.name
        self.plastic_distance = DISTANCES[settings.distance](host)
        self.check()

    # ------------------------------------------------------------ knowledge

    def support(self) -> Support:
        """Return where the plasticity distance acts: as the host declares, on all seen columns, or on stored images."""
        support = self.plastic_distance.support()
        if self.settings.support == "host":
            return support
        samples = "memory" if self.settings.support == "memory" else support.samples
        uses_all_columns = support.columns == slice(None)  # then it continues to use all
        columns = support.columns if uses_all_columns else self.host.task.seen
        return replace(support, columns=columns, samples=samples)

    def blank(self) -> Knowledge:
        """Make plastic knowledge without content."""
        knowledge = self.plastic_distance.blank(self.support())
        require(self.settings.teacher == "primary" or isinstance(knowledge, ModelKnowledge), self.no_copy_message())
        return knowledge

    def fill(self, plastic: Knowledge) -> None:
        """Fill plastic knowledge from the primary model."""
        self.plastic_distance.fill(plastic)
        if self.settings.where != "all" and isinstance(plastic, ReplayedTargets):
            self.mark_targets(plastic)

    def mark_targets(self, plastic: ReplayedTargets) -> None:
        """Keep only the targets that `flashback.where` accepts, while the host is the primary model."""
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

    def __call__(self, step: Any, plastic: Knowledge) -> Tensor:
        """Compute Lp, without alpha_p."""
        support = replace(self.support(), images=self.image_mask(step, plastic))
        return self.plastic_distance.distance(step, plastic, support)

    def stability_on_exemplars(self, step: Any) -> Tensor:
        """Compute Ls on the stored images only, for `flashback.images=divided`."""
        exemplars = (step.batch.slots != NOT_STORED).float()
        support = replace(self.host.stability_support(), images=exemplars)
        return self.host.config.training.stability * self.host.weighted_distance(step, self.host.stable, support)

    def image_mask(self, step: Any, plastic: Any) -> Tensor | None:
        """Return 1 for each image of the batch that counts in Lp and 0 for the others; None: all count."""
        batch, masks = step.batch, []
        if self.settings.images != "all":
            masks.append(batch.slots == NOT_STORED)
        if self.settings.where != "all" and isinstance(plastic, ModelKnowledge):
            stable: Any = self.host.stable
            stable_logits = stable(batch.x).logits if self.settings.where == "better" else None
            masks.append(self.is_expert(plastic(batch.x).logits, stable_logits, batch.y))
        return torch.stack(masks).all(dim=0).float() if masks else None

    def is_expert(self, plastic: Tensor, stable: Tensor | None, labels: Tensor) -> Tensor:
        """Mark the images on which plastic logits count, as `flashback.where` says; compare over the classes seen."""
        seen = self.host.task.seen
        if stable is None:
            return plastic[:, seen].argmax(dim=1) == labels
        return true_log_probability(plastic[:, seen], labels) > true_log_probability(stable[:, seen], labels)

    # ------------------------------------------------------------ checks

    def check(self) -> None:
        """Refuse settings that the host does not support, before any training."""
        settings, host = self.settings, self.host
        require(self.has_distance or host.memory is not None, no_distance_message(self.name))
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
            settings.distance != "features"
            or not (host.config.training.freeze_backbone and getattr(host.net, "features_from_backbone", False)),
            "flashback.distance=features has no effect with training.freeze_backbone=true, which keeps all features as "
            "they are; leave one of them out",
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
        require(host.has_stability or settings.phase1_stability == 1, no_stability_message(self.name, *PHASE_1_WEIGHT))
        if settings.images != "all":
            self.check_images()
        if settings.where != "all":
            self.check_where()

    def check_merge(self) -> None:
        require(self.plastic_copies_network, self.no_copy_message("flashback.merge", "leave it out"))
        require(
            self.host.has_one_backbone,
            f"flashback.merge needs a host with one backbone, and {self.name} builds several; leave it out",
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
        require(not self.on_memory, f"{setting} has no effect: {where} plasticity acts on stored images alone")
        require(
            self.supports_image_weights and (self.host.supports_image_weights or self.settings.images != "divided"),
            self.no_weights_message(setting),
        )
        require(self.host.has_stability or self.settings.images != "divided", no_stability_message(self.name, *DIVIDED))

    def check_where(self) -> None:
        setting, host = f"flashback.where={self.settings.where}", self.host
        require(
            self.plastic_copies_network or self.host.copies_network() or host.replays_targets,
            f"{setting} needs plastic knowledge that gives each image a logit for each class, and that of {self.name} "
            "does not; leave it out",
        )
        require(self.on_memory or self.supports_image_weights, self.no_weights_message(setting))
        output = Output(torch.ones(1, 1), torch.ones(1, 1))  # to see whether the host stores its logits
        stores_logits = isinstance(host.stable, StoredTargets) and host.response(output) is output.logits
        require(
            self.settings.where != "better" or self.host.copies_network() or stores_logits,
            f"{setting} compares with the logits of the stable model, which {self.name} does not keep; use "
            "flashback.where=correct",
        )

    def check_task(self) -> None:
        """Refuse a host without a distance whose plasticity does not act on stored images."""
        require(self.has_distance or self.support().samples == "memory", no_distance_message(self.name))

    @property
    def has_distance(self) -> bool:
        """Whether there is a distance to plastic knowledge; `Host.replay_distance`, for stored images, needs none."""
        return type(self.host).distance is not Host.distance or self.settings.distance != "host"

    @property
    def supports_image_weights(self) -> bool:
        """Whether the plasticity loss can weight the images of a batch."""
        return self.host.supports_image_weights or self.settings.distance != "host"

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
            f"{setting} needs a distance that applies image weights, and that of {self.name} does not; leave it out, "
            "or see supports_image_weights in docs/your-own-host.md"
        )

    def no_copy_message(
        self, setting: str = "flashback.teacher=running", advice: str = "use flashback.teacher=primary"
    ) -> str:
        reason = f"{self.name} keeps other plastic knowledge"
        if self.settings.support == "memory":
            reason = "with flashback.support=memory it is targets for stored images"
        return f"{setting} needs plastic knowledge that is a copy of the whole network, and {reason}; {advice}"


class HostDistance:
    """The default of Lp: the distance that the host defines, to its own kind of knowledge."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def support(self) -> Support:
        """Return where the distance acts unless the settings say otherwise."""
        return self.host.plasticity_support()

    def blank(self, support: Support) -> Knowledge:
        """Make a knowledge base without content."""
        return self.host.blank_knowledge_for(support)

    def fill(self, knowledge: Any) -> None:
        """Fill it from the current model."""
        self.host.fill_for_support(knowledge)

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
            return self.host.blank_teacher()
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
