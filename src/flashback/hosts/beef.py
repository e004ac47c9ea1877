"""BEEF (Wang et al. 2023): modules trained one by one under an energy objective, then fused by a few numbers."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from flashback.batches import Batch
from flashback.config import Count, NaturalNumber, NotNegative, Positive
from flashback.hosts.base import HOSTS, cross_entropy, one_hot, trainable
from flashback.hosts.exemplars import ExemplarHost, ExemplarSettings
from flashback.hosts.stages import Stage, Step
from flashback.knowledge import ModelKnowledge, Support, bytes_of, soft_cross_entropy
from flashback.nets import Frozen, Output, evaluating
from flashback.nets.growing import ComposedNet, Concatenation, EnergyNet, EnergyOutput, Fusion, pad_classes


@dataclass(frozen=True)
class BeefSettings(ExemplarSettings):
    normalise: bool = True  # herd unit-length features
    alignment: Positive = 1.7  # A, by which the logits of backward prototypes are divided in the loss
    energy: NotNegative = 0.01  # weight of the energy term; 0 leaves it out
    sampling_steps: NaturalNumber = 3  # Langevin steps that make its images
    sampling_rate: NotNegative = 0.01
    sampling_noise: NotNegative = 0.001
    compat: bool = False  # blank a logit in the whole batch as in the authors' code, not only in the sample's row
    fusion_epochs: Count | None = None  # None: as many as the main stage
    fusion_lr: Positive | None = None  # None: that of the main stage
    temperature: Positive = 2.0  # of every distillation


@dataclass
class EnergyStep(Step):
    generated: EnergyOutput | None  # the output for generated images


@HOSTS.register("beef")
class Beef(ExemplarHost):
    """Expansion trains a module on its own; fusion weighs its backward prototypes against the frozen modules.

    The logits of a module are u = [b ; g]: one backward prototype for each earlier task, then the new classes. There is
    no stability distance: old knowledge is kept in the frozen modules.

    The released code has two slips, and its published values include both: in the fused logits it drops the biases of
    old heads (`=+` where `+=` was meant), and batch norm of all frozen modules but the first keeps moving. Here the
    biases are added, and frozen modules stay in evaluation mode.
    """

    Settings = BeefSettings
    family = "dynamic"
    has_stability = False
    has_one_backbone = False
    supports_image_weights = True
    scores_unseen = False
    net: EnergyNet

    def build(self) -> None:
        super().build()
        self.old: Frozen[Concatenation] | None = None
        self.fusion: Fusion | None = None

    def new_net(self) -> EnergyNet:
        return EnergyNet(self.new_backbone(), [], len(self.task.classes))

    def groups(self) -> list[int]:
        """Return the backward prototype of each old class: one for every earlier task."""
        return [task.index for task in self.benchmark.tasks[: self.task.index] for _ in task.classes]

    def stages(self) -> list[Stage]:
        if self.task.index == 0:
            return [self.main_stage()]
        return [self.main_stage(name="expansion"), self.fusion_stage()]

    def allocate(self) -> None:
        """Freeze what the last task left and add a module that starts as the first one of all."""
        if self.task.index == 0:
            return
        self.old, groups = Frozen(self.folded()), self.groups()
        self.net = EnergyNet(copy.deepcopy(self.old.module.first).set_trainable(), groups, len(self.task.classes))
        self.fusion = Fusion(groups)

    def folded(self) -> Concatenation:
        """Return the network at the end of the last task, with one head."""
        if self.old is None or self.fusion is None:
            return Concatenation([self.net.backbone], self.net.head)
        return self.fusion.folded(self.old.module, self.net)

    def trained_parameters(self) -> list[nn.Parameter]:
        """Return the new module; the calibration has its own stage."""
        return trainable(self.net)

    def end(self) -> None:
        """Choose exemplars after the first task; later tasks do so after their last stage."""
        if self.task.index == 0:
            self.refill()

    def forward(self, batch: Batch) -> EnergyStep:
        output = self.net(batch.x)
        return EnergyStep(batch, output, self.net(self.generate(batch.x)) if self.settings.energy else None)

    def generate(self, x: Tensor) -> Tensor:
        """Draw images that the module takes for known classes, starting from the batch turned upside down."""
        steps, rate, noise = self.settings.sampling_steps, self.settings.sampling_rate, self.settings.sampling_noise
        return self.net.sample(x.rot90(2, dims=(2, 3)), steps, rate, noise, self.generator)

    def losses(self, step: EnergyStep) -> Mapping[str, Tensor]:
        """L = cross-entropy of [b / A ; g] + weight * energy loss."""
        backward, new = step.output.logits.tensor_split([self.net.backward], dim=1)
        aligned = torch.cat([backward / self.settings.alignment, new], dim=1)
        terms = {"task": cross_entropy(aligned, self.net.pseudo_labels[step.batch.y])}
        if step.generated is not None:
            terms["energy"] = self.settings.energy * self.energy_loss(step.generated, step.batch.y)
        return terms

    def energy_loss(self, generated: EnergyOutput, labels: Tensor) -> Tensor:
        """Assign each generated image to the forward prototype of its class, the logit of that class blanked."""
        columns = generated.logits.shape[1]
        mask = one_hot(self.net.pseudo_labels[labels], slice(0, columns), torch.bool)
        if self.settings.compat:
            mask = released_mask(mask)
        blanked = replace(generated, logits=generated.logits.masked_fill(mask, 0.0))
        return cross_entropy(blanked.all_logits(), columns + labels)

    def fusion_stage(self) -> Stage:
        """Train the calibration (1 + a) b + s alone, on equally many images of each class."""
        return self.extra_stage(
            "fusion",
            self.settings.fusion_epochs,
            {"lr": self.settings.fusion_lr},
            stream=self.balanced_stream,
            parameters=lambda: list(cast(Fusion, self.fusion).parameters()),
            forward=self.forward_fused,
            losses=lambda step: {"task": cross_entropy(step.output.logits, step.batch.y)},
            end=lambda: self.refill(self.expanded()),
        )

    def forward_fused(self, batch: Batch) -> Step:
        assert self.old is not None
        assert self.fusion is not None
        with torch.no_grad(), evaluating(self.net):
            old, new = self.old(batch.x), self.net(batch.x)
        return Step(batch, self.fusion(old, new))

    def plasticity_support(self) -> Support:
        """Act on all columns of u, which need no features of old modules."""
        return Support()

    def distance(self, step: EnergyStep, knowledge: ModelKnowledge, support: Support) -> Tensor:
        """Soft cross-entropy (FL Eq. 23) to the primary module, on the raw logits u."""
        target = knowledge(step.batch.x).logits[:, support.columns]
        student = step.output.logits[:, support.columns]
        return soft_cross_entropy(student, target, self.settings.temperature, support.images)

    def response_width(self) -> int:
        return len(self.net.head.bias)

    def blank_knowledge(self) -> ModelKnowledge:
        return ModelKnowledge(self.net.known())

    def fill_knowledge(self, knowledge: ModelKnowledge) -> None:
        knowledge.fill(self.net.known())

    def knowledge_bytes(self) -> dict[str, int]:
        return {"stable": self.memory.nbytes() + (0 if self.old is None else bytes_of(self.old))}

    def expanded(self) -> nn.Module:
        """Return all modules, fused, as one network; in the first task the only module."""
        old, net, fusion = self.old, self.net, self.fusion
        if old is None or fusion is None:
            return net
        return ComposedNet(lambda x: cast(Output, fusion(old(x), net(x))), old, net, fusion)

    def predictor(self) -> nn.Module:
        return self.expanded()

    def scores(self, x: Tensor) -> Tensor:
        return pad_classes(super().scores(x), self.columns)


def released_mask(mask: Tensor) -> Tensor:
    """Blank, as the released code does, every logit that is blanked anywhere in the batch (`host.compat`)."""
    return mask.any(dim=0, keepdim=True)
