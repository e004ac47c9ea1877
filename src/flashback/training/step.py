"""The training step: gather, augment, forward, losses, backward, hook, update, hook."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flashback import ranks
from flashback.batches import Batch, Stream
from flashback.errors import FlashbackError, unknown
from flashback.hosts.base import Host, copy_tensors
from flashback.hosts.stages import Optimisation, Stage
from flashback.nets import Backbone

ADAMS: dict[str, Any] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def build_optimiser(stage: Stage, backbone: Iterable[nn.Parameter] = ()) -> torch.optim.Optimizer:
    """A new optimiser whose state exists from the start, as zeros, so that its structure is fixed.

    Args:
        stage: The stage that it trains.
        backbone: The parameters whose rate `backbone_lr_factor` multiplies.
    """
    settings, parameters = stage.optimisation, stage.parameters()
    if not parameters:
        raise FlashbackError(f"the stage '{stage.name}' has no parameters to train; give it some, or remove the stage")
    groups, on_cuda = parameter_groups(parameters, settings, backbone), parameters[0].is_cuda
    common: dict[str, Any] = {"weight_decay": settings.weight_decay, "foreach": not on_cuda, "fused": on_cuda}
    if settings.optimiser == "sgd":
        sgd = torch.optim.SGD(groups, momentum=settings.momentum, nesterov=settings.nesterov, **common)
        for parameter in parameters if settings.momentum else []:
            sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return sgd
    if settings.optimiser not in ADAMS:
        raise unknown("optimiser", settings.optimiser, ["sgd", *ADAMS])
    adam: torch.optim.Optimizer = ADAMS[settings.optimiser](
        groups, betas=settings.betas, eps=settings.eps, capturable=on_cuda, **common
    )
    for parameter in parameters:
        adam.state[parameter] |= {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return adam


def parameter_groups(
    parameters: Sequence[nn.Parameter], settings: Optimisation, backbone: Iterable[nn.Parameter]
) -> list[dict[str, Any]]:
    """One group for each `factor` on the rate: a single one unless the backbone has its own."""
    inside = set(map(id, backbone))
    factors = [settings.backbone_lr_factor if id(parameter) in inside else 1.0 for parameter in parameters]
    groups: list[dict[str, Any]] = []
    for factor in dict.fromkeys(factors):
        members = [parameter for parameter, each in zip(parameters, factors, strict=True) if each == factor]
        rate, device = settings.lr * factor, members[0].device
        # On CUDA the rate is a tensor on the device, so that a captured step reads the current value.
        lr = torch.tensor(rate, device=device) if device.type == "cuda" else rate
        groups.append({"params": members, "factor": factor, "lr": lr})
    return groups


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate * group.get("factor", 1.0))
        else:
            group["lr"] = rate * group.get("factor", 1.0)


class TrainingStep:
    """One step of a stage on images of its stream; loss terms are summed on the device."""

    def __init__(self, host: Host, stage: Stage, stream: Stream, precision: str) -> None:
        self.host, self.stage, self.stream, self.precision = host, stage, stream, precision
        backbones = [module for module in host.modules() if isinstance(module, Backbone)]
        self.optimiser = build_optimiser(stage, [p for backbone in backbones for p in backbone.parameters()])
        self.sums: dict[str, Tensor] = {}
        self.preparation_seconds = 0.0  # spent on captures and compilations
        self.finite = torch.ones((), device=host.device)  # 1 while every loss term so far was finite
        self.finite_steps = torch.zeros((), device=host.device)  # steps of this epoch until one was not

    def __call__(self, indices: Tensor, raw: Tensor | None = None) -> None:
        """Train on the images at these positions; `raw` holds them if they are not on the device."""
        self.descend(indices, raw)

    def descend(self, indices: Tensor, raw: Tensor | None = None) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        with self.autocast():
            step = self.stage.forward(self.gather(indices, raw))
            terms = checked(self.stage.losses(step), self.host.settings.name)
        total = total_loss(terms)
        total.backward()  # type: ignore[no-untyped-call]
        self.average_gradients()
        self.stage.before_update(step)
        self.optimiser.step()
        with torch.no_grad():
            self.stage.after_step(step)
            self.accumulate(terms, total, len(indices))

    def average_gradients(self) -> None:
        """Take the means over the ranks of a run on several devices."""
        if ranks.world_size() > 1:
            gradients = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
            for gradient, mean in zip(gradients, ranks.average(gradients), strict=True):
                gradient.copy_(mean)

    def gather(self, indices: Tensor, raw: Tensor | None) -> Batch:
        raw = self.stream.images[indices] if raw is None else raw
        x = self.host.views.weak(raw, self.host.generator)
        return Batch(x, self.stream.labels[indices], raw, self.stream.slots[indices])

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.host.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def accumulate(self, terms: Mapping[str, Tensor], total: Tensor, images: int) -> None:
        over = self.finite == 0  # only the terms of the first step that was not finite are kept
        for name, value in terms.items():
            if name not in self.sums:
                self.sums[name] = torch.zeros((), device=self.host.device)
            self.sums[name].add_(value.detach().masked_fill(over, 0.0), alpha=images)
        self.finite *= torch.isfinite(total)
        self.finite_steps += self.finite

    def read_means(self, images: int) -> dict[str, float]:
        """The mean of every loss term over the epoch; resets the sums."""
        means = {name: float(value) / images for name, value in sorted(self.sums.items())}
        for value in (*self.sums.values(), self.finite_steps):
            value.zero_()
        return means

    def check_finite(self, epoch: int) -> None:
        where = f"in {self.stage.name} of task {self.host.task.index + 1}, epoch {epoch + 1}"
        if not float(self.finite):
            broken = [name for name, value in self.sums.items() if not math.isfinite(float(value))]
            raise FlashbackError(
                f"the loss is no longer finite: {' and '.join(broken) or 'the total'} {where}, "
                f"step {int(self.finite_steps) + 1}; {self.remedy()}"
            )
        if not bool(torch.stack([parameter.isfinite().all() for parameter in self.stage.parameters()]).all()):
            raise FlashbackError(f"the weights are no longer finite {where}; {self.remedy()}")

    def remedy(self) -> str:
        return f"lower training.lr{' or host.strength' if hasattr(self.host.settings, 'strength') else ''}"

    def parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.optimiser.param_groups for parameter in group["params"]]

    def state(self) -> dict[str, Tensor]:
        optimiser = {
            f"{name.removesuffix('_buffer')}.{k}": tensor  # older checkpoints say momentum
            for k, parameter in enumerate(self.parameters())
            for name, tensor in self.optimiser.state[parameter].items()
        }
        counts = {"finite": self.finite, "finite_steps": self.finite_steps}
        return optimiser | counts | {f"sums.{name}": value for name, value in self.sums.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        for name in state:
            if name.startswith("sums."):
                self.sums[name.removeprefix("sums.")] = torch.zeros((), device=self.host.device)
        copy_tensors(self.state(), state)


def checked(terms: Any, host: str) -> Mapping[str, Tensor]:
    """Check that a host's losses are named scalars with gradients."""
    if not isinstance(terms, Mapping) or not terms:
        raise FlashbackError(
            f"the losses of {host} must be named terms, such as {{'task': loss}}, not {type(terms).__name__}"
        )
    for name, value in terms.items():
        if not isinstance(value, Tensor) or value.ndim:
            kind = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise FlashbackError(f"the loss term '{name}' of {host} must be a scalar tensor, not {kind}")
    if not any(value.requires_grad for value in terms.values()):
        raise FlashbackError(f"no loss term of {host} depends on trained parameters; is one of them detached?")
    return terms


def total_loss(terms: Mapping[str, Tensor]) -> Tensor:
    values: list[Any] = list(terms.values())
    total: Tensor = sum(values[1:], start=values[0])
    return total
