"""iCaRL (Rebuffi et al. 2017): exemplars, binary distillation, and the nearest mean of exemplars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from flashback.batches import Stream
from flashback.hosts.base import HOSTS, one_hot
from flashback.hosts.exemplars import ExemplarHost, ExemplarSettings
from flashback.hosts.prediction import Classifier
from flashback.hosts.stages import Step
from flashback.knowledge import ModelKnowledge, Support, soft_binary_cross_entropy
from flashback.memory import class_means


@dataclass(frozen=True)
class ICaRLSettings(ExemplarSettings):
    # Herd and average unit-length features. The paper and public codes do; the default here departs from them.
    normalise: bool = False
    # Imitates other implementations: columns of the loss; "all" trains unseen classes as negatives.
    columns: Literal["seen", "all"] = "seen"


@HOSTS.register("icarl")
class ICaRL(ExemplarHost):
    """Trains on new images and herded exemplars with binary distillation; predicts by the nearest class mean.

    A task trains on its images and all exemplars, with one binary cross-entropy per class: new classes towards the
    labels, old classes towards the sigmoid outputs of the old model (Alg. 3 of Rebuffi et al.). Then exemplars are
    herded and cut to size (Alg. 4 and 5). An image goes to the class with the nearest mean of exemplars (Alg. 1).
    """

    Settings = ICaRLSettings
    scores_unseen = False  # there is no mean for a class that was never met

    def stream(self) -> Stream:
        """New images and exemplars as one data set."""
        return Stream.of(self.task.train, self.device).joined(self.memory_stream())

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        """The mean over all columns, as the shares of new columns (task) and old ones (stability)."""
        new, columns = self.task.new.start, self.loss_columns().stop
        logits = step.output.logits[:, new:columns]
        labels = one_hot(step.batch.y, slice(new, columns), logits.dtype)  # all zero for exemplars
        terms = {"task": (columns - new) / columns * soft_binary_cross_entropy(logits, labels)}
        if self.stable is not None:
            terms["stability"] = self.stability(step)
        return terms

    def distance(self, step: Step, knowledge: ModelKnowledge, support: Support) -> Tensor:
        """Binary cross-entropy towards the sigmoid outputs of the old (or primary) model."""
        outputs = knowledge(step.batch.x).logits[:, support.columns].sigmoid()
        return soft_binary_cross_entropy(step.output.logits[:, support.columns], outputs)

    def stability_support(self) -> Support:
        old = self.task.old
        return Support(columns=old, weight=old.stop / self.loss_columns().stop)

    def plasticity_support(self) -> Support:
        """The new columns, of which the primary model is the expert, as the old model is of the old ones."""
        return Support(columns=self.task.new)

    def end(self) -> None:
        """Cut the exemplars of old classes to the new quota, and herd those of the new classes."""
        self.refill()

    def classifiers(self) -> dict[str, Classifier]:
        normalise = self.settings.normalise
        means = class_means(*self.exemplar_features(), self.benchmark.classes, normalise).double()

        def nearest_mean(x: Tensor) -> Tensor:
            features = self.net(x).features.double()
            features = F.normalize(features, dim=1) if normalise else features
            # The squared distance expanded, without a [B, classes, width] tensor. It is a small difference of large
            # numbers: float64, lest rounding (worse in TF32) decide between means that lie close together.
            return 2.0 * features @ means.T - means.square().sum(dim=1) - features.square().sum(dim=1, keepdim=True)

        return {"nearest-mean": nearest_mean, "linear": self.scores}

    # ------------------------------------------------------------ the switch `columns`

    def loss_columns(self) -> slice:
        return slice(0, self.benchmark.classes if self.settings.columns == "all" else self.task.seen.stop)
