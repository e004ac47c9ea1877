"""PODNet (Douillard et al. 2020): the maps of all stages keep their profiles, and each class has several proxies."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from flashback.config import at_least_one, not_negative
from flashback.errors import require
from flashback.hosts.base import HOSTS
from flashback.hosts.cosine import CosineHost, CosineSettings
from flashback.hosts.losses import margin_nca, released_nca
from flashback.hosts.stages import Step
from flashback.knowledge import ModelKnowledge, Support, cosine_distance, pod_spatial
from flashback.memory import k_means
from flashback.nets import Backbone, ProxyNet, ProxyOutput
from flashback.seeds import seeded_generator


@dataclass(frozen=True)
class PODNetSettings(CosineSettings):
    normalise: bool = True  # herd unit-length features
    proxies: int = 10  # vectors of each class
    margin: float = 0.6  # delta, by which the own class is to win
    spatial: float = 3.0  # lambda_c, weight of POD-spatial, before both are scaled with the classes
    flat: float = 1.0  # lambda_f, weight of POD-flat
    compat: bool = False  # the classification loss of the authors' code, in which the margin cancels
    finetune_lr: float = 0.05
    finetune_milestones: tuple[float, ...] = ()

    def check(self) -> None:
        super().check()
        at_least_one(self, "proxies")
        not_negative(self, "margin", "spatial", "flat")


@HOSTS.register("podnet")
class PODNet(CosineHost):
    """Pooled outputs distillation: what is held is what each stage sees along height and width, and the embedding."""

    Settings = PODNetSettings
    net: ProxyNet

    def new_net(self) -> ProxyNet:
        return ProxyNet(self.new_backbone(), self.benchmark.sizes, self.settings.proxies)

    def check(self) -> None:
        super().check()
        kind = type(self.net.backbone)
        require(
            kind.stage_maps is not Backbone.stage_maps or kind.levels is not Backbone.levels,
            f"podnet compares the maps of a network's stages, and {kind.__name__} gives none; choose another host.net, "
            "or give its class a method stage_maps(x) that returns them, or levels()",
        )

    def directions(self, features: Tensor, labels: Tensor) -> Tensor:
        """The centres of the clusters of each class, as many as it has proxies."""
        generator = seeded_generator(self.config.seed, self.task.index, "imprinting")
        unit = F.normalize(features)
        classes = (unit[labels == c] for c in range(len(self.task.classes)))
        centres = torch.cat([k_means(own, self.settings.proxies, generator) for own in classes])
        return F.normalize(centres).to(features.dtype)

    def classification(self, step: Step) -> dict[str, Tensor]:
        """NCA with a margin over the classes seen (Section 3.2)."""
        assert isinstance(step.output, ProxyOutput)
        cosines, sigma = step.output.cosines[:, self.task.seen], self.net.head.sigma
        if self.settings.compat:
            return {"task": released_nca(cosines, step.batch.y, sigma)}
        return {"task": margin_nca(cosines, step.batch.y, sigma, self.settings.margin)}

    # ------------------------------------------------------------ knowledge

    def stability_support(self) -> Support:
        """The more classes there are for each new one, the more there is to keep."""
        return Support(weight=math.sqrt(self.task.classes.stop / len(self.task.classes)))

    def plasticity_support(self) -> Support:
        """All stages and the embedding of the whole batch."""
        return Support()

    def distance(self, step: Step, knowledge: ModelKnowledge, support: Support) -> Tensor:
        """lambda_c POD-spatial + lambda_f POD-flat (Section 3.1)."""
        anchor = knowledge(step.batch.x)
        assert isinstance(step.output, ProxyOutput)
        assert isinstance(anchor, ProxyOutput)
        spatial = pod_spatial(step.output.maps, anchor.maps)
        flat = cosine_distance(step.output.features, anchor.features)
        return self.settings.spatial * spatial + self.settings.flat * flat
