"""The transformer of DyTox against slow computations of its formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashback import FlashbackError
from flashback.nets import Net, build_backbone, joint_forward
from flashback.nets.convit import GatedAttention, GatedBlock, heads_for
from flashback.nets.task_tokens import TaskAttention, TaskTokenNet


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@torch.no_grad()
def moved(module: Any) -> Any:
    """In double precision, with all parameters somewhere else."""
    for index, parameter in enumerate(module.double().parameters()):
        parameter.add_(0.3 * random(*parameter.shape, seed=index))
    return module.eval()


def softmax(scores: list[float]) -> list[float]:
    powers = [math.exp(score) for score in scores]
    return [power / sum(powers) for power in powers]


def attended(weights: list[float], values: Tensor) -> Tensor:
    return torch.stack([weight * value for weight, value in zip(weights, values, strict=True)]).sum(0)


def one_head(layer: nn.Module, x: Tensor, head: int, count: int) -> Tensor:
    """The features of one head, for vectors [n, width]."""
    size = x.shape[1] // count
    return layer(x)[:, head * size : (head + 1) * size]


def test_gated_attention_against_its_formula() -> None:
    rows, columns, width = 2, 3, 64
    layer = moved(GatedAttention(width, (rows, columns)))
    for x in random(2, rows * columns, width):
        heads = []
        for head in range(2):
            q, k, v = (one_head(part, x, head, 2) for part in (layer.query, layer.key, layer.value))
            share = torch.sigmoid(layer.gate[head]).item()
            answers = []
            for here in range(rows * columns):
                content, position = [], []
                for there in range(rows * columns):
                    dy, dx = there // columns - here // columns, there % columns - here % columns
                    content.append((q[here] @ k[there]).item() / math.sqrt(32))
                    offsets = torch.tensor([dx, dy, dx**2 + dy**2], dtype=torch.float64)
                    position.append((layer.position.weight[head] @ offsets + layer.position.bias[head]).item())
                pairs = zip(softmax(content), softmax(position), strict=True)
                answers.append(attended([(1 - share) * c + share * p for c, p in pairs], v))
            heads.append(torch.stack(answers))
        expected = layer.project(torch.cat(heads, dim=1))
        torch.testing.assert_close(layer(x[None])[0], expected, rtol=1e-9, atol=1e-10)


def test_attention_starts_as_a_filter_of_three_by_three() -> None:
    layer = GatedAttention(384, (5, 5))
    assert layer.count == 12
    assert torch.equal(layer.value.weight, torch.eye(384))
    nearest = layer.position(layer.offsets)[12].argmax(dim=0)[:9]  # from the patch in the middle
    assert sorted(nearest.tolist()) == [6, 7, 8, 11, 12, 13, 16, 17, 18]


@pytest.mark.parametrize(("width", "heads"), [(384, 12), (64, 2), (512, 16), (48, 1), (130, 2), (20, 1)])
def test_heads_share_the_width(width: int, heads: int) -> None:
    assert heads_for(width) == heads


def test_blocks_have_two_shortcuts_and_drop_whole_images() -> None:
    block = moved(GatedBlock(32, (2, 2), drop_rate=0.5))
    maps = random(64, 32, 2, 2)
    x = maps.flatten(2).transpose(1, 2)
    after_attention = x + block.attention(block.norm1(x))
    after_mlp = after_attention + block.mlp(block.norm2(after_attention))
    torch.testing.assert_close(block(maps).flatten(2).transpose(1, 2), after_mlp)
    block.train()
    torch.manual_seed(0)
    unchanged = sum(torch.equal(before, after) for before, after in zip(maps, block(maps), strict=True))
    assert 4 <= unchanged <= 32  # a quarter of the images skip both halves


def test_the_net_is_that_of_the_publication() -> None:
    net = TaskTokenNet(build_backbone("convit", (3, 32, 32)), 10)
    for classes in range(20, 101, 10):
        net.grow(classes)
    assert sum(parameter.numel() for parameter in net.parameters()) == 10_733_584  # it prints 10.73 million
    drops = [block.drop_path.p for block in net.backbone.blocks]
    assert drops == pytest.approx([0, 0.02, 0.04, 0.06, 0.08])
    assert net.attention.drop_path.p == 0.1


@pytest.mark.parametrize(("side", "patches"), [(32, 64), (28, 49), (64, 256), (224, 196)])
def test_patches(side: int, patches: int) -> None:
    backbone = build_backbone("convit-small", (1, side, side)).eval()
    x = torch.randn(2, 1, side, side)
    maps = backbone.stage_maps(x)[-1]
    assert maps[0, 0].numel() == patches
    assert torch.equal(backbone(x), maps.mean((2, 3)))


def test_images_that_cannot_be_cut_are_refused() -> None:
    with pytest.raises(FlashbackError, match="patches of 4 pixels, so their sides must be multiples of it, not 30 and"):
        build_backbone("convit", (3, 30, 30))


def test_batches_may_go_through_together() -> None:
    backbone = build_backbone("convit-small", (1, 12, 12)).eval()
    net = Net(backbone, nn.Linear(backbone.width, 3))
    batches = [torch.randn(2, 1, 12, 12), torch.randn(3, 1, 12, 12)]
    assert backbone.supports_joint_forward
    for joint, x in zip(joint_forward(net, batches), batches, strict=True):
        torch.testing.assert_close(joint.logits, net(x).logits)


# ---------------------------------------------------------------- task attention


def slow_task_attention(layer: TaskAttention, token: Tensor, patches: Tensor) -> Tensor:
    """For one token and the patches of one image: attention over the token and the patches in one sequence."""
    sequence = layer.norm1(torch.cat([token[None], patches]))
    heads = []
    for head in range(layer.count):
        q, k, v = (one_head(part, sequence, head, layer.count) for part in (layer.query, layer.key, layer.value))
        scores = [(q[0] @ key).item() / math.sqrt(len(key)) for key in k]
        heads.append(attended(softmax(scores), v))
    embedding = token + layer.project(torch.cat(heads))
    return embedding + layer.mlp(layer.norm2(embedding))


def test_task_attention_is_that_of_each_token_alone() -> None:
    layer = moved(TaskAttention(64))
    tokens, patches = random(3, 64, seed=2), random(2, 5, 64, seed=3)
    embeddings = layer(tokens, patches)
    for image in range(2):
        for task in range(3):
            expected = slow_task_attention(layer, tokens[task], patches[image])
            torch.testing.assert_close(embeddings[image, task], expected, rtol=1e-9, atol=1e-10)


def test_a_classifier_sees_the_embedding_of_its_task_alone() -> None:
    net = TaskTokenNet(build_backbone("convit-small", (1, 12, 12)), 2)
    net.grow(5)
    net = moved(net).float()
    x = random(3, 1, 12, 12).float()
    output = net(x)
    patches = net.backbone.stage_maps(x)[-1].flatten(2).transpose(1, 2)
    logits = []
    for token, (norm, linear) in zip(net.tokens, net.head, strict=True):
        rows = [slow_task_attention(net.attention, token, each) for each in patches]
        logits.append(linear(F.layer_norm(torch.stack(rows), (64,), norm.weight, norm.bias)))
    torch.testing.assert_close(output.logits, torch.cat(logits, dim=1), rtol=1e-4, atol=1e-4)
    assert output.features.shape == (3, 2 * 64)


def test_dropping_acts_on_each_token_of_an_image() -> None:
    layer = moved(TaskAttention(32))
    tokens, patches = random(2, 32, seed=2), random(400, 3, 32, seed=3)
    layer.drop_path.p = 0.5
    layer.train()
    torch.manual_seed(0)
    mask = (layer(tokens, patches) == tokens).all(dim=2).double()  # neither half added anything
    assert mask.mean().item() == pytest.approx(0.25, abs=0.06)
    assert mask.prod(dim=1).mean().item() == pytest.approx(0.25**2, abs=0.04)  # the two tokens drop independently
