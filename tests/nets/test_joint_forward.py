"""Several batches in one pass do what a pass for each of them would."""

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from flashback.nets import Backbone, LinearHead, Net, Output, build_backbone, joint_forward, untracked_batchnorm
from flashback.nets.batchnorm import BatchNorm2d, in_parts

SIZES, UNTRACKED = (4, 6, 3), (10,)


class OwnNorm(nn.Module):
    """A normalisation that torch does not know of."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean((0, 2, 3), keepdim=True)) / (x.var((0, 2, 3), keepdim=True) + 1e-5).sqrt()


class Plain(Backbone):
    """A user's own backbone, which says nothing about parts."""

    width = 4

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).mean((2, 3))


def made(name: str) -> Net:
    torch.manual_seed(0)
    norms = {"plain": nn.BatchNorm2d(4), "own norm": OwnNorm()}
    backbone = Plain(norms[name]) if name in norms else build_backbone(name, (3, 16, 16))
    net = Net(backbone, LinearHead(backbone.width, 5))
    with torch.no_grad():
        net(torch.randn(16, 3, 16, 16) * 3 + 1)  # running statistics away from their start
    return net


def batches(*sizes: int) -> list[torch.Tensor]:
    """Of different brightness and contrast, so that statistics over several of them would be wrong."""
    return [torch.randn(size, 3, 16, 16) * (index + 1) + index for index, size in enumerate(sizes)]


def one_by_one(net: Net, tracked: list[torch.Tensor], untracked: list[torch.Tensor]) -> list:
    answers = [net(x) for x in tracked]
    with untracked_batchnorm(net):
        return answers + [net(x) for x in untracked]


def weighted_sum(answers: list) -> torch.Tensor:
    return sum((index + 1) * answer.logits.square().sum() for index, answer in enumerate(answers))


@pytest.mark.parametrize(
    "name", ["smallcnn", "resnet32", pytest.param("resnet18", marks=pytest.mark.slow), "plain", "own norm"]
)
def test_answers_statistics_and_gradients_are_those_of_separate_passes(name: str) -> None:
    net = made(name)
    other = copy.deepcopy(net)
    tracked, untracked = batches(*SIZES), batches(*UNTRACKED)
    answers, expected = joint_forward(net, tracked, untracked), one_by_one(other, tracked, untracked)
    for answer, answer_apart in zip(answers, expected, strict=True):
        torch.testing.assert_close(answer.features, answer_apart.features, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(answer.logits, answer_apart.logits, rtol=1e-4, atol=1e-4)
    for key, value in other.state_dict().items():
        torch.testing.assert_close(net.state_dict()[key], value, rtol=1e-4, atol=1e-5, msg=key)
    weighted_sum(answers).backward()
    weighted_sum(expected).backward()
    for (key, value), gradient in zip(other.named_parameters(), net.parameters(), strict=True):
        scale = value.grad.abs().max()
        torch.testing.assert_close(gradient.grad / scale, value.grad / scale, rtol=1e-3, atol=1e-4, msg=key)


def test_one_pass_where_batch_norm_is_ours_and_several_where_it_is_not() -> None:
    for name, expected in (("smallcnn", [23]), ("plain", [4, 6, 3, 10])):
        net, seen = made(name), []
        net.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(len(args[0])))
        joint_forward(net, batches(*SIZES), batches(*UNTRACKED))
        assert seen == expected


def test_images_of_different_sizes_have_passes_of_their_own() -> None:
    net = made("smallcnn")
    other = copy.deepcopy(net)
    tracked, untracked = batches(*SIZES), [torch.randn(4, 3, 16, 24)]
    answers = [answer.logits for answer in joint_forward(net, tracked, untracked)]
    assert all(map(torch.equal, answers, [answer.logits for answer in one_by_one(other, tracked, untracked)]))


def test_what_has_no_images_of_its_own_is_in_every_part() -> None:
    @dataclass
    class Wider(Output):
        extra: torch.Tensor | None = None
        name: str = "wide"

    first, second = Wider(torch.zeros(5, 2), torch.arange(5)).split([2, 3])
    assert (first.logits.tolist(), second.logits.tolist()) == ([0, 1], [2, 3, 4])
    assert (first.extra, second.extra, first.name, second.name) == (None, None, "wide", "wide")


def test_evaluation_reads_running_statistics() -> None:
    net = made("smallcnn").eval()
    before = copy.deepcopy(net.state_dict())
    tracked, untracked = batches(*SIZES), batches(*UNTRACKED)
    for answer, x in zip(joint_forward(net, tracked, untracked), [*tracked, *untracked], strict=True):
        torch.testing.assert_close(answer.logits, net(x).logits, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(net.state_dict()[key], value) for key, value in before.items())


def test_batches_do_not_see_each_other() -> None:
    net = made("smallcnn")
    first, second, third = batches(*SIZES)
    answer = joint_forward(net, [first, second, third])[0].logits
    torch.testing.assert_close(joint_forward(net, [first, third * 9, second])[0].logits, answer)


def test_where_tracking_is_off_no_part_moves_the_statistics() -> None:
    net = made("smallcnn")
    before = copy.deepcopy(net.state_dict())
    with untracked_batchnorm(net):
        joint_forward(net, batches(*SIZES), batches(*UNTRACKED))
    assert all(torch.equal(net.state_dict()[key], value) for key, value in before.items())


def test_parts_end_with_the_pass_even_with_a_failed_one() -> None:
    net = made("smallcnn")
    with pytest.raises(RuntimeError), in_parts(net, ((4, True), (9, True))):
        net(batches(4)[0])
    assert {norm.parts for norm in net.modules() if isinstance(norm, BatchNorm2d)} == {()}
