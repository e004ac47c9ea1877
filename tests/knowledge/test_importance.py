"""Fisher diagonal and output sensitivity against loops over images in float64, and what they must leave alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from flashback.knowledge import ImportantParameters, flat, importance
from flashback.knowledge.importance import fisher_diagonal, output_sensitivity
from flashback.nets import NETS, Net, Output, build_backbone
from flashback.nets.heads import CosineHead

ESTIMATORS = ["empirical", "mammoth", "exact"]
COLUMNS = 4


class DoubleNet(nn.Module):
    """Convolution, batch norm, linear, all in float64 (a Net would answer in float32)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.head = nn.Linear(3, COLUMNS)
        self.double()

    def forward(self, x: Tensor) -> Output:
        features = self.norm(self.conv(x)).relu().mean((2, 3))
        return Output(features, self.head(features))


def moved_statistics(net: nn.Module, x: Tensor) -> nn.Module:
    """Running statistics that are neither the initial ones nor those of the batch; in training mode afterwards."""
    net.train()
    net(3 * x[: len(x) // 2] + 1)
    return net


def made_data(
    n: int = 7, shape: tuple[int, int, int] = (2, 6, 6), dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, *shape, generator=generator, dtype=dtype), torch.arange(n) % COLUMNS


def unchanged(x: Tensor) -> Tensor:
    return x


def slow_fisher(
    net: nn.Module, images: Tensor, labels: Tensor, estimator: str, columns: range = range(COLUMNS)
) -> Tensor:
    """One image, one column and one backward pass at a time."""
    parameters = [p for p in net.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=parameters[0].dtype)
    net.eval()
    for x, y in zip(images, labels.tolist(), strict=True):
        for column in columns if estimator == "exact" else [y]:
            log_p = net(x[None]).logits[0, list(columns)].log_softmax(0)[column - columns.start]
            gradient = torch.cat([g.flatten() for g in torch.autograd.grad(log_p, parameters)])
            weight = 1.0 if estimator == "empirical" else log_p.exp().item()
            total += weight * gradient**2
    return total / len(images)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_equals_a_loop_over_images(estimator: str) -> None:
    torch.manual_seed(0)
    x, y = made_data()
    net = moved_statistics(DoubleNet(), x)
    fast = fisher_diagonal(net, x, y, unchanged, estimator)
    torch.testing.assert_close(fast, slow_fisher(net, x, y, estimator), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_softmax_of_some_columns_leaves_the_others_alone(estimator: str) -> None:
    torch.manual_seed(0)
    x, y = made_data()
    columns, net = range(1, COLUMNS - 1), moved_statistics(DoubleNet(), x)
    y = columns.start + y % len(columns)
    fast = fisher_diagonal(net, x, y, unchanged, estimator, slice(columns.start, columns.stop))
    torch.testing.assert_close(fast, slow_fisher(net, x, y, estimator, columns), rtol=1e-10, atol=1e-14)
    bias = fast[-COLUMNS:]
    assert [bool(value) for value in bias] == [column in columns for column in range(COLUMNS)]


def test_exact_is_the_expectation_of_the_squared_score() -> None:
    """For a softmax layer alone, E_y (grad_z log p)^2 = p (1 - p) at every logit, which a bias receives."""
    torch.manual_seed(0)
    x, y = made_data()
    net = moved_statistics(DoubleNet(), x)
    bias = fisher_diagonal(net, x, y, unchanged, "exact")[-COLUMNS:]
    net.eval()
    p = net(x).logits.softmax(1)
    torch.testing.assert_close(bias, (p * (1 - p)).mean(0))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_chunks_change_nothing(estimator: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, y = made_data()
    net = moved_statistics(DoubleNet(), x)
    whole = fisher_diagonal(net, x, y, unchanged, estimator)
    monkeypatch.setattr(importance, "LARGEST_CHUNK", chunk)
    torch.testing.assert_close(fisher_diagonal(net, x, y, unchanged, estimator), whole, rtol=1e-12, atol=0)


def test_chunks_bound_the_memory_of_gradients() -> None:
    small, large = [torch.zeros(10)], [torch.zeros(1).expand(4_000_000), torch.zeros(1).expand(7_000_000)]
    assert importance.chunk_size(small) == importance.LARGEST_CHUNK
    assert importance.chunk_size(large) == 2**29 // (4 * 11_000_000)
    assert importance.chunk_size([torch.zeros(1).expand(10**9)]) == 1


@pytest.mark.parametrize("training", [True, False])
def test_leaves_network_and_modes_as_they_were(training: bool) -> None:
    x, y = made_data()
    net = moved_statistics(DoubleNet(), x).train(training)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    fisher_diagonal(net, x, y, unchanged, "mammoth")
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert all(module.training == training for module in net.modules())
    assert all(p.grad is None for p in net.parameters())


def test_order_is_that_of_flat_over_trained_parameters() -> None:
    torch.manual_seed(0)
    x, y = made_data()
    net = moved_statistics(DoubleNet(), x)
    everything = dict(
        zip(
            [name for name, _ in net.named_parameters()],
            fisher_diagonal(net, x, y, unchanged, "empirical").split([p.numel() for p in net.parameters()]),
            strict=True,
        )
    )
    net.conv.requires_grad_(False)
    remaining = [name for name, p in net.named_parameters() if p.requires_grad]
    assert "conv.weight" not in remaining
    expected = flat(everything[name] for name in remaining)
    torch.testing.assert_close(fisher_diagonal(net, x, y, unchanged, "empirical"), expected, rtol=1e-12, atol=0)


def test_sees_the_view_of_the_images() -> None:
    torch.manual_seed(0)
    x, y = made_data()
    net = moved_statistics(DoubleNet(), x)
    shifted = fisher_diagonal(net, x, y, lambda raw: raw + 1, "mammoth")
    assert torch.equal(shifted, fisher_diagonal(net, x + 1, y, unchanged, "mammoth"))
    assert not torch.allclose(shifted, fisher_diagonal(net, x, y, unchanged, "mammoth"))


def test_works_where_gradients_are_off() -> None:
    x, y = made_data()
    net = moved_statistics(DoubleNet(), x)
    with torch.no_grad():
        assert fisher_diagonal(net, x, y, unchanged, "mammoth").sum() > 0


def test_mammoth_is_the_share_of_the_true_label_in_exact() -> None:
    torch.manual_seed(0)
    x, y = made_data()
    net = moved_statistics(DoubleNet(), x)
    shares = [fisher_diagonal(net, x, (y + k) % COLUMNS, unchanged, "mammoth") for k in range(COLUMNS)]
    torch.testing.assert_close(sum(shares), fisher_diagonal(net, x, y, unchanged, "exact"))


LARGE = [pytest.param(name, nn.Linear, marks=pytest.mark.slow) for name in NETS if name != "smallcnn"]
NETWORKS = [("smallcnn", nn.Linear), ("smallcnn", CosineHead), *LARGE]


@pytest.mark.parametrize(("name", "head"), NETWORKS)
def test_every_network(name: str, head: type[nn.Module]) -> None:
    """Float32, deterministic algorithms asked for, twice the same bits."""
    torch.manual_seed(0)
    x, y = made_data(2, (1, 8, 8), torch.float32)
    backbone = build_backbone(name, (1, 8, 8))
    net = moved_statistics(Net(backbone, head(backbone.width, COLUMNS)), torch.cat([x, x]))
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (fisher_diagonal(net, x, y, unchanged, "empirical") for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(first, second)
    expected = slow_fisher(net, x, y, "empirical")
    assert (first - expected).norm() < 1e-3 * expected.norm()


def test_compiled_backbones_are_entered_uncompiled() -> None:
    torch.manual_seed(0)
    x, y = made_data(3, (1, 8, 8), torch.float32)
    backbone = build_backbone("smallcnn", (1, 8, 8))
    net = Net(backbone, nn.Linear(backbone.width, COLUMNS))
    expected = fisher_diagonal(net, x, y, unchanged, "mammoth")
    backbone.compile(backend="eager", fullgraph=True)
    assert torch.equal(fisher_diagonal(net, x, y, unchanged, "mammoth"), expected)


# ---------------------------------------------------------------- the sensitivity


def slow_sensitivity(net: nn.Module, images: Tensor, columns: slice) -> Tensor:
    """One image and one backward pass at a time: the mean of |grad sum_k f_k(x)^2|."""
    parameters = [p for p in net.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=parameters[0].dtype)
    net.eval()
    for x in images:
        squared_norm = sum(answer**2 for answer in net(x[None]).logits[0][columns])
        total += flat(torch.autograd.grad(squared_norm, parameters)).abs()
    return total / len(images)


def double_net(x: Tensor) -> nn.Module:
    torch.manual_seed(0)
    return moved_statistics(DoubleNet(), x)


@pytest.mark.parametrize("columns", [slice(0, COLUMNS), slice(0, 2), slice(0, 1)])
def test_sensitivity_equals_a_loop_over_images(columns: slice) -> None:
    x, _ = made_data()
    net = double_net(x)
    fast = output_sensitivity(net, x, unchanged, columns)
    assert fast.min() >= 0
    torch.testing.assert_close(fast, slow_sensitivity(net, x, columns), rtol=1e-10, atol=1e-14)


def test_sensitivity_is_no_gradient_of_the_mean() -> None:
    """Of single images, before their signs can cancel each other."""
    x, _ = made_data()
    net = double_net(x).eval()
    mean = net(x).logits.square().sum(dim=1).mean()
    cancelled = flat(torch.autograd.grad(mean, list(net.parameters()))).abs()
    sensitivity = output_sensitivity(net, x, unchanged, slice(None))
    assert (sensitivity >= cancelled - 1e-12).all()
    assert sensitivity.sum() > 1.1 * cancelled.sum()


@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_chunks_of_sensitivity_change_nothing(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = made_data()
    net = double_net(x)
    whole = output_sensitivity(net, x, unchanged, slice(None))
    monkeypatch.setattr(importance, "LARGEST_CHUNK", chunk)
    torch.testing.assert_close(output_sensitivity(net, x, unchanged, slice(None)), whole, rtol=1e-12, atol=0)


def test_sensitivity_sees_the_view_and_trained_parameters_alone() -> None:
    x, _ = made_data()
    net = double_net(x)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    shifted = output_sensitivity(net, x, lambda raw: raw + 1, slice(None))
    assert torch.equal(shifted, output_sensitivity(net, x + 1, unchanged, slice(None)))
    net.conv.requires_grad_(False)
    frozen = sum(p.numel() for p in net.conv.parameters())
    assert torch.equal(output_sensitivity(net, x + 1, unchanged, slice(None)), shifted[frozen:])
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_an_anchor_that_grows_keeps_its_values_and_finds_new_rows_unimportant(layout: torch.memory_format) -> None:
    """Convolutions have the second layout on a GPU."""
    torch.manual_seed(0)
    net = Net(build_backbone("smallcnn", (3, 12, 12), 1.0), nn.Linear(64, 2)).to(memory_format=layout)
    anchor = ImportantParameters(net.parameters())
    anchor.values.normal_()
    anchor.importance.uniform_(1, 2)
    shapes = [parameter.shape for parameter in net.parameters()]
    before = [torch.split(vector.clone(), [s.numel() for s in shapes]) for vector in (anchor.values, anchor.importance)]
    net.grow(5)
    anchor.grow(shapes, list(net.parameters()))
    sizes = [parameter.numel() for parameter in net.parameters()]
    values, importances = torch.split(anchor.values, sizes), torch.split(anchor.importance, sizes)
    for k, parameter in enumerate(net.parameters()):
        known = shapes[k].numel()
        assert torch.equal(values[k][:known], before[0][k])
        assert torch.equal(importances[k][:known], before[1][k])
        assert torch.equal(values[k][known:], parameter.flatten()[known:])
        assert not importances[k][known:].any()
