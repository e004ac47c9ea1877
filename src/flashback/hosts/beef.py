"""BEEF (Wang et al. 2023): modules learned one by one under an energy objective, and fused by a few numbers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from flashback.batches import Batch
from flashback.config import above_zero, at_least_one, not_negative
from flashback.hosts.base import HOSTS, cross_entropy, one_hot, trainable
from flashback.hosts.expanding import ExpandingHost, ExpandingSettings
from flashback.hosts.stages import Stage, Step
from flashback.knowledge import ModelKnowledge, Support
from flashback.nets import ComposedNet, Concatenation, EnergyNet, EnergyOutput, Frozen, Fusion, Output, evaluating


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
        above_zero(self, "alignment", "fusion_lr")
        not_negative(self, "energy", "sampling_steps", "sampling_rate", "sampling_noise")
        at_least_one(self, "fusion_epochs")


@dataclass
class EnergyStep(Step):
    generated: EnergyOutput | None  # the answer to generated images


@HOSTS.register("beef")
class Beef(ExpandingHost):
    """Expansion trains a module on its own; fusion weighs its backward prototypes against the frozen modules.

    There is no stability distance: what was known lives on in frozen modules.
    """

    Settings = BeefSettings
    has_stability = False
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
        return ComposedNet(lambda x: cast(Output, fusion(old(x), net(x))), old, net, fusion)

    # ------------------------------------------------------------ stages

    def expanding_stages(self) -> list[Stage]:
        return [self.main_stage(name="expansion"), self.fusion_stage()]

    def expand(self) -> None:
        """A new module starts as the first one of all."""
        self.old, groups = Frozen(self.left_behind()), self.groups()
        self.net = EnergyNet(copy.deepcopy(self.old.module.first).set_trainable(), groups, len(self.task.classes))
        self.fusion = Fusion(groups)

    def left_behind(self) -> Concatenation:
        """The network at the end of the last task, with one head."""
        if self.old is None or self.fusion is None:
            return Concatenation([self.net.backbone], self.net.head)
        return self.fusion.folded(self.old.module, self.net)

    def trained_parameters(self) -> list[nn.Parameter]:
        """The new module; the calibration has a stage of its own."""
        return trainable(self.net)

    def fusion_stage(self) -> Stage:
        """Trains the calibration alone, on as many images of each class."""
        return self.later_stage(
            "fusion",
            self.settings.fusion_epochs,
            {"lr": self.settings.fusion_lr},
            stream=self.balanced_stream,
            parameters=lambda: list(cast(Fusion, self.fusion).parameters()),
            forward=self.forward_fused,
            losses=lambda step: {"task": cross_entropy(step.output.logits, step.batch.y)},
            end=self.refill,
        )

    def forward_fused(self, batch: Batch) -> Step:
        assert self.old is not None
        assert self.fusion is not None
        with torch.no_grad(), evaluating(self.net):
            old, new = self.old(batch.x), self.net(batch.x)
        return Step(batch, self.fusion(old, new))

    # ------------------------------------------------------------ a batch of expansion

    def forward(self, batch: Batch) -> EnergyStep:
        output = self.net(batch.x)
        return EnergyStep(batch, output, self.net(self.generate(batch.x)) if self.settings.energy else None)

    def generate(self, x: Tensor) -> Tensor:
        """Images that the module takes for known classes, from the batch upside down."""
        steps, rate, noise = self.settings.sampling_steps, self.settings.sampling_rate, self.settings.sampling_noise
        return self.net.sample(x.rot90(2, dims=(2, 3)), steps, rate, noise, self.generator)

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
        """All prototypes of u = [b ; g]; for their raw logits the primary module needs no features of old ones."""
        return Support()

    def response_width(self) -> int:
        return len(self.net.head.bias)

    def blank_knowledge(self) -> ModelKnowledge:
        return ModelKnowledge(self.net.known())

    def fill_knowledge(self, knowledge: ModelKnowledge) -> None:
        knowledge.fill(self.net.known())

    def knowledge_bytes(self) -> dict[str, int]:
        frozen = self.old.state_dict().values() if self.old is not None else ()
        return {"stable": sum(tensor.nbytes for tensor in frozen) + self.memory.nbytes()}
