"""Distances between the outputs of a model and what a knowledge base holds. Means over samples and columns.

`weights` [B] scales the distance of each image. The mean is over all images, so a weight of 0 removes an image and
leaves the pull of the others unchanged.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def soft_binary_cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Binary cross-entropy to soft targets; its gradient at a logit is sigmoid(logit) - target.

    Args:
        logits: The model's outputs, [B, width].
        targets: Probabilities in [0, 1], [B, width].
        weights: The weight of each image, [B]; None: 1.

    Returns:
        The mean over images and columns.
    """
    return F.binary_cross_entropy_with_logits(logits, targets, None if weights is None else weights[:, None])


def soft_cross_entropy(
    student: Tensor, teacher: Tensor, temperature: float = 1.0, weights: Tensor | None = None
) -> Tensor:
    """Cross-entropy from the teacher's softened softmax to the student's (FL Eq. 18 and 23), without a factor T^2.

    The paper calls it a KL divergence; the two differ by the teacher's entropy, which has no gradient.

    Args:
        student: Logits of the model, [B, width].
        teacher: Logits of the knowledge, [B, width].
        temperature: T, by which both are divided.
        weights: The weight of each image, [B]; None: 1.

    Returns:
        The mean over images.
    """
    target = F.softmax(teacher / temperature, dim=1)
    return weighted_mean(-(target * F.log_softmax(student / temperature, dim=1)).sum(dim=1), weights)


def cosine_distance(features: Tensor, anchors: Tensor, weights: Tensor | None = None) -> Tensor:
    """1 - cos, which for unit vectors is half their squared distance (the paper's appendix on the general form).

    Args:
        features: The model's features, [B, width].
        anchors: The features they are pulled towards, [B, width].
        weights: The weight of each image, [B]; None: 1.

    Returns:
        The mean over images.
    """
    return weighted_mean(1.0 - F.cosine_similarity(features, anchors, dim=1), weights)


def pod_spatial(maps: Sequence[Tensor], anchors: Sequence[Tensor], weights: Tensor | None = None) -> Tensor:
    """Mean over stages of the Euclidean distance between the unit profiles of maps (PODNet, Section 3.1)."""
    pairs = zip(maps, anchors, strict=True)
    distances = [torch.linalg.vector_norm(profile(a) - profile(b), dim=1) for a, b in pairs]
    return torch.stack([weighted_mean(stage, weights) for stage in distances]).mean()


def profile(maps: Tensor) -> Tensor:
    """Squared maps [B, C, H, W] summed along the width and along the height, both as one vector of unit length."""
    energy = maps.float().square()
    return F.normalize(torch.cat([energy.sum(dim=3).flatten(1), energy.sum(dim=2).flatten(1)], dim=1))


def squared_error(
    responses: Tensor, targets: Tensor, counted: Tensor | None = None, weights: Tensor | None = None
) -> Tensor:
    """Mean squared error (FL Eq. 16 and 21 up to a factor).

    Args:
        responses: The model's outputs, [B, width].
        targets: What they are compared with, [B, width].
        counted: Marks the samples that have a target, [B]; None: all of them.
        weights: The weight of each sample, [B]; None: 1.

    Returns:
        The mean over columns and counted samples; zero if none counts.
    """
    per_sample = (responses - targets).square().mean(dim=1)
    if counted is None:
        return weighted_mean(per_sample, weights)
    return masked_mean(per_sample if weights is None else per_sample * weights, counted)


def weighted_mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """Mean of the weighted values over all of them, whatever the sum of the weights is; None: each weighs 1."""
    return values.mean() if weights is None else (values * weights).mean()


def masked_mean(values: Tensor, counted: Tensor) -> Tensor:
    """Mean over those that count, without selecting them: the shapes of a step are fixed. Zero if none does."""
    mean: Tensor = (values * counted).sum() / counted.sum().clamp(min=1)
    return mean
