"""Prediction: what a host does with its network once it is trained."""

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashback.batches import Views
from flashback.batches.augment import as_unit
from flashback.benchmarks import Benchmark, Images, Task
from flashback.config import RunConfig
from flashback.errors import require, unknown
from flashback.nets import Output, evaluating

Classifier = Callable[[Tensor], Tensor]  # normalised images to one score per class column
RawImages = Images | Tensor | npt.NDArray[np.uint8]  # images as they are stored, uint8 [n, C, H, W]


class Predictor(nn.Module):
    """A network that classifies raw images, with parts that a method may override. `Host` adds the training."""

    scores_unseen: ClassVar[bool] = True  # whether classes have scores before they are learned, for forward transfer
    config: RunConfig
    benchmark: Benchmark
    device: torch.device
    task: Task  # the last task that was entered
    views: Views
    net: nn.Module

    # ------------------------------------------------------------ what a method may override

    def trained_net(self) -> nn.Module:
        """Return the network that a training step runs; a host may run several as one."""
        return self.net

    def predictor(self) -> nn.Module:
        """Return the network that the host predicts with."""
        return self.net

    def scores(self, x: Tensor) -> Tensor:
        """Compute the scores of the last layer, in evaluation mode.

        Args:
            x: Normalised images, [n, C, H, W].

        Returns:
            A score for every class column, [n, columns].
        """
        logits: Tensor = self.predictor()(x).logits
        return logits

    def classifiers(self) -> dict[str, Classifier]:
        """Return the ways in which this host can predict, by name; the first is the one of the method's paper.

        It is called once per evaluation, so it is the place to compute class means and the like.
        """
        return {"linear": self.scores}

    # ------------------------------------------------------------ what a user calls

    @torch.no_grad()
    def predict(self, images: RawImages, classifier: str | None = None, task: Task | int | None = None) -> Tensor:
        """Predict the class of each raw image, in evaluation mode and in batches; the host's mode is restored.

        Args:
            images: uint8 images as they are stored, [n, C, H, W]: a tensor, an array, or a data set such as task.test.
            classifier: One of `classifiers()`; None: the method's own.
            task: Predict among the classes of this task alone, new and known ones; None: among all classes learned.

        Returns:
            The class column of each image, on the CPU; column k is the class `benchmark.class_names[k]`.

        Raises:
            FlashbackError: The images, the classifier or the task do not fit this host.
        """
        columns = torch.tensor(self._columns(task), device=self.device)
        with evaluating(self), torch.compiler.set_stance("force_eager"):
            score = self._classifier(classifier)
            pieces = torch.split(self._raw(images), self.config.training.evaluation_batch)
            scores = (score(self.views.plain(piece.to(self.device))) for piece in pieces)
            return torch.cat([columns[part[:, columns].argmax(dim=1)].cpu() for part in scores])

    def features(self, images: RawImages) -> Tensor:
        """Compute the features of images before the last layer, in evaluation mode and in batches.

        Args:
            images: uint8 images as they are stored; see `predict`.

        Returns:
            The features, [n, width], on the CPU.
        """
        with torch.compiler.set_stance("force_eager"):
            return self.embed(self._raw(images), features_of, self.predictor()).cpu()

    @torch.no_grad()
    def as_module(self, classifier: str | None = None) -> nn.Module:
        """Wrap the network and a classifier in one module, from raw images to scores, for export or many batches.

        Args:
            classifier: One of `classifiers()`; None: the method's own.

        Returns:
            A module in evaluation mode that takes raw images and gives a score for every class learned. It shares the
            weights; class means and the like are computed once, now.

        Raises:
            FlashbackError: If this host has no such classifier.
        """
        with evaluating(self):
            score = self._classifier(classifier)
        return Scoring(self.predictor(), score, self.views, self.task.seen.stop).to(self.device).eval()

    # ------------------------------------------------------------ helpers

    @torch.no_grad()
    def embed(
        self,
        raw: Tensor,
        part: Callable[[Output], Tensor],
        net: nn.Module | None = None,
        view: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Run raw images through a network in evaluation mode, in large batches.

        Args:
            raw: uint8 images, [n, C, H, W].
            part: What to keep of the network's output, such as `features_of`.
            net: The network; None: the one that is trained.
            view: How images become inputs; None: normalised, without augmentation.

        Returns:
            The parts of all outputs, one row per image, on the device of the network.
        """
        net = self.trained_net() if net is None else net
        view = self.views.plain if view is None else view
        pieces = torch.split(raw, self.config.training.evaluation_batch)
        with evaluating(net):
            return torch.cat([part(net(view(piece.to(self.device)))) for piece in pieces])

    def _classifier(self, name: str | None) -> Classifier:
        classifiers = self.classifiers()
        name = next(iter(classifiers)) if name is None else name
        if name not in classifiers:
            raise unknown("classifier", name, classifiers)
        return classifiers[name]

    def _columns(self, task: Task | int | None) -> Sequence[int]:
        if task is None:
            return range(self.task.seen.stop)
        index = task.index if isinstance(task, Task) else task
        require(
            isinstance(index, int) and 0 <= index <= self.task.index,
            f"this host has not learned task {index}; give one of benchmark.tasks, or a number from 0 to "
            f"{self.task.index}",
        )
        return self.benchmark.tasks[index].columns

    def _raw(self, images: RawImages) -> Tensor:
        raw = images.x if isinstance(images, Images) else images
        shape = ", ".join(map(str, self.benchmark.image_shape))
        requirement = f"raw images are a uint8 tensor or array of shape [n, {shape}]"
        require(isinstance(raw, Tensor | np.ndarray), f"{requirement}, not {type(raw).__name__}")
        kind = str(raw.dtype).removeprefix("torch.")
        fits = kind == "uint8" and tuple(raw.shape[1:]) == self.benchmark.image_shape
        require(fits, f"{requirement}, not {kind} {list(raw.shape)}")
        return raw if isinstance(raw, Tensor) else torch.from_numpy(np.require(raw, requirements=["C", "W"]))


class Scoring(nn.Module):
    """Normalisation, a network and a classifier that uses it: from raw images to the scores of classes."""

    mean: Tensor
    std: Tensor

    def __init__(self, net: nn.Module, classifier: Classifier, views: Views, classes: int) -> None:
        super().__init__()
        self.net, self.classifier, self.views, self.classes = net, classifier, views, classes
        for name, values in (("mean", views.mean), ("std", views.std)):
            self.register_buffer(name, torch.tensor(values).view(1, -1, 1, 1))

    def forward(self, raw: Tensor) -> Tensor:
        # Not views.plain: its cached constants would be those of a trace, if an export is the first to ask for them.
        x = (as_unit(self.views.centre(raw)) - self.mean) / self.std
        return self.classifier(x)[:, : self.classes]


def features_of(output: Output) -> Tensor:
    return output.features


def logits_of(output: Output) -> Tensor:
    return output.logits


def directions(output: Output) -> Tensor:
    """Return features scaled so that the mean squared difference of two rows is 1 - cos; used as memory targets."""
    return math.sqrt(output.features.shape[1] / 2) * F.normalize(output.features)
