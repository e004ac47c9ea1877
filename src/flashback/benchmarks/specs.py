"""The registered benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from flashback.registry import Registry

if TYPE_CHECKING:
    from flashback.benchmarks.raw_data import RawDataset


def reader(module: str, function: str) -> Callable[[Path], RawDataset]:
    """A function that is imported when it is called: a list of the benchmarks needs no torch."""

    def read(path: Path) -> RawDataset:
        raw: RawDataset = getattr(import_module(f"flashback.benchmarks.{module}"), function)(path)
        return raw

    return read


@dataclass(frozen=True)
class Dataset:
    """A dataset as known before it is read, and where its files are."""

    name: str
    classes: int
    image: tuple[int, int, int]  # C, H, W
    mean: tuple[float, ...]
    std: tuple[float, ...]
    files: tuple[str, ...]  # possible paths of the official file or folder in the data folder
    read: Callable[[Path], RawDataset]
    class_names: tuple[str, ...] = ()  # by label; empty: those in the files
    url: str | None = None
    md5: str | None = None  # of the official file
    checksum: str | None = None  # of the arrays, for data shipped with the package


@dataclass(frozen=True)
class Spec:
    """A benchmark: a dataset, the number of classes of each task, and the class order."""

    name: str
    dataset: Dataset
    sizes: tuple[int, ...]
    order: str = "identity"


EMBEDDED = Path(__file__).parent / "data"

FASHION_MINI = Dataset(
    "fashion_mini", 10, (1, 28, 28), (0.2860,), (0.3530,), (str(EMBEDDED / "fashion_mini.npz"),),
    reader("arrays", "read_npz"),
    class_names=("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    checksum="39336b5fd30685bd1ea9ab14094a791ac9b2573730f8343b2e819d1f06c42209",
)  # fmt: skip

CIFAR10 = Dataset(
    "cifar10", 10, (3, 32, 32), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2615),
    ("cifar-10-binary.tar.gz",), reader("arrays", "read_cifar10"),
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
)  # fmt: skip

CIFAR100_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

CIFAR100 = Dataset(
    "cifar100", 100, (3, 32, 32), (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761),
    ("cifar-100-binary.tar.gz",), reader("arrays", "read_cifar100"),
    class_names=tuple(CIFAR100_NAMES.split()),
    url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    md5="03b5dce01913d631647c71ecec9e9cb8",
)  # fmt: skip

TINYIMAGENET = Dataset(
    "tinyimagenet", 200, (3, 64, 64), (0.4802, 0.4480, 0.3975), (0.2770, 0.2691, 0.2821),
    ("tiny-imagenet-200.zip",), reader("folders", "read_tinyimagenet"),
    url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    md5="90528d7ca1a48142e341f4ef8d21d0de",
)  # fmt: skip

IMAGENET100 = Dataset(
    "imagenet100", 100, (3, 256, 256), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225),
    ("imagenet/train", "imagenet100/train", "train"), reader("folders", "read_imagenet100"),
)  # fmt: skip

BENCHMARKS: Registry[Spec] = Registry("benchmark")

# B0 tasks are all equal; B50 learns half of the classes first. iCaRL's successors report on the order of seed 1993.
for spec in (
    Spec("split-fashion-mini", FASHION_MINI, (2,) * 5),
    Spec("split-cifar10", CIFAR10, (2,) * 5),
    Spec("split-cifar100", CIFAR100, (10,) * 10),
    Spec("split-tinyimagenet", TINYIMAGENET, (20,) * 10),
    Spec("cifar100-b0-10", CIFAR100, (10,) * 10, "1993"),
    Spec("cifar100-b50-10", CIFAR100, (50, *(10,) * 5), "1993"),
    Spec("cifar100-b50-5", CIFAR100, (50, *(5,) * 10), "1993"),
    Spec("cifar100-b50-2", CIFAR100, (50, *(2,) * 25), "1993"),
    Spec("imagenet100-b0-10", IMAGENET100, (10,) * 10, "1993"),
    Spec("imagenet100-b50-10", IMAGENET100, (50, *(10,) * 5), "1993"),
):
    BENCHMARKS.register(spec.name)(spec)


def canonical_name(name: str) -> str:
    """The name of a benchmark without folders: a file of the user has one name wherever it is stored."""
    return name if name in BENCHMARKS else Path(name).name or name


def describe_benchmarks() -> list[dict[str, str | int]]:
    """List all benchmarks: name, dataset, tasks, classes, sizes such as `50 + 5x10`, image size, default order."""
    return [_describe(BENCHMARKS[name]) for name in BENCHMARKS]


def _describe(spec: Spec) -> dict[str, str | int]:
    runs = [(size, len(list(run))) for size, run in groupby(spec.sizes)]
    return {
        "name": spec.name,
        "dataset": spec.dataset.name,
        "tasks": len(spec.sizes),
        "classes": spec.dataset.classes,
        "sizes": " + ".join(f"{count}x{size}" if count > 1 else str(size) for size, count in runs),
        "image": "x".join(str(length) for length in (*spec.dataset.image[1:], spec.dataset.image[0])),
        "order": spec.order,
    }
