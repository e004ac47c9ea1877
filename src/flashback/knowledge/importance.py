"""Important parameters: the distance to them, and how importance is computed for EWC (Fisher information) and MAS."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from flashback import ranks
from flashback.knowledge.kinds import Knowledge
from flashback.nets import evaluating

Estimator = Literal["empirical", "mammoth", "exact"]
View = Callable[[Tensor], Tensor]
Weights = dict[str, Tensor]
Score = Callable[[Weights, Tensor, Tensor], Tensor]  # of one image and one column, at given weights
Passes = Callable[[Tensor, Tensor], Iterable[Tensor]]

GRADIENT_BYTES = {"cuda": 2 << 30}  # the most that the gradients of one chunk of images may take
GRADIENT_BYTES_ELSEWHERE = 1 << 29
LARGEST_CHUNK = 512  # bounds the activations of networks with few parameters


class ImportantParameters(Knowledge):
    """Parameters and the importance of each (FL Eq. 6 and 12), as the flat vectors `values` and `importance`.

    Args:
        parameters: The parameters to copy; their importance starts at zero.
    """

    values: Tensor
    importance: Tensor

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__()
        values = flat(parameters).detach().clone()
        self.register_buffer("values", values)
        self.register_buffer("importance", torch.zeros_like(values))

    def grow(self, shapes: Sequence[torch.Size], parameters: Sequence[nn.Parameter]) -> None:
        """Follow parameters that have gained rows; a new row has importance 0.

        Args:
            shapes: The shapes of the copied parameters.
            parameters: The parameters now.
        """
        self.values = with_rows(self.values, shapes, [parameter.detach().clone() for parameter in parameters])
        self.importance = with_rows(self.importance, shapes, [torch.zeros_like(parameter) for parameter in parameters])

    def distance(self, parameters: Iterable[Tensor]) -> Tensor:
        """Compute the quadratic form of FL Eq. 17 and 22 without the factor 1/2, which the weights of hosts include.

        Args:
            parameters: The current parameters, in the order of the copied ones.

        Returns:
            The sum of importance * (parameter - value)^2.
        """
        form: Tensor = QuadraticForm.apply(flat(parameters), self.values, self.importance)  # type: ignore[no-untyped-call]
        return form


class QuadraticForm(torch.autograd.Function):
    """sum F (theta - theta_s)^2, with a gradient that reads all parameters half as often as autograd would."""

    @staticmethod
    def forward(ctx: Any, parameters: Tensor, values: Tensor, importance: Tensor) -> Tensor:
        difference = parameters - values
        weighted = importance * difference
        ctx.save_for_backward(weighted)
        return torch.dot(weighted, difference)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        (weighted,) = ctx.saved_tensors
        return 2 * slope * weighted, None, None


# ---------------------------------------------------------------- importance


def fisher_diagonal(
    net: nn.Module,
    images: Tensor,
    labels: Tensor,
    view: View,
    estimator: Estimator,
    columns: slice = slice(None),
) -> Tensor:
    """Compute the diagonal of the Fisher information (FL Eq. 4 and 11), flat, in the order of the trained parameters.

    The estimators are means over images, with p a softmax over `columns`, which hold all labels:
    - "empirical": (grad log p(y))^2, as printed;
    - "mammoth": the same times p(y), so that images the network gets wrong do not dominate;
    - "exact": the sum over classes c of p(c) (grad log p(c))^2, the Fisher information of the EWC paper, at the cost of
      a pass for each class.
    `view` turns raw images into inputs of the network.
    """

    def log_likelihood(weights: Weights, x: Tensor, column: Tensor) -> Tensor:
        log_p = F.log_softmax(functional_call(net, weights, (x[None],)).logits[0, columns], dim=0)
        # A masked sum, since the gradient of an indexed read is not deterministic on every device.
        return (log_p * (torch.arange(len(log_p), device=x.device) == column)).sum()

    score = log_likelihood if estimator == "empirical" else weighted_by_probability(log_likelihood)
    passes = each_column(net, columns) if estimator == "exact" else only_label
    return mean_over_images(net, images, labels - (columns.start or 0), view, score, torch.square_, passes)


def output_sensitivity(net: nn.Module, images: Tensor, view: View, columns: slice) -> Tensor:
    """Compute the mean over images of |grad ||f(x)||^2| (MAS, Eq. 2 and 3), f being the logits of some columns."""

    def squared_norm(weights: Weights, x: Tensor, _: Tensor) -> Tensor:
        logits: Tensor = functional_call(net, weights, (x[None],)).logits[0, columns]
        return logits.square().sum()

    no_labels = torch.zeros(len(images), dtype=torch.long)
    return mean_over_images(net, images, no_labels, view, squared_norm, torch.abs_)


def weighted_by_probability(log_likelihood: Score) -> Score:
    """Return 2 sqrt(p), whose gradient is sqrt(p) grad log p: its square carries the weight p."""
    return lambda weights, x, column: 2.0 * (0.5 * log_likelihood(weights, x, column)).exp()


def each_column(net: nn.Module, columns: slice) -> Passes:
    return lambda x, labels: [
        torch.full_like(labels, column) for column in range(net(x[:1]).logits[:, columns].shape[1])
    ]


def only_label(x: Tensor, labels: Tensor) -> list[Tensor]:
    return [labels]


# ---------------------------------------------------------------- gradients of single images


@torch.no_grad()
def mean_over_images(
    net: nn.Module,
    images: Tensor,
    labels: Tensor,
    view: View,
    score: Score,
    magnitude: Callable[[Tensor], Tensor],
    passes: Passes = only_label,
) -> Tensor:
    """Average the magnitude of each image's gradient of `score`; the columns that `passes` gives are summed."""
    weights = {name: weight.detach() for name, weight in net.named_parameters() if weight.requires_grad}
    sums = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    gradients = vmap(grad(score), in_dims=(None, 0, 0))
    device, chunk = next(iter(weights.values())).device, chunk_size(list(weights.values()))
    # In evaluation mode batch norm couples no images and keeps its statistics; vmap cannot enter compiled modules.
    share = slice(ranks.rank(), len(labels), ranks.world_size())
    pieces = zip(torch.split(images[share], chunk), torch.split(labels[share], chunk), strict=True)
    with evaluating(net), torch.compiler.set_stance("force_eager"):
        for raw, y in (piece for piece in pieces if len(piece[1])):
            x = view(raw.to(device))
            for columns in passes(x, y.to(device)):
                for name, gradient in gradients(weights, x, columns).items():
                    sums[name] += magnitude(gradient).sum(dim=0)
    return ranks.all_reduce_sum(flat(sums.values())) / len(labels)


def chunk_size(weights: list[Tensor]) -> int:
    """Return how many images can have their gradients in memory at the same time."""
    one_image = sum(weight.numel() * weight.element_size() for weight in weights)
    budget = GRADIENT_BYTES.get(weights[0].device.type, GRADIENT_BYTES_ELSEWHERE)
    return max(1, min(LARGEST_CHUNK, budget // one_image))


def flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def with_rows(vector: Tensor, shapes: Sequence[torch.Size], grown: Sequence[Tensor]) -> Tensor:
    """Copy a flat vector of tensors of these shapes into the first rows of grown tensors; return the result flat."""
    parts = torch.split(vector, [shape.numel() for shape in shapes])
    rows = [tensor.reshape(-1) for tensor in grown]  # a copy where the layout is channels last
    for part, row in zip(parts, rows, strict=True):
        row[: part.numel()] = part
    return torch.cat(rows)
