"""ParallelBackbone side by side: one sum of features, one head, and what each would say alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flashback.nets import build_backbone, joint_forward
from flashback.nets.combined import ParallelBackbone, ParallelNet

SHAPE = (3, 16, 16)


def made(name: str = "smallcnn", learners: int = 3) -> ParallelNet:
    torch.manual_seed(0)
    backbone = ParallelBackbone([build_backbone(name, SHAPE, 0.25) for _ in range(learners)])
    return ParallelNet(backbone, nn.Linear(backbone.width, 5))


@pytest.mark.parametrize("name", ["smallcnn", "resnet32", "cnn6"])
def test_features_are_summed_and_the_head_is_shared(name: str) -> None:
    net, x = made(name).eval(), torch.randn(4, *SHAPE)
    output = net(x)
    each = [learner(x) for learner in net.backbone.learners]
    torch.testing.assert_close(output.features, each[0] + each[1] + each[2])
    torch.testing.assert_close(output.features, net.backbone(x))
    torch.testing.assert_close(output.logits, net.head(output.features))
    assert output.separate.shape == (4, 3, 5)
    for index, features in enumerate(each):
        torch.testing.assert_close(output.separate[:, index], net.head(features))


def test_several_batches_in_one_pass() -> None:
    net = made()
    assert net.backbone.supports_joint_forward
    first, second = torch.randn(4, *SHAPE), torch.randn(2, *SHAPE) + 1
    answers = joint_forward(net, [first, second])
    assert [len(answer.separate) for answer in answers] == [4, 2]
    torch.testing.assert_close(answers[1].separate, net(second).separate)


def test_what_a_maker_has_frozen_stays_so() -> None:
    learners = [build_backbone("smallcnn", SHAPE) for _ in range(2)]
    for learner in learners:
        learner.layers[:2].requires_grad_(False)
        learner.keep_frozen()
    whole = ParallelBackbone(learners).set_trainable()
    frozen = {name for name, parameter in whole.named_parameters() if not parameter.requires_grad}
    assert frozen == {f"learners.{k}.layers.{part}" for k in range(2) for part in ("0.weight", "1.weight", "1.bias")}
    assert [learner.layers[1].training for learner in whole.train().learners] == [False, False]
