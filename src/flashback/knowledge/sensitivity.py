"""The sensitivity of a network: how much each parameter moves its answers, whatever the labels (MAS, Eqs. 2 and 3)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from flashback.knowledge.gradients import Weights, mean_over_images


def output_sensitivity(net: nn.Module, images: Tensor, view: Callable[[Tensor], Tensor], columns: slice) -> Tensor:
    """Mean over images of |grad ||f(x)||^2|, f the logits of some columns, flat as the trained parameters are."""

    def squared_norm(weights: Weights, x: Tensor, _: Tensor) -> Tensor:
        answer: Tensor = functional_call(net, weights, (x[None],)).logits[0, columns]
        return answer.square().sum()

    unused = torch.zeros(len(images), dtype=torch.long)  # no labels
    return mean_over_images(net, images, unused, view, squared_norm, torch.abs_)
