"""iCaRL (Rebuffi et al. 2017): exemplars, binary distillation, and the nearest mean of exemplars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from flashback.hosts.base import HOSTS, Host, one_hot
from flashback.hosts.exemplars import ExemplarHost, ExemplarSettings
from flashback.hosts.prediction import Classifier
from flashback.hosts.stages import Step
from flashback.knowledge import ModelKnowledge, Support, soft_binary_cross_entropy
from flashback.memory import class_means


@dataclass(frozen=True)
class ICaRLSettings(ExemplarSettings):
    # Herd and average unit-length features. The paper and public codes do; the default here departs from them.
    normalise: bool = False
    # Columns of the loss; "all" also trains future classes towards 0, as the authors' code and Mammoth do.
    columns: Literal["seen", "all"] = "seen"


@HOSTS.register("icarl")
class ICaRL(ExemplarHost):
    """Trains on new images and herded exemplars with binary distillation; predicts by the nearest class mean.

    A task trains on its images and all exemplars, with one binary cross-entropy per class: new classes towards the
    labels, old classes towards the sigmoid outputs of the old model (Alg. 3 of Rebuffi et al.). These are computed for
    every augmented batch; the paper stores them once before training. Then `ExemplarHost` cuts the exemplars of old
    classes to the new quota and herds those of the new ones (Alg. 4 and 5). An image goes to the class with the nearest
    mean of exemplars (Alg. 1).
    """

    Settings = ICaRLSettings
    scores_unseen = False  # there is no mean for a class that was never seen

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        return binary_losses(self, step, self.trained_columns())

    def distance(self, step: Step, knowledge: ModelKnowledge, support: Support) -> Tensor:
        """Binary cross-entropy towards the sigmoid outputs of the old (or primary) model."""
        outputs = knowledge(step.batch.x).logits[:, support.columns].sigmoid()
        return soft_binary_cross_entropy(step.output.logits[:, support.columns], outputs)

    def stability_support(self) -> Support:
        old = self.task.old
        return Support(columns=old, weight=old.stop / self.trained_columns())

    def plasticity_support(self) -> Support:
        """The new columns: the primary model is the expert on these, as the old model is on the old ones."""
        return Support(columns=self.task.new)

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

    def trained_columns(self) -> int:
        return self.benchmark.classes if self.settings.columns == "all" else self.task.seen.stop


def binary_losses(host: Host, step: Step, end: int) -> dict[str, Tensor]:
    """Binary cross-entropy averaged over columns 0..end, split in two.

    "task" is the part of the new columns, "stability" that of the old ones.
    """
    first = host.task.new.start
    logits = step.output.logits[:, first:end]
    labels = one_hot(step.batch.y, slice(first, end), logits.dtype)  # all zero for exemplars
    terms = {"task": (end - first) / end * soft_binary_cross_entropy(logits, labels)}
    if host.stable is not None:
        terms["stability"] = host.stability(step)
    return terms
