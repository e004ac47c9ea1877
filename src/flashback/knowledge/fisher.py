"""The diagonal of the Fisher information: how much each parameter matters for what a network says (Eq. 4 and 11)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from flashback.knowledge.kinds import flat

Estimator = Literal["empirical", "mammoth", "exact"]
GRADIENT_BYTES = {"cuda": 4 << 30, "cpu": 1 << 29}  # what the gradients of one chunk of images may take
LARGEST_CHUNK = 512  # bounds the activations of small networks


def fisher_diagonal(
    net: nn.Module, images: Tensor, labels: Tensor, view: Callable[[Tensor], Tensor], estimator: Estimator
) -> Tensor:
    """Mean over images of squared per-image gradients, one flat vector in the order of the trained parameters.

    The network stands in evaluation mode: batch norm then couples no images, and its statistics stay as they are.
    With p the softmax over all columns, the squares are those of
      empirical: grad log p(y) at the true label y;
      mammoth:   the same, weighted by p(y), so that images the network gets wrong do not dominate;
      exact:     grad log p(c) for every column c, weighted by p(c): the expectation over the network's own answers, at
                 the cost of one pass per column.
    """
    parameters = {name: weight.detach() for name, weight in net.named_parameters() if weight.requires_grad}
    device = next(iter(parameters.values())).device

    def score(weights: dict[str, Tensor], x: Tensor, target: Tensor) -> Tensor:
        log_p = (F.log_softmax(functional_call(net, weights, (x[None],)).logits[0], dim=0) * target).sum()
        # sqrt(p) grad log p is the gradient of 2 sqrt(p): its square carries the weight p.
        return log_p if estimator == "empirical" else 2.0 * torch.exp(0.5 * log_p)

    gradients = vmap(grad(score), in_dims=(None, 0, 0))
    sums = {name: torch.zeros_like(weight) for name, weight in parameters.items()}
    chunk = chunk_size(parameters.values())
    training = net.training
    net.eval()
    for raw, y in zip(images.split(chunk), labels.split(chunk), strict=True):
        x = view(raw.to(device))
        for target in targets(net, x, y.to(device), estimator):
            for name, gradient in gradients(parameters, x, target).items():
                sums[name] += gradient.square_().sum(dim=0)
    net.train(training)
    return flat(sums.values()) / len(labels)


def targets(columns: int, labels: Tensor, estimator: Estimator) -> Iterator[Tensor]:
    """One-hot rows: the columns whose log-probability is differentiated, one tensor for each pass over the images."""
    if estimator == "exact":
        for column in range(columns):
            yield F.one_hot(torch.full_like(labels, column), columns)
    else:
        yield F.one_hot(labels, columns)
