"""The kinds of knowledge. All have no gradients, stay in evaluation mode and report their size."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from flashback.knowledge.distances import squared_error
from flashback.memory import Memory
from flashback.nets import Backbone, Frozen, Output


class Knowledge(nn.Module):
    """What a model knew at one moment. Base class of all kinds."""

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode, whatever the mode of the model that is trained.

        Args:
            mode: Ignored.
        """
        return super().train(False)

    def nbytes(self) -> int:
        """Return the size of all tensors in bytes."""
        return bytes_of(self)


class ModelKnowledge(Knowledge):
    """A frozen copy of a whole model (FL Eq. 1 and 9). Call it with images to get the model's `Output`.

    Args:
        model: The model to copy.
        batch_statistics: Whether batch norm uses the statistics of the batch in training, in place of the stored ones,
            except in layers that the model keeps frozen. No stored statistic changes.
    """

    def __init__(self, model: nn.Module, batch_statistics: bool = False) -> None:
        super().__init__()
        self.model = Frozen(model)
        parts = list(self.model.modules()) if batch_statistics else []
        frozen = {
            part.get_submodule(name) for part in parts if isinstance(part, Backbone) for name in part.frozen_norms
        }
        self.norms = [part for part in parts if isinstance(part, _BatchNorm) and part not in frozen]
        self.answers: dict[int, tuple[Tensor, Output]] | None = None  # inside `cached_outputs`

    def forward(self, x: Tensor) -> Output:
        if self.answers is None:
            output: Output = self.model(x)
            return output
        if id(x) not in self.answers:
            self.answers[id(x)] = x, self.model(x)  # keeps x alive, so that its id is not used again
        return self.answers[id(x)][1]

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode, except for batch norm that uses the statistics of the batch.

        Args:
            mode: The mode of the model that is trained.
        """
        super().train(False)
        if self.norms:
            self.training = mode  # for `evaluating`, which restores it
        for norm in self.norms:
            norm.training, norm.track_running_stats = mode, False
        return self

    def fill(self, model: nn.Module) -> None:
        """Copy the state of a model.

        Args:
            model: A model of the same structure.
        """
        copy_state(model, self.model.module)

    @torch.no_grad()
    def follow(self, model: nn.Module, share: Tensor) -> None:
        """Move towards the state of a model of the same structure; counters are copied.

        Args:
            model: The model that learns.
            share: Its share in the result, a scalar on the device of the model.
        """
        values = model.state_dict()
        for name, tensor in self.model.module.state_dict().items():
            if tensor.is_floating_point():
                tensor.lerp_(values[name], share.to(tensor.dtype))
            else:
                tensor.copy_(values[name])


class ModuleKnowledge(Knowledge):
    """Frozen copies of some modules of a growing model (FL Eq. 8 and 13); `knowledge["name"]` is one of them.

    Args:
        modules: The modules to copy, by name.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({name: Frozen(module) for name, module in modules.items()})

    def __getitem__(self, name: str) -> nn.Module:
        return self.parts[name]

    def fill(self, modules: Mapping[str, nn.Module]) -> None:
        """Copy the states of modules.

        Args:
            modules: Modules of the same names and structures.
        """
        for name, module in modules.items():
            copy_state(module, self[name].get_submodule("module"))


class ReplayedTargets(Knowledge):
    """The outputs of one model, logits or embeddings, for all images of a memory at one moment (FL Eq. 10).

    A slot that is overwritten later holds another image: its insertion stamp differs, and its target no longer counts.
    A negative stamp marks a target whose distance counts as 0.

    Args:
        memory: The memory that the targets belong to.
        width: The columns of an output.
    """

    targets: Tensor
    stamps: Tensor

    def __init__(self, memory: Memory, width: int) -> None:
        super().__init__()
        self.register_buffer("targets", torch.zeros(len(memory.stamps), width, device=memory.stamps.device))
        self.register_buffer("stamps", torch.zeros_like(memory.stamps))

    @torch.no_grad()
    def fill(self, memory: Memory, respond: Callable[[Tensor], Tensor]) -> None:
        """Keep the outputs for all images of the memory.

        Args:
            memory: The memory that the targets belong to.
            respond: Returns the outputs, [n, width], for raw images.
        """
        self.stamps.copy_(memory.stamps)
        if memory.filled:
            self.targets[: memory.filled] = respond(memory.images[: memory.filled])

    @torch.no_grad()
    def keep_only(self, chosen: Tensor) -> None:
        """Keep the targets of the chosen slots; the distance of all others counts as 0.

        Args:
            chosen: Marks slots, from the first one on, as many as were filled.
        """
        filled = self.stamps[: len(chosen)]
        filled.copy_(torch.where(chosen, filled.abs(), -filled.abs()))

    def distance(self, responses: Tensor, slots: Tensor, memory: Memory, columns: slice = slice(None)) -> Tensor:
        """Compute the mean squared error between responses and targets (FL Eq. 21).

        Args:
            responses: The model's outputs for a batch, [B, width].
            slots: The memory slot of each image of the batch, [B]; -1 for an image that is not stored.
            memory: The memory that the slots belong to.
            columns: The columns that count.

        Returns:
            The mean over the columns, and over the images that have a target.
        """
        rows = slots.clamp(min=0)
        stamps = self.stamps[rows]
        has_target = (slots >= 0) & (stamps.abs() == memory.stamps[rows]) & (stamps != 0)
        return squared_error(responses[:, columns], self.targets[rows][:, columns], has_target, weights=stamps > 0)


@contextmanager
def cached_outputs(*bases: Knowledge | None) -> Iterator[None]:
    """Within this context, each of these models runs once per tensor of images; further calls return its output."""
    models = [base for base in bases if isinstance(base, ModelKnowledge)]
    for model in models:
        model.answers = {}
    try:
        yield
    finally:
        for model in models:
            model.answers = None


def bytes_of(module: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())


@torch.no_grad()
def copy_state(source: nn.Module, target: nn.Module) -> None:
    """Copy every tensor in place, so that addresses stay.

    Args:
        source: The module to copy from.
        target: A module of the same structure.
    """
    values = source.state_dict()
    for name, tensor in target.state_dict().items():
        tensor.copy_(values[name])


@dataclass(frozen=True)
class Support:
    """The columns, the samples and the weight of a distance.

    Theorems 1 to 4 hold as printed where stability and plasticity have the same support; elsewhere column by column.

    Attributes:
        columns: The columns of the outputs that the distance looks at; all of them by default.
        samples: "all" samples of the batch, or only those from the "memory".
        weight: The factor of the distance in the loss.
        images: The weight of each image of the batch, [B], by which a distance multiplies before it takes the mean over
            all images; None: 1 for all. Only set for hosts with `supports_image_weights`.
    """

    columns: slice = field(default_factory=lambda: slice(None))
    samples: Literal["all", "memory"] = "all"
    weight: float = 1.0
    images: Tensor | None = None
