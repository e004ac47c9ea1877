"""iCaRL (Rebuffi et al. 2017): exemplars, binary distillation, and the nearest mean of exemplars."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from flashback.hosts.base import HOSTS
from flashback.hosts.binary import BinaryDistillation, BinarySettings
from flashback.hosts.exemplars import ExemplarHost, ExemplarSettings
from flashback.hosts.prediction import Classifier
from flashback.memory import class_means


@dataclass(frozen=True)
class ICaRLSettings(ExemplarSettings, BinarySettings):
    pass


@HOSTS.register("icarl")
class ICaRL(ExemplarHost, BinaryDistillation):
    """Trains on new images and exemplars alike; predicts by the nearest class mean in feature space."""

    Settings = ICaRLSettings
    family = "replay"
    scores_unseen = False  # there is no mean for a class that was never met

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
