"""A trained model that can be used: where it is loaded from, its classes and its images."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from flashback.benchmarks.image_lists import ListedImage, read_batches
from flashback.errors import FlashbackError, printable
from flashback.hosts.base import Host
from flashback.hosts.external import HostFiles, find_hosts
from flashback.models.versions import ModelFolder
from flashback.records import is_begun
from flashback.training import load_trained


@dataclass(frozen=True, eq=False)
class Model:
    """A trained host and what it needs to work on image files.

    Attributes:
        host: The trained host, in evaluation mode.
        class_names: The classes learned, in the order of the host's columns.
        image_shape: Channels, height and width of the images that the host takes.
        names_by_label: The class of each number, for data that number their classes; empty if numbers are names too.
    """

    host: Host
    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]
    names_by_label: tuple[str, ...]

    @classmethod
    def of(cls, host: Host) -> Model:
        """The model of a host that has learned some or all tasks of its benchmark."""
        benchmark = host.benchmark
        learned = tuple(map(printable, benchmark.class_names[: host.task.seen.stop]))
        by_label = () if all(map(is_number, benchmark.class_names)) else tuple(benchmark.names_by_label)
        return cls(host, learned, benchmark.image_shape, by_label)

    def probabilities(self) -> nn.Module:
        """A module from raw images, uint8 [n, C, H, W], to the probabilities of the classes learned, float32."""
        return Probabilities(self.host.as_module()).eval()

    def classify(
        self, images: Sequence[ListedImage], skipped: dict[str, str], progress: bool = False
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Read and classify images in batches.

        Args:
            images: What `list_images` returned.
            skipped: Gets the reason for each image that cannot be read, by name.
            progress: Show a progress bar, if there is a terminal.

        Yields:
            The positions of the images that could be read, and the scores of all classes, on the CPU.

        Raises:
            FlashbackError: If not a single image can be read.
        """
        from flashback.progress_bar import TerminalProgress

        module = self.host.as_module()
        batch = self.host.config.training.evaluation_batch
        with TerminalProgress(shown=progress) as bar:
            line = bar.add_task("images", total=len(images))
            batches = read_batches(images, self.image_shape, batch, skipped, lambda count: bar.advance(line, count))
            for rows, raw in batches:
                with torch.no_grad(), torch.compiler.set_stance("force_eager"):
                    scores = module(raw.to(self.host.device)).cpu()
                yield rows, scores
        if len(skipped) == len(images):
            raise FlashbackError(f"none of the {len(images)} images can be read: {next(iter(skipped.values()))}")


class Probabilities(nn.Module):
    """The softmax of the scores of a module: of logits, or of negative squared distances to class means."""

    def __init__(self, scoring: nn.Module) -> None:
        super().__init__()
        self.scoring = scoring

    def forward(self, raw: Tensor) -> Tensor:
        return to_probabilities(self.scoring(raw))


def to_probabilities(scores: Tensor) -> Tensor:
    return scores.softmax(dim=1).float()


def is_number(name: str) -> bool:
    """Whether a class name is a number without leading zeros, as a label of a data set is written."""
    return re.fullmatch("0|[1-9][0-9]*", name) is not None


def load_model(path: str | Path, device: str | torch.device = "auto", *, host_file: HostFiles = None) -> Model:
    """Load a trained model, whatever kind of folder holds it.

    Args:
        path: The folder of a finished run, or of a model that keeps learning.
        device: "cpu", "cuda", or "auto" for a GPU if there is one.
        host_file: Python files that register hosts or nets of your own.

    Returns:
        The model.

    Raises:
        FlashbackError: If the folder holds no trained model.
    """
    folder = Path(path).expanduser()
    if is_begun(folder):
        return Model.of(load_trained(folder, device=device, host_file=host_file))
    if ModelFolder(folder).exists:
        from flashback.models.learner import Learner

        find_hosts(host_file)
        return Learner(folder, device).load()
    raise FlashbackError(f"{printable(folder)} holds no model; give that of `flashback learn` or a finished run")


def as_model(model: Model | str | Path) -> Model:
    return model if isinstance(model, Model) else load_model(model)
