"""The parts of every network: a backbone that computes features and a head that turns them into logits."""

import copy
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from flashback.errors import FlashbackError
from flashback.nets.splitting import split_pass
from flashback.registry import Registry

M = TypeVar("M", bound=nn.Module)
Shape = tuple[int, int, int]  # channels, height and width of one image


@dataclass
class Output:
    """The result of one forward pass. The network of a host may extend it with more fields.

    Attributes:
        features: float32 [B, width].
        logits: float32 [B, classes].
    """

    features: Tensor
    logits: Tensor

    def split(self, sizes: list[int]) -> list[Self]:
        values = (getattr(self, field.name) for field in fields(self))
        columns = [torch.split(value, sizes) if isinstance(value, Tensor) else [value] * len(sizes) for value in values]
        return [type(self)(*row) for row in zip(*columns, strict=True)]


class Backbone(nn.Module):
    """Base class of feature extractors: images [B, C, H, W] in, features [B, width] out.

    To use a network of your own, inherit from this class, set `width`, and register a function that builds it::

        @fb.NETS.register("mynet")
        def mynet(image_shape):  # (channels, height, width)
            return MyNet(image_shape[0])

    A function with a second parameter `width: float = 1.0` can also build the network with `width` times its usual
    channels. Parameters that do not require a gradient after construction stay frozen during the whole run.

    Attributes:
        width: The number of features.
        supports_joint_forward: Whether several batches may go through in one pass: True if nothing but
            `flashback.nets.BatchNorm2d` makes the features of an image depend on the rest of its batch.
        normalisation: Mean and standard deviation per channel that pretrained weights expect; None: the benchmark's.
    """

    shared_by_tasks = True
    width: int
    supports_joint_forward: bool = False
    normalisation: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    frozen_parameters: frozenset[str] = frozenset()
    frozen_norms: frozenset[str] = frozenset()  # norm layers whose running statistics are frozen too

    def __init_subclass__(cls, **options: Any) -> None:
        """Give a class that defines its maps, but neither defines nor inherits `forward`, their mean as features."""
        super().__init_subclass__(**options)
        if cls.forward is nn.Module.forward and gives_maps(cls):
            cls.forward = mean_of_last_maps

    def __call__(self, x: Tensor) -> Any:
        """Run images through the network; on several devices each rank runs a part of them."""
        return split_pass(super().__call__, x)

    def keep_frozen(self) -> Self:
        """Remember which parameters are frozen now, so that `set_trainable` never unfreezes them."""
        parameters = dict(self.named_parameters())
        frozen = frozenset(name for name, parameter in parameters.items() if not parameter.requires_grad)
        norms = [name for name, module in self.named_modules() if isinstance(module, _NormBase)] if frozen else []
        self.frozen_parameters = frozen
        self.frozen_norms = frozenset(name for name in norms if frozen.issuperset(parameters_around(name, parameters)))
        self.train(self.training)
        return self

    def freeze(self) -> Self:
        """Freeze all parameters and the statistics of norm layers, for good."""
        return self.requires_grad_(False).keep_frozen()

    def train(self, mode: bool = True) -> Self:
        """Set training mode; frozen norm layers stay in evaluation mode.

        Args:
            mode: Whether to train.
        """
        super().train(mode)
        for name in self.frozen_norms:
            self.get_submodule(name).eval()
        return self

    def set_trainable(self, trainable: bool = True) -> Self:
        """Make all parameters trainable or none, except those that were built frozen.

        Args:
            trainable: Whether they require gradients.
        """
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(trainable and name not in self.frozen_parameters)
        return self

    @torch.no_grad()
    def copy_frozen(self, other: Self) -> Self:
        """Copy the frozen parameters and statistics, which may be random, from another backbone.

        Args:
            other: A backbone of the same kind.
        """
        source = other.state_dict()
        for name, tensor in self.state_dict().items():
            if name in self.frozen_parameters or name.rpartition(".")[0] in self.frozen_norms:
                tensor.copy_(source[name])
        return self

    def stage_maps(self, x: Tensor) -> list[Tensor]:
        """Compute the feature maps of each stage; the features are the spatial mean of the last ones.

        PODNet and DyTox need them.

        Args:
            x: Normalised images, [B, C, H, W].

        Returns:
            The maps [B, C, H, W] of each stage, first to last.
        """
        maps = [x]
        for level in self.levels():
            maps.append(level(maps[-1]))
        return maps[1:]

    def levels(self) -> list[nn.Module]:
        """Return the modules that, applied one after another, give `stage_maps`. P&C and AANets need them.

        Raises:
            FlashbackError: If the class does not define it.
        """
        raise FlashbackError(
            f"this host works between the levels of a network, but {type(self).__name__} does not define them; give "
            "its class a method levels() that returns the modules whose outputs, one after another, are its "
            "stage_maps()"
        )

    def last_stage_layers(self) -> dict[str, nn.Module]:
        """Return the layers that `flashback cka` compares, by name, first to last.

        Raises:
            FlashbackError: If the class does not define it.
        """
        raise FlashbackError(
            f"CKA compares layers, but the network {type(self).__name__} does not name any; give its class a method "
            "last_stage_layers() that returns them by name"
        )


NETS: Registry[Callable[..., Backbone]] = Registry("net")  # functions from the shape of an image


def scaled(channels: Iterable[int], width: float) -> tuple[int, ...]:
    return tuple(max(1, round(width * usual)) for usual in channels)


def mean_of_last_maps(backbone: Backbone, x: Tensor) -> Tensor:
    return backbone.stage_maps(x)[-1].mean((2, 3))


def gives_maps(kind: type[Backbone]) -> bool:
    """Return whether a class of networks defines `stage_maps`, itself or by its `levels`."""
    return kind.stage_maps is not Backbone.stage_maps or kind.levels is not Backbone.levels


def parameters_around(module: str, parameters: Collection[str]) -> set[str]:
    """Names of a module's parameters; if it has none, those of the innermost enclosing module that has some."""
    inside = {name for name in parameters if not module or name.startswith(f"{module}.")}
    return inside if inside or not module else parameters_around(module.rpartition(".")[0], parameters)


def full_precision(x: Tensor) -> torch.autocast:
    """Disable autocast on the device of a tensor."""
    return torch.autocast(x.device.type, enabled=False)


class Net(nn.Module):
    """A backbone and a head. Autocast applies to the backbone only: features and logits are float32.

    Attributes:
        features_from_backbone: Whether nothing but the backbone decides the features.
    """

    features_from_backbone: ClassVar[bool] = True

    def __init__(self, backbone: Backbone, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, x: Tensor) -> Output:
        features = self.backbone(x).float()
        with full_precision(features):
            return Output(features, self.head(features))

    @property
    def feature_width(self) -> int:
        """The number of features of an image."""
        return self.backbone.width

    def grow(self, classes: int) -> None:
        """Widen the head; the rows of old classes stay.

        Args:
            classes: The total number of classes.
        """
        assert isinstance(self.head, nn.Linear)
        widen_linear(self.head, classes)


@torch.no_grad()
def widen_linear(layer: nn.Linear, rows: int) -> None:
    """Add rows to a linear layer, with the default initialisation of PyTorch."""
    added = nn.Linear(layer.in_features, rows - layer.out_features, layer.bias is not None)
    for name, more in added.named_parameters():
        old = layer.get_parameter(name)
        layer.register_parameter(name, nn.Parameter(torch.cat([old, more.to(old)]), old.requires_grad))
    layer.out_features = rows


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module in evaluation mode inside the context, and restore its mode afterwards.

    Args:
        module: A network or a host.
    """
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


class Frozen(nn.Module, Generic[M]):
    """A copy of a module as it is now, without gradients and always in evaluation mode."""

    def __init__(self, module: M) -> None:
        super().__init__()
        self.module: M = copy.deepcopy(module)
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> Self:
        return super().train(False)

    @torch.no_grad()
    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)
