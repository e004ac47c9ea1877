"""Linear connector (Lin et al. 2022): the average of a network that may not change old features and one that may.

The first is trained as in Adam-NSCL (Wang et al. 2021): its updates are projected onto the directions that the inputs
of each layer have hardly used in earlier tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashback.config import Count, HostSettings, NotNegative, Rule, Share
from flashback.hosts.base import HOSTS, Host, cross_entropy, trainable
from flashback.hosts.prediction import features_of
from flashback.hosts.stages import Stage, Step
from flashback.knowledge import ImportantParameters, ModelKnowledge, Support, bytes_of, copy_state, squared_error
from flashback.knowledge.importance import fisher_diagonal
from flashback.nets import Net
from flashback.nets.splitting import unsplit_passes

IMAGES_UNFOLDED = 32  # at a time: the patches of a layer take far more memory than its input


@dataclass(frozen=True)
class ConnectorSettings(HostSettings):
    strength: NotNegative = 1.0  # weight of the distance between features, in the network that may change them
    null_ratio: Annotated[float, Rule("be at least 1", lambda value: value >= 1)] = 10.0
    # a direction is free if its eigenvalue is at most this many times the smallest
    norm_strength: NotNegative = 100.0  # weight of the penalty on unprojected parameters
    share: Share | None = None  # beta, the share of the plain network in the average; None: 1 / t in task t
    project_epochs: Count | None = None  # None: as many as the other network has


@HOSTS.register("connector")
class LinearConnector(Host):
    """Two networks learn a task from the same initial weights, and the task ends on their weighted average.

    The plain one is trained with a penalty on the change of its features. The projected one may change the weights of
    a layer only where the inputs of earlier tasks had next to no energy. Other parameters of the backbone, such as
    those of batch norm, have EWC's penalty in both. A head row is trained in the task of its class alone.
    """

    Settings = ConnectorSettings
    family = "regularisation"
    supports_image_weights = True
    accumulates_structure = False
    net: Net

    def build(self) -> None:
        super().build()
        self.spaces = nn.ModuleList(NullSpace(layer.weight[0].numel()) for layer in projected_layers(self.net.backbone))
        unprojected = self.unprojected_parameters()
        self.anchor = ImportantParameters(unprojected) if unprojected else None
        self.plain: ModelKnowledge | None = None

    def unprojected_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the backbone that are not projected."""
        projected = {id(layer.weight) for layer in projected_layers(self.net.backbone)}
        return [parameter for parameter in trainable(self.net.backbone) if id(parameter) not in projected]

    def stages(self) -> list[Stage]:
        if self.task.index == 0:
            return [self.main_stage()]
        project = self.extra_stage(
            "project",
            self.settings.project_epochs,
            {},
            losses=self.supervised_losses,
            begin=self.reset_to_initial,
            after_step=self.project,
            end=self.connect,
        )
        return [self.main_stage(), project]

    def allocate(self) -> None:
        super().allocate()
        if self.task.index > 0:
            self.plain = ModelKnowledge(self.net)

    # ------------------------------------------------------------ the plain network

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        """L = cross-entropy over the classes of the task + penalty + strength * mean (f - f_old)^2."""
        terms = dict(self.supervised_losses(step))
        if self.task.index > 0:
            terms["stability"] = self.stability(step)
        return terms

    def supervised_losses(self, step: Step) -> Mapping[str, Tensor]:
        new = self.task.new
        terms = {"task": cross_entropy(step.output.logits[:, new], step.batch.y - new.start)}
        if self.task.index > 0 and self.anchor is not None:
            terms["penalty"] = self.settings.norm_strength * self.anchor.distance(self.unprojected_parameters())
        return terms

    def distance(self, step: Step, knowledge: ModelKnowledge, support: Support) -> Tensor:
        """Mean squared difference of the features."""
        anchor = knowledge(step.batch.x).features
        return squared_error(step.output.features, anchor, weights=support.images)

    def stability_support(self) -> Support:
        return Support(weight=self.settings.strength)

    def plasticity_support(self) -> Support:
        return Support()

    def after_step(self, step: Any) -> None:
        """Undo weight decay in the head rows of earlier tasks, which have no gradient."""
        if self.task.index > 0:
            for row, old in zip(self.net.head.parameters(), self.initial_net.head.parameters(), strict=True):
                row[self.task.old].copy_(old[self.task.old])

    @torch.no_grad()
    def end(self) -> None:
        if self.plain is None:
            self.update_statistics()
        else:
            self.plain.fill(self.net)

    # ------------------------------------------------------------ the projected network

    @property
    def initial_net(self) -> Net:
        """The network before the task."""
        return cast(Net, cast(ModelKnowledge, self.stable).model.module)

    @torch.no_grad()
    def reset_to_initial(self) -> None:
        copy_state(self.initial_net, self.net)

    @torch.no_grad()
    def project(self, step: Any) -> None:
        """Project the change since the initial network onto the free directions.

        Earlier changes already lie in them, so this projects the last update, whichever optimiser made it.
        """
        self.after_step(step)
        layers, initial_layers = projected_layers(self.net.backbone), projected_layers(self.initial_net.backbone)
        for layer, old, space in zip(layers, initial_layers, self.spaces, strict=True):
            change = (layer.weight - old.weight).flatten(1) @ cast(NullSpace, space).projection
            layer.weight.copy_(old.weight + change.view_as(layer.weight))

    @torch.no_grad()
    def connect(self) -> None:
        """Set theta = (1 - beta) projected + beta plain, also for the statistics of batch norm."""
        assert self.plain is not None
        beta = 1 / (self.task.index + 1) if self.settings.share is None else self.settings.share
        plain = self.plain.model.module.state_dict()
        for name, tensor in self.net.state_dict().items():
            if tensor.is_floating_point():
                tensor.lerp_(plain[name], beta)
        self.update_statistics()

    # ------------------------------------------------------------ statistics of a task

    @torch.no_grad()
    def update_statistics(self) -> None:
        """Add the inputs of each layer to its covariance, and the importance of the other parameters."""
        train, views = self.task.train, self.views
        with self.watching_inputs(), unsplit_passes():
            self.embed(train.x, features_of)
        for space in self.spaces:
            cast(NullSpace, space).update(self.settings.null_ratio)
        if self.anchor is not None:
            unprojected = self.unprojected_parameters()
            unprojected_ids = {id(parameter) for parameter in unprojected}
            fisher = fisher_diagonal(self.net, train.x, train.y, views.plain, "empirical", self.task.new)
            masks = [torch.full((p.numel(),), id(p) in unprojected_ids, device=p.device) for p in trainable(self.net)]
            self.anchor.importance.add_(fisher[torch.cat(masks)])
            self.anchor.values.copy_(torch.cat([parameter.flatten() for parameter in unprojected]))

    @contextmanager
    def watching_inputs(self) -> Iterator[None]:
        layers = projected_layers(self.net.backbone)
        handles = [
            layer.register_forward_pre_hook(partial(add_inputs, cast(NullSpace, space)))
            for layer, space in zip(layers, self.spaces, strict=True)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def knowledge_bytes(self) -> dict[str, int]:
        anchor = 0 if self.anchor is None else self.anchor.nbytes()
        return {"stable": super().knowledge_bytes()["stable"] + bytes_of(self.spaces) + anchor}


class NullSpace(nn.Module):
    """The directions that the inputs of one layer have hardly used.

    Args:
        width: The inputs of one output of the layer.
    """

    covariance: Tensor
    projection: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("covariance", torch.zeros(width, width, dtype=torch.float64))
        self.register_buffer("projection", torch.eye(width))

    def add(self, inputs: Tensor) -> None:
        """Add inputs [n, width] to the sum of their outer products."""
        inputs = inputs.to(self.covariance.dtype)
        self.covariance.addmm_(inputs.T, inputs)

    def update(self, ratio: float) -> None:
        """Compute the projection onto the eigenvectors whose eigenvalues are at most `ratio` times the smallest."""
        values, vectors = torch.linalg.eigh(self.covariance)  # ascending
        smallest = torch.maximum(values[0], torch.finfo(torch.float32).eps * values[-1])  # below it lies rounding
        free = vectors * (values <= ratio * smallest)
        self.projection.copy_(free @ free.T)


def projected_layers(backbone: nn.Module) -> list[nn.Conv2d | nn.Linear]:
    """Return the layers whose weight is one matrix that acts on all inputs, or on every patch of them."""
    layers = [module for module in backbone.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    return [
        layer
        for layer in layers
        if isinstance(layer, nn.Linear) or (layer.groups == 1 and not isinstance(layer.padding, str))
    ]


def add_inputs(space: NullSpace, layer: nn.Module, inputs: tuple[Tensor]) -> None:
    for images in torch.split(inputs[0], IMAGES_UNFOLDED):
        if isinstance(layer, nn.Conv2d):
            padding = cast(tuple[int, ...], layer.padding)
            patches = F.unfold(images, layer.kernel_size, layer.dilation, padding, layer.stride)
            space.add(patches.transpose(1, 2).flatten(0, 1))
        else:
            space.add(images.flatten(0, -2))
