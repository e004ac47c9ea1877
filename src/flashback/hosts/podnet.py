"""PODNet (Douillard et al. 2020): the maps of all stages keep their profiles, and each class has several proxies."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from flashback.config import Count, NotNegative, Positive
from flashback.errors import require
from flashback.hosts.base import HOSTS, one_hot
from flashback.hosts.exemplars import ExemplarHost
from flashback.hosts.lucir import CosineSettings, balanced_finetuning, imprint
from flashback.hosts.prediction import directions
from flashback.hosts.stages import Stage, Step
from flashback.knowledge import ModelKnowledge, Support, cosine_distance, pod_spatial
from flashback.nets import Output
from flashback.nets.base import gives_maps
from flashback.nets.heads import ProxyNet, ProxyOutput
from flashback.seeds import seeded_generator


@dataclass(frozen=True)
class PODNetSettings(CosineSettings):
    normalise: bool = True  # herd unit-length features
    proxies: Count = 10  # vectors of each class
    margin: NotNegative = 0.6  # delta, by which the true class is to win
    spatial: NotNegative = 3.0  # lambda_c, weight of POD-spatial, before both are scaled with the classes
    flat: NotNegative = 1.0  # lambda_f, weight of POD-flat
    finetune_lr: Positive = 0.05
    finetune_milestones: tuple[float, ...] = ()
    # Imitates the authors' code: its classification loss, in which the margin cancels.
    compat: bool = False


@HOSTS.register("podnet")
class PODNet(ExemplarHost):
    """Pooled outputs distillation: holds what each stage of the network sees along height and width, and the embedding.

    The losses are NCA with a margin on the cosines to several proxies per class (Section 3.2 of Douillard et al.), and
    POD-spatial and POD-flat towards the old model (Section 3.1). As in LUCIR, new proxies are imprinted, here by
    k-means, and the classifier is tuned on the exemplars when a task ends.
    """

    Settings = PODNetSettings
    family = "distillation"
    supports_image_weights = True
    net: ProxyNet

    def new_net(self) -> ProxyNet:
        return ProxyNet(self.new_backbone(), self.initial_sizes(), self.settings.proxies)

    def check(self) -> None:
        super().check()
        require(
            gives_maps(type(self.net.backbone)),
            f"podnet compares the maps of a network's stages, and {type(self.net.backbone).__name__} gives none; "
            "choose another host.net, or give its class a method stage_maps(x) that returns them, or levels()",
        )

    def stages(self) -> list[Stage]:
        return [self.main_stage(), *balanced_finetuning(self, self.classification)]

    def allocate(self) -> None:
        super().allocate()
        self.net.train_only(range(self.task.index, self.task.index + 1), backbone=True)

    def begin(self) -> None:
        """Imprint the proxies of new classes: the centres of the clusters of their features."""
        imprint(self, self.cluster_centres)

    def cluster_centres(self, features: Tensor, labels: Tensor) -> Tensor:
        generator = seeded_generator(self.config.seed, self.task.index, "imprinting")
        unit = F.normalize(features)
        classes = (unit[labels == c] for c in range(len(self.task.classes)))
        centres = torch.cat([k_means(points, self.settings.proxies, generator) for points in classes])
        return F.normalize(centres).to(features.dtype)

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        terms = self.classification(step)
        if self.task.index > 0:
            terms["stability"] = self.stability(step)
        return terms

    def classification(self, step: Step) -> dict[str, Tensor]:
        assert isinstance(step.output, ProxyOutput)
        cosines, labels, sigma = step.output.cosines[:, self.task.seen], step.batch.y, self.net.head.sigma
        if self.settings.compat:
            return {"task": released_nca(cosines, labels, sigma)}
        return {"task": margin_nca(cosines, labels, sigma, self.settings.margin)}

    def distance(self, step: Step, knowledge: ModelKnowledge, support: Support) -> Tensor:
        """lambda_c POD-spatial + lambda_f POD-flat (Section 3.1)."""
        anchor = knowledge(step.batch.x)
        assert isinstance(step.output, ProxyOutput)
        assert isinstance(anchor, ProxyOutput)
        spatial = pod_spatial(step.output.maps, anchor.maps, support.images)
        flat = cosine_distance(step.output.features, anchor.features, support.images)
        return self.settings.spatial * spatial + self.settings.flat * flat

    def stability_support(self) -> Support:
        """The more classes there are for each new one, the more there is to keep."""
        return Support(weight=math.sqrt(self.task.classes.stop / len(self.task.classes)))

    def plasticity_support(self) -> Support:
        """All stages and the embedding of the whole batch."""
        return Support()

    def response(self, output: Output) -> Tensor:
        return directions(output)

    def response_width(self) -> int:
        return self.net.backbone.width


def margin_nca(cosines: Tensor, labels: Tensor, scale: Tensor, margin: float) -> Tensor:
    """Neighbourhood components with a margin and a hinge (Section 3.2): the true class against all others.

    The margin gives the scale no gradient: it would draw the scale to 0, where all classes have the same score and the
    margin is met, before anything is learned. With a single class there is no loss.
    """
    scaled = scale * cosines
    itself = one_hot(labels, slice(0, cosines.shape[1]), torch.bool)
    others = scaled.masked_fill(itself, torch.finfo(cosines.dtype).min).logsumexp(dim=1)
    true = scaled.gather(1, labels[:, None]).squeeze(1)
    return F.relu(others - true + margin * scale.detach()).mean()


@torch.no_grad()
def k_means(points: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """Cluster points [n, d] by Lloyd's algorithm in float64, starting from random points.

    An empty cluster keeps its centre. With fewer points than clusters, centres repeat. Returns [clusters, d].
    """
    points = points.double()
    sample = torch.randperm(len(points), generator=generator).to(points.device)
    centres = points[sample.repeat(-(-clusters // len(points)))[:clusters]]
    before = None
    for _ in range(100):  # it usually converges in a few
        nearest = torch.cdist(points, centres).argmin(dim=1)
        if before is not None and torch.equal(nearest, before):
            break
        members = F.one_hot(nearest, clusters).double()
        counts = members.sum(dim=0)[:, None]
        centres = torch.where(counts > 0, members.T @ points / counts.clamp(min=1), centres)
        before = nearest
    return centres


# ---------------------------------------------------------------- the switch `compat`


def released_nca(cosines: Tensor, labels: Tensor, scale: Tensor) -> Tensor:
    """As the authors' code has it: the margin cancels, and the largest of all stands among the others."""
    scaled = scale * cosines
    itself = one_hot(labels, slice(0, cosines.shape[1]), torch.bool)
    others = torch.where(itself, scaled.amax(dim=1, keepdim=True), scaled).logsumexp(dim=1)
    return (others - scaled.gather(1, labels[:, None]).squeeze(1)).mean()
