"""iCaRL (Rebuffi et al. 2017): exemplars, binary distillation, and the nearest mean of exemplars.

This file has the loss and the classifier; herding, quotas and class means are in `exemplars.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor

from flashback.hosts.base import HOSTS, Host, one_hot
from flashback.hosts.exemplars import ExemplarHost, ExemplarSettings, class_means
from flashback.hosts.prediction import Classifier
from flashback.hosts.stages import Step
from flashback.knowledge import ModelKnowledge, Support, soft_binary_cross_entropy


@dataclass(frozen=True)
class ICaRLSettings(ExemplarSettings):
    # Herd and average unit-length features, as the iCaRL paper does; False is as in the Flashback authors' code.
    normalise: bool = False
    # Columns of the loss; "all" also trains future classes towards 0, as the iCaRL authors' code and Mammoth do.
    columns: Literal["seen", "all"] = "seen"


class BinaryDistillation(Host):
    """One binary cross-entropy per class (Alg. 3 of Rebuffi et al.): new classes towards the labels, old ones towards
    the sigmoid outputs of the old model.

    These outputs are computed for every augmented batch; the paper stores them once before training. If known classes
    come again, all seen classes learn from the labels, and old ones from the old model as well.
    """

    supports_image_weights = True
    settings: Any  # with `columns`

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        """L = new / n * BCE(new columns, labels) + old / n * BCE(old columns, sigmoid of the old model), n = old + new.

        A BCE is a mean over images and columns, so L is the mean over all n targets of an image; Alg. 3 sums over them.
        """
        columns = self.label_columns()
        logits = step.output.logits[:, columns]
        labels = one_hot(step.batch.y, columns, logits.dtype)  # all zero for exemplars, unless known classes come again
        weight = (columns.stop - columns.start) / self.target_count()
        terms = {"task": weight * soft_binary_cross_entropy(logits, labels)}
        if self.task.index > 0:
            terms["stability"] = self.stability(step)
        return terms

    def distance(self, step: Step, knowledge: ModelKnowledge, support: Support) -> Tensor:
        """Binary cross-entropy towards the sigmoid outputs of the old (or primary) model."""
        outputs = knowledge(step.batch.x).logits[:, support.columns].sigmoid()
        return soft_binary_cross_entropy(step.output.logits[:, support.columns], outputs, support.images)

    def stability_support(self) -> Support:
        return Support(columns=self.task.old, weight=len(self.task.before) / self.target_count())

    def plasticity_support(self) -> Support:
        """Use the seen columns that learn from labels, with weight 1: in these the primary model is the expert."""
        return Support(columns=slice(self.label_columns().start, self.task.seen.stop))

    def label_columns(self) -> slice:
        """Return the columns that learn from labels: the new ones, or all if known classes come again.

        With columns="all", future classes count as new.
        """
        end = self.columns if self.settings.columns == "all" else self.task.seen.stop
        return slice(0 if self.task.revisited else self.task.new.start, end)

    def target_count(self) -> int:
        """Return n, the targets of an image: one per column that learns from labels and one per old column."""
        columns = self.label_columns()
        return len(self.task.before) + len(range(columns.start, columns.stop))

    def can_revisit(self) -> bool:
        return True

    def trains_future_classes(self) -> bool:
        return bool(self.settings.columns == "all")


@HOSTS.register("icarl")
class ICaRL(BinaryDistillation, ExemplarHost):
    """Trains on new images and herded exemplars with binary distillation; predicts by the nearest class mean.

    When a task ends, `ExemplarHost` cuts the exemplars of old classes to the new quota and herds those of the new ones
    (Alg. 4 and 5). An image goes to the class with the nearest mean of exemplars (Alg. 1).
    """

    Settings = ICaRLSettings
    scores_unseen = False  # there is no mean for a class that was never seen
    accumulates_structure = False

    def classifiers(self) -> dict[str, Classifier]:
        normalise = self.settings.normalise
        means = class_means(*self.exemplar_features(), self.columns, normalise).double()

        def nearest_mean(x: Tensor) -> Tensor:
            features = self.net(x).features.double()
            features = F.normalize(features, dim=1) if normalise else features
            # The negative squared distance, expanded as -|f - m|^2 = 2 f m - |m|^2 - |f|^2, which needs no tensor of
            # shape [B, classes, width]. The result is a small difference of large numbers, so it is computed in
            # float64; in float32, and more so in TF32, rounding errors could decide between means that are close.
            return 2.0 * features @ means.T - means.square().sum(dim=1) - features.square().sum(dim=1, keepdim=True)

        return {"nearest-mean": nearest_mean, "linear": self.scores}
