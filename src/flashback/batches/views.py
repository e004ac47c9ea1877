"""Views: the normalised, possibly augmented images that a network sees."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Generator, Tensor

from flashback.batches import augment
from flashback.batches.autoaugment import CIFAR10_POLICY, IMAGENET_POLICY, auto_augment
from flashback.benchmarks.tasks import SMALL_SIDE
from flashback.errors import FlashbackError, unknown

CUTOUT_SIZE = 16
RATIO = (3 / 4, 4 / 3)
Step = Callable[["Views", Tensor, Generator], Tensor]

# The augmentation steps, in the order in which they are applied.
STEPS: dict[str, Step] = {
    "rrcrop": lambda views, x, generator: augment.random_resized_crop(x, views.shape(x), (0.08, 1.0), RATIO, generator),
    "crop": lambda views, x, generator: augment.random_crop(x, views.crop_padding(x), generator),
    "flip": lambda _, x, generator: augment.random_flip(x, generator),
    "jitter": lambda _, x, generator: augment.brightness_jitter(x, generator),
    "autoaugment": lambda _, x, generator: auto_augment(x, CIFAR10_POLICY, generator),
    "autoaugment-imagenet": lambda _, x, generator: auto_augment(x, IMAGENET_POLICY, generator),
    "cutout": lambda _, x, generator: augment.cutout(x, CUTOUT_SIZE, generator),
}


def normalise(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Convert uint8 images, or float images in [0, 1], to float32 with zero mean and unit deviation."""
    if not x.shape[1] == len(mean) == len(std):
        raise FlashbackError(
            f"images with {x.shape[1]} channels need as many means and deviations, not {len(mean)} and {len(std)}"
        )
    shift, scale = (augment.constant(tuple(values), x.device).view(1, -1, 1, 1) for values in (mean, std))
    return (augment.as_unit(x) - shift) / scale


@dataclass(frozen=True)
class Views:
    """The training and test views of raw images, uint8 [B, C, H, W].

    Attributes:
        mean: Mean of each channel.
        std: Standard deviation of each channel.
        recipe: Names of augmentation steps; they are applied in a fixed order.
        size: Side of the square that the network sees; None: that of the stored images.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    recipe: tuple[str, ...] = ("crop", "flip")
    size: int | None = None

    def __post_init__(self) -> None:
        for name in self.recipe:
            if name not in STEPS:
                raise unknown("augmentation", name, STEPS)

    def shape(self, x: Tensor) -> tuple[int, int]:
        """Height and width of the views of such images."""
        return (self.size, self.size) if self.size else (x.shape[-2], x.shape[-1])

    def crop_padding(self, x: Tensor) -> int:
        """Return the padding of `crop`: 4 pixels for small images, as for CIFAR, otherwise an eighth of the side."""
        return 4 if max(self.shape(x)) <= SMALL_SIDE else max(4, min(self.shape(x)) // 8)

    def plain(self, raw: Tensor) -> Tensor:
        """Make the test view: the centre, without augmentation.

        Args:
            raw: uint8 images, [B, C, H, W].
        """
        return normalise(self.centre(raw), self.mean, self.std)

    def weak(self, raw: Tensor, generator: Generator) -> Tensor:
        """Make the training view: the steps of the recipe.

        Args:
            raw: uint8 images, [B, C, H, W].
            generator: The source of randomness, on the device of the images.
        """
        x = raw if "rrcrop" in self.recipe else self.centre(raw)
        for name, step in STEPS.items():
            if name in self.recipe:
                x = step(self, x, generator)
        return normalise(x, self.mean, self.std)

    def centre(self, raw: Tensor) -> Tensor:
        """The square in the middle that the network sees."""
        return raw if self.size is None else augment.centre_crop(raw, self.size)
