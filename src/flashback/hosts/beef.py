"""BEEF (Wang et al. 2023): modules learned one by one under an energy objective, and fused by a few numbers.

BEEF-Compress distils the fused network into one module again, with FOSTER's compression.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashback.batches import Batch, Stream
from flashback.benchmarks import Images
from flashback.config import HostSettings, within
from flashback.hosts.base import HOSTS, cross_entropy, one_hot
from flashback.hosts.expanding import (
    CompressingHost,
    CompressionSettings,
    ExpandingHost,
    ExpandingSettings,
    GrowingNet,
    Whole,
    check_later_stage,
    evaluating,
)
from flashback.hosts.stages import Stage, Step, nothing
from flashback.knowledge import ModelKnowledge, Support, soft_cross_entropy
from flashback.nets import Backbone, Frozen, LinearHead, Net, Output, grown_linear
from flashback.seeds import seeded_generator


@dataclass(frozen=True)
class BeefSettings(ExpandingSettings):
    alignment: float = 1.7  # A, by which the logits of backward prototypes are divided in the loss
    energy: float = 0.01  # weight of the energy term; 0 leaves it out
    sampling_steps: int = 3  # Langevin steps that make its images
    sampling_rate: float = 0.01
    sampling_noise: float = 0.001
    compat: bool = False  # blank a logit in the whole batch as in the authors' code, not only in the sample's row
    fusion_epochs: int | None = None  # None: as many as the main stage
    fusion_lr: float | None = None  # None: that of the main stage

    def check(self) -> None:
        super().check()
        check_later_stage("fusion", self.fusion_epochs, self.fusion_lr)
        within(self.alignment > 0, f"host.alignment is above 0, not {self.alignment}")
        for name in ("energy", "sampling_steps", "sampling_rate", "sampling_noise"):
            within(getattr(self, name) >= 0, f"host.{name} is not negative, not {getattr(self, name)}")


@dataclass(frozen=True)
class BeefCompressSettings(BeefSettings, CompressionSettings):
    beta2: float = 0.0  # how much the compression favours classes with few images; 0: not at all


# ---------------------------------------------------------------- networks


@dataclass
class EnergyOutput(Output):
    """The logits are u = [b ; g], of backward prototypes (one a group of old classes) and new classes."""

    unknown: Tensor  # f, of forward prototypes: one for every class seen, which claims what only resembles that class

    def all_logits(self) -> Tensor:
        return torch.cat([self.logits, self.unknown], dim=1)


class EnergyNet(GrowingNet):
    """A module that learns alone: it tells new classes apart, and from groups of old ones and from the unknown."""

    pseudo_labels: Tensor  # a column of u for each class seen: the group of an old one, the own of a new one

    def __init__(self, backbone: Backbone, groups: Sequence[int], new: int) -> None:
        backward = len(set(groups))
        super().__init__(backbone, backward + new)
        self.backward = backward
        self.unknown = grown_linear(None, backbone.width, len(groups) + new)
        self.register_buffer("pseudo_labels", torch.tensor([*groups, *range(backward, backward + new)]))

    def forward(self, x: Tensor) -> EnergyOutput:
        known = super().forward(x)
        return EnergyOutput(known.features, known.logits, self.unknown(known.features))

    def known(self) -> Net:
        """What answers on real images."""
        return Net(self.backbone, self.head)


class Concatenation(nn.Module):
    """All modules so far and one head on their joint features."""

    def __init__(self, modules: Iterable[nn.Module], head: LinearHead) -> None:
        super().__init__()
        self.parts, self.head = nn.ModuleList(modules), head

    def forward(self, x: Tensor) -> Output:
        features = torch.cat([part(x).float() for part in self.parts], dim=1)
        return Output(features, self.head(features))

    @property
    def first(self) -> Backbone:
        return cast(Backbone, self.parts[0])


class Fusion(nn.Module):
    """Adds the calibrated logit of its backward prototype, (1 + a) b + s, to the old logit of each old class."""

    groups: Tensor

    def __init__(self, groups: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("groups", torch.tensor(groups))
        self.scale, self.shift = (nn.Parameter(torch.zeros(len(set(groups)))) for _ in range(2))

    def forward(self, old: Output, new: Output) -> Output:
        backward, own = new.logits.tensor_split([len(self.scale)], dim=1)
        raised = ((1 + self.scale) * backward + self.shift)[:, self.groups]
        features = torch.cat([old.features, new.features], dim=1)
        return Output(features, torch.cat([old.logits + raised, own], dim=1))

    @torch.no_grad()
    def folded(self, old: Concatenation, new: EnergyNet) -> Concatenation:
        """The same network with one head: calibrated backward rows beside the old rows, new rows beside zeros."""
        classes, width = old.head.weight.shape
        head = grown_linear(old.head, width + new.backbone.width, classes + len(new.head.bias) - new.backward)
        scale = 1 + self.scale[self.groups]
        head.weight[:classes, width:] = scale[:, None] * new.head.weight[self.groups]
        head.bias[:classes] += scale * new.head.bias[self.groups] + self.shift[self.groups]
        head.weight[classes:, :width] = 0
        head.weight[classes:, width:] = new.head.weight[new.backward :]
        head.bias[classes:] = new.head.bias[new.backward :]
        return Concatenation([*old.parts, new.backbone], head)


# ---------------------------------------------------------------- the host


@dataclass
class EnergyStep(Step):
    generated: EnergyOutput | None  # the answer to generated images


@HOSTS.register("beef")
class Beef(ExpandingHost):
    """Expansion trains a module on its own; fusion weighs its backward prototypes against the frozen modules.

    There is no stability distance: what was known lives on in frozen modules.
    """

    Settings: ClassVar[type[HostSettings]] = BeefSettings
    net: EnergyNet

    def build(self) -> None:
        super().build()
        self.old: Frozen[Concatenation] | None = None
        self.fusion: Fusion | None = None

    def new_net(self) -> EnergyNet:
        return EnergyNet(self.new_backbone(), [], len(self.task.classes))

    def groups(self) -> list[int]:
        """The backward prototype of each old class: one for every earlier task."""
        return [task.index for task in self.benchmark.tasks[: self.task.index] for _ in task.classes]

    def expanded(self) -> nn.Module:
        old, net, fusion = self.old, self.net, self.fusion
        if old is None or fusion is None:
            return net
        return Whole(lambda x: cast(Output, fusion(old(x), net(x))), old, net, fusion)

    # ------------------------------------------------------------ stages

    def stages(self) -> list[Stage]:
        if self.task.index == 0:
            return [self.main_stage()]
        return [self.main_stage(name="expansion"), self.fusion_stage()]

    def allocate(self) -> None:
        """A new module starts as the first one of all."""
        if self.task.index == 0:
            return
        self.old, groups = Frozen(self.left_behind()), self.groups()
        self.net = EnergyNet(copy.deepcopy(self.old.module.first), groups, len(self.task.classes)).requires_grad_(True)
        self.fusion = Fusion(groups)

    def left_behind(self) -> Concatenation:
        """The network at the end of the last task, with one head."""
        if self.old is None or self.fusion is None:
            return Concatenation([self.net.backbone], self.net.head)
        return self.fusion.folded(self.old.module, self.net)

    def end(self) -> None:
        if self.task.index == 0:
            self.refill(self.expanded())

    def fusion_stage(self) -> Stage:
        """Trains the calibration alone, on as many images of each class. Herding sees the features of all modules."""
        return self.later_stage(
            "fusion",
            self.settings.fusion_epochs,
            self.settings.fusion_lr,
            stream=self.balanced_stream,
            parameters=lambda: list(cast(Fusion, self.fusion).parameters()),
            forward=self.forward_fused,
            losses=lambda step: {"task": cross_entropy(step.output.logits, step.batch.y)},
            allocate=nothing,
            begin=nothing,
            end=lambda: self.refill(self.expanded()),
        )

    def forward_fused(self, batch: Batch) -> Step:
        assert self.old is not None
        assert self.fusion is not None
        with torch.no_grad(), evaluating(self.net):
            old, new = self.old(batch.x), self.net(batch.x)
        return Step(batch, self.fusion(old, new))

    def balanced_stream(self) -> Stream:
        """All exemplars, and as many images of each new class as an old one has exemplars, drawn once a task."""
        exemplars, new = self.memory_stream(), self.task.train
        share = int(torch.bincount(exemplars.labels).max())
        shuffled = torch.randperm(
            len(new), generator=seeded_generator(self.config.seed, self.task.index, "balanced set")
        )
        chosen = torch.cat([shuffled[new.y[shuffled] == c][:share] for c in self.task.classes])
        return Stream.of(Images(new.x[chosen], new.y[chosen]), self.device).joined(exemplars)

    # ------------------------------------------------------------ a batch of expansion

    def forward(self, batch: Batch) -> EnergyStep:
        output = self.net(batch.x)
        return EnergyStep(batch, output, self.net(self.generate(batch.x)) if self.settings.energy else None)

    @torch.enable_grad()
    def generate(self, x: Tensor) -> Tensor:
        """Langevin steps from the batch upside down towards what the model takes for known classes."""
        x = x.rot90(2, dims=(2, 3))
        with evaluating(self.net):
            for _ in range(self.settings.sampling_steps):
                x = x.detach().requires_grad_()
                output = self.net(x)
                unknown = F.log_softmax(output.all_logits(), dim=1)[:, output.logits.shape[1] :]
                (slope,) = torch.autograd.grad(unknown.logsumexp(dim=(0, 1)), x)
                noise = torch.randn(x.shape, generator=self.generator, device=x.device)
                x = x - self.settings.sampling_rate * slope + self.settings.sampling_noise * noise
        return x.detach()

    def losses(self, step: EnergyStep) -> Mapping[str, Tensor]:
        backward, new = step.output.logits.tensor_split([self.net.backward], dim=1)
        aligned = torch.cat([backward / self.settings.alignment, new], dim=1)
        terms = {"task": cross_entropy(aligned, self.net.pseudo_labels[step.batch.y])}
        if step.generated is not None:
            terms["energy"] = self.settings.energy * self.energy_loss(step.generated, step.batch.y)
        return terms

    def energy_loss(self, generated: EnergyOutput, labels: Tensor) -> Tensor:
        """What was generated from an image belongs to the forward prototype of its class; its own logit is blanked."""
        columns = generated.logits.shape[1]
        own = one_hot(self.net.pseudo_labels[labels], slice(0, columns), torch.bool)
        own = own.any(dim=0, keepdim=True) if self.settings.compat else own
        blanked = replace(generated, logits=generated.logits.masked_fill(own, 0.0))
        return cross_entropy(blanked.all_logits(), columns + labels)

    # ------------------------------------------------------------ knowledge

    def plasticity_support(self) -> Support:
        """All prototypes of u = [b ; g]."""
        return Support()

    def response_width(self) -> int:
        return len(self.net.head.bias)

    def blank_knowledge(self) -> ModelKnowledge:
        return ModelKnowledge(self.net.known())

    def fill_knowledge(self, knowledge: ModelKnowledge) -> None:
        knowledge.fill(self.net.known())

    def distance(self, step: Step, knowledge: ModelKnowledge, support: Support) -> Tensor:
        """Soft cross-entropy (Eq. 23) of raw prototype logits; the primary module needs no features of old ones."""
        anchor = knowledge(step.batch.x).logits[:, support.columns]
        return soft_cross_entropy(step.output.logits[:, support.columns], anchor, self.settings.temperature)

    def knowledge_bytes(self) -> dict[str, int]:
        frozen = self.old.state_dict().values() if self.old is not None else ()
        return {"stable": sum(tensor.nbytes for tensor in frozen) + self.memory.nbytes()}


@HOSTS.register("beef-compress")
class BeefCompress(CompressingHost, Beef):
    """After fusion one module learns from all; so the next task finds one group of old classes (K + 2 prototypes)."""

    Settings = BeefCompressSettings

    def groups(self) -> list[int]:
        return [0] * len(self.task.before)

    def stages(self) -> list[Stage]:
        if self.task.index == 0:
            return super().stages()
        expansion, fusion = super().stages()
        return [expansion, replace(fusion, end=nothing), self.compression_stage()]

    def allocate(self) -> None:
        super().allocate()
        self.student = None

    def left_behind(self) -> Concatenation:
        if self.student is None:
            return super().left_behind()
        return Concatenation([self.student.backbone], self.student.head)

    def old_parts(self) -> tuple[Backbone, LinearHead]:
        assert self.old is not None
        return self.old.module.first, self.old.module.head
