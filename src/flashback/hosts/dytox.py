"""DyTox (Douillard et al. 2022): a transformer that gets a token and a classifier for every task."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from flashback.config import Count, NotNegative, Positive
from flashback.errors import require
from flashback.hosts.base import HOSTS, one_hot, trainable
from flashback.hosts.exemplars import ExemplarHost, ExemplarSettings
from flashback.hosts.stages import Stage, Step
from flashback.knowledge import ModelKnowledge, Support, soft_binary_cross_entropy, soft_cross_entropy
from flashback.nets import evaluating, full_precision
from flashback.nets.base import gives_maps
from flashback.nets.task_tokens import TaskTokenNet, normed_linear


@dataclass(frozen=True)
class DyToxSettings(ExemplarSettings):
    normalise: bool = True  # herd unit-length features
    divergence: NotNegative = 0.1  # weight of the divergence loss
    temperature: Positive = 1.0  # of the distillation
    finetune_epochs: Count = 20
    finetune_lr: Positive | None = None  # None: a tenth of that of the main stage


@HOSTS.register("dytox")
class DyTox(ExemplarHost):
    """A shared encoder and task attention, with one token and one independent classifier for each task.

    The main stage trains the encoder, the task attention and the token and classifier of the new task. Balanced
    fine-tuning then trains the task attention and all tokens and classifiers on the exemplars.
    """

    Settings = DyToxSettings
    family = "dynamic"
    supports_image_weights = True
    net: TaskTokenNet

    def build(self) -> None:
        super().build()
        self.divergence: nn.Module | None = None  # the head of the divergence loss, new in each task

    def new_net(self) -> TaskTokenNet:
        return TaskTokenNet(self.new_backbone(), self.columns)

    def check(self) -> None:
        super().check()
        require(
            gives_maps(type(self.net.backbone)),
            f"dytox takes the last maps of a network as patches, and {type(self.net.backbone).__name__} gives none; "
            "choose another host.net, such as convit, or give its class a method stage_maps(x) or levels()",
        )

    def stages(self) -> list[Stage]:
        return [self.main_stage(), self.finetuning_stage()] if self.task.index > 0 else [self.main_stage()]

    def allocate(self) -> None:
        """Freeze the tokens and classifiers of earlier tasks, and make the divergence head."""
        super().allocate()
        self.net.train_only(range(self.task.index, self.task.index + 1), backbone=True)
        if self.task.index > 0:
            self.divergence = normed_linear(self.net.backbone.width, 1 + len(self.task.classes))

    def finetuning_stage(self) -> Stage:
        """Train everything but the encoder on the exemplars, of which every class has the same number."""
        settings = self.settings
        lr = self.config.training.lr / 10 if settings.finetune_lr is None else settings.finetune_lr
        return self.extra_stage(
            "balanced fine-tuning",
            settings.finetune_epochs,
            {"lr": lr, "schedule": "none"},
            stream=self.memory_stream,
            parameters=lambda: trainable(self.net),
            forward=evaluating(self.net.backbone)(self.forward),
            losses=lambda step: {"task": self.classification(step)},
            allocate=lambda: self.net.train_only(range(self.task.index + 1), backbone=False),
        )

    # ------------------------------------------------------------ losses

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        """L = (1 - lambda) classification + lambda distillation + divergence.

        lambda is the share of old classes among those seen; in the first task it is 0.
        """
        terms = {"task": (1 - self.old_share()) * self.classification(step)}
        if self.task.index > 0:
            terms["stability"] = self.stability(step)
            terms["divergence"] = self.settings.divergence * self.divergence_loss(step)
        return terms

    def classification(self, step: Step) -> Tensor:
        """Binary cross-entropy over the classes seen."""
        seen = self.task.seen
        return soft_binary_cross_entropy(step.output.logits[:, seen], one_hot(step.batch.y, seen))

    def divergence_loss(self, step: Step) -> Tensor:
        """Binary cross-entropy of the divergence head, which sees only the embedding of the new task.

        It has one column for all old classes and one for each new class.
        """
        assert self.divergence is not None
        newest = step.output.features[:, -self.net.backbone.width :]
        labels = (1 + step.batch.y - self.task.new.start).clamp(min=0)
        with full_precision(newest):
            logits = self.divergence(newest)
        return soft_binary_cross_entropy(logits, one_hot(labels, slice(0, logits.shape[1])))

    # ------------------------------------------------------------ distillation

    def distance(self, step: Step, knowledge: ModelKnowledge, support: Support) -> Tensor:
        """Soft cross-entropy over the supported columns, averaged over them as the classification loss is."""
        columns = support.columns
        student, teacher = step.output.logits[:, columns], knowledge(step.batch.x).logits[:, columns]
        return soft_cross_entropy(student, teacher, self.settings.temperature, support.images) / student.shape[1]

    def stability_support(self) -> Support:
        return Support(columns=self.task.old, weight=self.old_share())

    def old_share(self) -> float:
        """lambda = old / seen classes."""
        return len(self.task.before) / self.task.classes.stop
