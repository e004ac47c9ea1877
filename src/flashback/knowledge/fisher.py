"""The diagonal of the Fisher information: how much each parameter matters for what a network says (Eq. 4 and 11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from flashback.knowledge.gradients import Score, Weights, mean_over_images

Estimator = Literal["empirical", "mammoth", "exact"]


def fisher_diagonal(
    net: nn.Module,
    images: Tensor,
    labels: Tensor,
    view: Callable[[Tensor], Tensor],
    estimator: Estimator,
    columns: slice = slice(None),
) -> Tensor:
    """Mean over images of squared gradients, one per image, as a flat vector in the order of the trained parameters.

    With p the softmax over all columns, or over those that hold the labels, an image adds the square of
      empirical: grad log p(y) at its label y, the paper's equation;
      mammoth: the same, times p(y), so that images the network gets wrong do not dominate;
      exact: grad log p(c), times p(c), summed over these columns c, at the cost of a pass for each.
    """

    def passes(x: Tensor, labels: Tensor) -> list[Tensor]:
        """The column to differentiate for every image, for each pass over the images."""
        if estimator != "exact":
            return [labels]
        return [torch.full_like(labels, column) for column in range(net(x[:1]).logits[:, columns].shape[1])]

    own_labels = labels - (columns.start or 0)
    return mean_over_images(net, images, own_labels, view, score_of(net, estimator, columns), torch.square_, passes)


def score_of(net: nn.Module, estimator: Estimator, columns: slice) -> Score:
    """The number whose gradient is squared, for one image and one of the columns."""

    def score(weights: Weights, x: Tensor, column: Tensor) -> Tensor:
        every_log_p = F.log_softmax(functional_call(net, weights, (x[None],)).logits[0, columns], dim=0)
        # A masked sum, since the gradient of an indexed read is not deterministic on every device.
        log_p = (every_log_p * (torch.arange(len(every_log_p), device=x.device) == column)).sum()
        # The gradient of 2 sqrt(p) is sqrt(p) grad log p: its square carries the weight p.
        return log_p if estimator == "empirical" else 2.0 * (0.5 * log_p).exp()

    return score
