"""Passes through a backbone that the ranks of a run share. A run on one device does not use this module.

All ranks hold the same batch. In a pass, rank r of n runs images r, r + n, r + 2n, ... and then all ranks get the
features of all images. So what a host computes from features is the same on every rank, and is that of one device.

One factor makes the gradients correct. On every rank the loss L is that of the whole batch. A parameter affects it
through the features of each image, and directly, as in a head or in a penalty. A rank has the whole direct part, but
only the features of its images. The backward pass of `AllGather` multiplies their gradients by n. So the mean over
ranks, which `flashback.ranks.average` computes once in a step, is

    1/n sum_r (n dL/dtheta through the images of r + dL/dtheta directly) = dL/dtheta.

Batch norm normalises with the statistics of the whole batch, and dropout draws for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from flashback import ranks
from flashback.errors import FlashbackError

RANDOM = (  # functions that would draw only for the images of one rank
    *(torch.bernoulli, torch.rand, torch.rand_like, torch.randn, torch.randn_like),
    *(torch.Tensor.bernoulli_, torch.Tensor.normal_, torch.Tensor.uniform_),
)
RANDOM_IN_TRAINING = (
    F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, F.rrelu,
)  # fmt: skip

_whole: int | None = None  # images of the batch that is being divided; 0 where passes must not be divided


def split_pass(run: Callable[[Tensor], Any], x: Tensor) -> Any:
    """Run a function on images, each rank on a part of them, and return the outputs for all images.

    Args:
        run: Returns a tensor, or several, with a row for each image.
        x: The images, the same on all ranks. They are not divided if there are fewer images than ranks.
    """
    if ranks.world_size() == 1 or _whole is not None or len(x) < ranks.world_size():
        return run(x)
    with within_batch_of(len(x)), SplitPass():
        outputs = run(ShardRows.apply(x))  # type: ignore[no-untyped-call]
    if isinstance(outputs, Tensor):
        return AllGather.apply(outputs, len(x))  # type: ignore[no-untyped-call]
    return [AllGather.apply(output, len(x)) for output in outputs]  # type: ignore[no-untyped-call]


def unsplit_passes() -> Any:
    """Inside this context every rank runs all images, for code that reads the inside of a network."""
    return within_batch_of(0)


@contextmanager
def within_batch_of(images: int) -> Iterator[None]:
    global _whole
    before, _whole = _whole, images
    try:
        yield
    finally:
        _whole = before


def local_sizes(sizes: Sequence[int]) -> list[int]:
    """Return how many images of each part of a batch this rank runs; outside a divided pass, all of them."""
    if not _whole:
        return list(sizes)
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    # The number of images before `end` that belong to this rank.
    ends = [-((ranks.rank() - end) // ranks.world_size()) if end > ranks.rank() else 0 for end in ends]
    return [end - start for start, end in pairwise(ends)]


def share_of(tensor: Tensor) -> Tensor:
    return tensor[ranks.rank() :: ranks.world_size()]


class ShardRows(torch.autograd.Function):
    """Take the images of this rank. All ranks get the gradient of the whole batch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return share_of(x).contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return all_gather_rows(gradient, ctx.shape[0]) / ranks.world_size()


class AllGather(torch.autograd.Function):
    """Gather the rows of all ranks. The gradient is that of this rank's rows, times the number of ranks."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, images: int) -> Tensor:
        return all_gather_rows(rows, images)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return share_of(gradient) * ranks.world_size(), None


def all_gather_rows(rows: Tensor, images: int) -> Tensor:
    """Return the rows of all ranks, in the order of the batch."""
    whole = rows.new_zeros(images, *rows.shape[1:])
    share_of(whole).copy_(rows)
    return ranks.all_reduce_sum(whole)


class SplitPass(TorchFunctionMode):
    """Inside a divided pass, give batch norm and dropout the whole batch."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = dict(kwargs or {})
        if func is F.batch_norm and keywords["training"]:
            return batch_norm(*args, **keywords)
        if func is F.dropout and keywords["training"] and keywords["p"] > 0:
            return dropout(args[0], keywords["p"])
        if func in RANDOM or draws_in_training(func, args, keywords):
            raise FlashbackError(
                f"this network draws random numbers by {func.__name__}, so its passes cannot be divided; run it on one "
                "device"
            )
        return func(*args, **keywords)


def draws_in_training(func: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Whether this call applies dropout. Attention is one call in torch, with the dropout inside."""
    if func is F.scaled_dot_product_attention:
        return bool(keywords.get("dropout_p", args[4] if len(args) > 4 else 0.0))
    if func is F.multi_head_attention_forward:
        return bool(keywords.get("training", True) and keywords.get("dropout_p", args[10] if len(args) > 10 else 0.0))
    return func in RANDOM_IN_TRAINING and bool(keywords.get("training") and keywords.get("p", 1.0) > 0)


def dropout(x: Tensor, p: float) -> Tensor:
    """Draw the mask for the whole batch, as one device would, and apply the rows of this rank."""
    assert _whole is not None
    mask = F.dropout(x.new_ones(_whole, *x.shape[1:]), p, training=True)
    return x * share_of(mask)


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    """Normalise in training with the statistics over all ranks, and update the running ones."""
    output, mean, var, images = BatchNorm.apply(x, weight, bias, eps)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        if running_mean is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        if running_var is not None:
            unbiased = var * images / (images - 1).clamp(min=1)
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    normalised: Tensor = output
    return normalised


class BatchNorm(torch.autograd.Function):
    """Batch norm over the images of all ranks. Returns the output and, over all ranks, mean, variance and count.

    It uses the kernels for one device, which are several times as fast as the same formulas written out.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        channels = x.shape[1]
        kind = torch.promote_types(x.dtype, torch.float32)
        table = x.new_zeros(
            ranks.world_size(), 1 + 2 * channels, dtype=kind
        )  # of each rank: count, means and variances
        if len(x):
            _, mean, scale = torch.native_batch_norm(x, None, None, None, None, True, 0.0, eps)
            table[ranks.rank(), 0] = x.numel() // channels
            table[ranks.rank(), 1:] = torch.cat([mean, (scale.square().reciprocal() - eps).clamp(min=0)])
        counts, means, variances = torch.split(ranks.all_reduce_sum(table), [1, channels, channels], dim=1)
        total = counts.sum()
        mean = (counts * means).sum(0) / total
        var = (counts * (variances + (means - mean).square())).sum(0) / total
        ctx.has = weight is not None, bias is not None
        weight = torch.ones_like(mean) if weight is None else weight
        ctx.save_for_backward(x, weight, mean, (var + eps).rsqrt(), total)
        ctx.eps = eps
        ctx.mark_non_differentiable(mean, var, total)
        return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps), mean, var, total

    @staticmethod
    def backward(ctx: Any, slope: Tensor, *_: Any) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        """With y = (x - mean) * scale, dL/dx = weight * scale * (s - mean s - y * mean(s y)), s being dL/d(output).

        The kernel takes these means over the images of this rank. What is missing is linear in x.
        """
        x, weight, mean, scale, total = ctx.saved_tensors
        for_x, for_weight, for_bias = torch.zeros_like(x), torch.zeros_like(mean), torch.zeros_like(mean)
        if len(x):
            backward = torch.ops.aten.native_batch_norm_backward
            for_x, for_weight, for_bias = backward(
                slope, x, weight, None, None, mean, scale, True, ctx.eps, [True, True, True]
            )
        sums = torch.stack([for_bias, for_weight])
        local = sums / max(1, x.numel() // x.shape[1])
        shift, stretch = weight * scale * (local - ranks.all_reduce_sum(sums) / total)
        for_x += affine(x, stretch * scale, shift - stretch * scale * mean)
        # The gradients of weight and bias from this rank's images are averaged at the end of the step.
        return for_x, for_weight if ctx.has[0] else None, for_bias if ctx.has[1] else None, None


def affine(x: Tensor, factor: Tensor, summand: Tensor) -> Tensor:
    """Compute factor * x + summand for each channel, in one kernel."""
    eps = torch.finfo(torch.float32).tiny  # torch 2.11 refuses 0; 1 + eps is 1
    return F.batch_norm(x, torch.zeros_like(factor), torch.ones_like(factor), factor, summand, False, 0.0, eps)
