"""Gradients of single images: how far each parameter moves a number that a network gives for each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from flashback.knowledge.kinds import flat
from flashback.nets import evaluating

Weights = dict[str, Tensor]
Score = Callable[[Weights, Tensor, Tensor], Tensor]  # of one image and one column, at given weights

GRADIENT_BYTES = {"cuda": 2 << 30}  # what the gradients of one chunk of images may take
ON_OTHERS = 1 << 29
LARGEST_CHUNK = 512  # bounds the activations of networks with few parameters


@torch.no_grad()
def mean_over_images(
    net: nn.Module,
    images: Tensor,
    labels: Tensor,
    view: Callable[[Tensor], Tensor],
    score: Score,
    size: Callable[[Tensor], Tensor],
    passes: Callable[[Tensor, Tensor], Iterable[Tensor]] = lambda x, labels: [labels],
) -> Tensor:
    """Mean over images of the size of their gradients, as a flat vector in the order of the trained parameters.

    `passes` gives the columns to differentiate for the images of a chunk, once or several times; those are summed.
    """
    weights = {name: weight.detach() for name, weight in net.named_parameters() if weight.requires_grad}
    sums = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    gradients = vmap(grad(score), in_dims=(None, 0, 0))
    device, chunk = next(iter(weights.values())).device, chunk_size(list(weights.values()))
    # In evaluation mode batch norm couples no images and keeps its statistics; vmap cannot enter compiled modules.
    with evaluating(net), torch.compiler.set_stance("force_eager"):
        for raw, y in zip(torch.split(images, chunk), torch.split(labels, chunk), strict=True):
            x = view(raw.to(device))
            for columns in passes(x, y.to(device)):
                for name, gradient in gradients(weights, x, columns).items():
                    sums[name] += size(gradient).sum(dim=0)
    return flat(sums.values()) / len(labels)


def chunk_size(weights: list[Tensor]) -> int:
    """How many images may hold their gradients at the same time."""
    one_image = sum(weight.numel() * weight.element_size() for weight in weights)
    return max(1, min(LARGEST_CHUNK, GRADIENT_BYTES.get(weights[0].device.type, ON_OTHERS) // one_image))
