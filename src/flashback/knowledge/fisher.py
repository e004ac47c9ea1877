"""The diagonal of the Fisher information: how much each parameter matters for what a network says (Eq. 4 and 11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from flashback.knowledge.kinds import flat
from flashback.nets import evaluating

Estimator = Literal["empirical", "mammoth", "exact"]
GRADIENT_BYTES = {"cuda": 2 << 30}  # what the gradients of one chunk of images may take
ON_OTHERS = 1 << 29
LARGEST_CHUNK = 512  # bounds the activations of networks with few parameters


@torch.no_grad()
def fisher_diagonal(
    net: nn.Module, images: Tensor, labels: Tensor, view: Callable[[Tensor], Tensor], estimator: Estimator
) -> Tensor:
    """Mean over images of squared gradients, one per image, as a flat vector in the order of the trained parameters.

    With p the softmax over all columns, an image adds the square of
      empirical: grad log p(y) at its label y, the paper's equation;
      mammoth: the same, times p(y), so that images the network gets wrong do not dominate;
      exact: grad log p(c), times p(c), summed over all columns c, at the cost of a pass for each.
    """
    weights = {name: weight.detach() for name, weight in net.named_parameters() if weight.requires_grad}
    squares = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    gradients = vmap(grad(score_of(net, estimator)), in_dims=(None, 0, 0))
    device, chunk = next(iter(weights.values())).device, chunk_size(list(weights.values()))
    # In evaluation mode batch norm couples no images and keeps its statistics; vmap cannot enter compiled modules.
    with evaluating(net), torch.compiler.set_stance("force_eager"):
        for raw, y in zip(torch.split(images, chunk), torch.split(labels, chunk), strict=True):
            x = view(raw.to(device))
            for columns in passes(net, x, y.to(device), estimator):
                for name, gradient in gradients(weights, x, columns).items():
                    squares[name] += gradient.square_().sum(dim=0)
    return flat(squares.values()) / len(labels)


def score_of(net: nn.Module, estimator: Estimator) -> Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]:
    """The number whose gradient is squared, for one image and one column."""

    def score(weights: dict[str, Tensor], x: Tensor, column: Tensor) -> Tensor:
        every_log_p = F.log_softmax(functional_call(net, weights, (x[None],)).logits[0], dim=0)
        # A masked sum, since the gradient of an indexed read is not deterministic on every device.
        log_p = (every_log_p * (torch.arange(len(every_log_p), device=x.device) == column)).sum()
        # The gradient of 2 sqrt(p) is sqrt(p) grad log p: its square carries the weight p.
        return log_p if estimator == "empirical" else 2.0 * (0.5 * log_p).exp()

    return score


def passes(net: nn.Module, x: Tensor, labels: Tensor, estimator: Estimator) -> list[Tensor]:
    """The column to differentiate for every image, for each pass over the images."""
    if estimator != "exact":
        return [labels]
    return [torch.full_like(labels, column) for column in range(net(x[:1]).logits.shape[1])]


def chunk_size(weights: list[Tensor]) -> int:
    """How many images may hold their gradients at the same time."""
    one_image = sum(weight.numel() * weight.element_size() for weight in weights)
    return max(1, min(LARGEST_CHUNK, GRADIENT_BYTES.get(weights[0].device.type, ON_OTHERS) // one_image))
