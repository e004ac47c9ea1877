"""Two networks mixed level by level, against passes through their layers by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashback.errors import FlashbackError
from flashback.nets import NETS, BatchNorm2d, Frozen, Net, build_backbone, evaluating, joint_forward
from flashback.nets.combined import AggregatedBackbone

SHAPE = (3, 16, 16)
LEVELS = {"smallcnn": 4, "resnet32": 3, "resnet32-cosine": 3, "resnet18": 4, "resnet18-imagenet": 4}


EVERY_NET = [pytest.param(name, marks=pytest.mark.slow) if name.startswith("resnet18-") else name for name in NETS]


def images(count: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(1), dtype=dtype)


@torch.no_grad()
def moved(net: Any, seed: int = 2) -> Any:
    """With all parameters, statistics and weights somewhere else."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in [*net.parameters(), *(b for b in net.buffers() if b.is_floating_point())]:
        tensor.add_(0.1 * torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype))
    return net


def aggregated(name: str = "smallcnn") -> AggregatedBackbone:
    torch.manual_seed(0)
    return AggregatedBackbone(build_backbone(name, SHAPE)).double()


@pytest.mark.parametrize("name", EVERY_NET)
def test_at_first_it_answers_as_the_network_it_was_made_of(name: str) -> None:
    torch.manual_seed(0)
    backbone = moved(build_backbone(name, SHAPE)).eval()
    net, x = AggregatedBackbone(backbone).eval(), images(dtype=torch.float32)
    assert torch.equal(net(x), backbone(x))
    for mixed, plain in zip(net.stage_maps(x), backbone.stage_maps(x), strict=True):
        assert torch.equal(mixed, plain)
    assert net.mix.tolist() == [0.5] * LEVELS.get(name, len(backbone.levels()))
    assert (net.width, net.supports_joint_forward) == (backbone.width, backbone.supports_joint_forward)


def test_levels_are_mixed_and_filters_scaled() -> None:
    """By hand, convolution by convolution: what goes into a level is what the one before it mixed."""
    net = moved(aggregated()).eval()
    mix = net.mix.tolist()
    assert len(set(mix)) == 4
    x = expected = images()
    for level in range(4):
        conv, norm = 3 * level, 3 * level + 1
        answers = []
        for branch in (net.stable, net.plastic):
            layer: Any = branch.layers[conv]
            if branch is net.stable:
                original, scale = layer.conv.weight, layer.scale
                assert scale.shape == (*original.shape[:2], 1, 1)
                filters = original.clone()
                for out in range(filters.shape[0]):
                    for channel in range(filters.shape[1]):
                        filters[out, channel] *= scale[out, channel].item()
            else:
                filters = layer.weight
            maps = F.conv2d(expected, filters, stride=1 if level == 3 else 2, padding=1)
            answers.append(F.relu(branch.layers[norm](maps)))
        expected = mix[level] * answers[0] + (1 - mix[level]) * answers[1]
        torch.testing.assert_close(net.stage_maps(x)[level], expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(net(x), expected.mean((2, 3)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["resnet32", "resnet32-cosine"])
def test_blocks_of_a_resnet_are_mixed_by_stage(name: str) -> None:
    """The stem belongs to the first level, and pooling mixed maps is mixing pooled ones."""
    net = moved(aggregated(name)).eval()
    x = images()
    for level, share in enumerate(net.mix.tolist()):
        stable, plastic = (
            branch.stages[level](branch.stem(x) if level == 0 else x) for branch in (net.stable, net.plastic)
        )
        x = share * stable + (1 - share) * plastic
    torch.testing.assert_close(net(images()), x.mean((2, 3)), rtol=1e-9, atol=1e-12)
    pooled = net.mix[-1] * stable.mean((2, 3)) + (1 - net.mix[-1]) * plastic.mean((2, 3))
    torch.testing.assert_close(net(images()), pooled, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", EVERY_NET)
def test_filters_of_the_stable_network_are_frozen_and_all_else_is_trained(name: str) -> None:
    net = aggregated(name)
    for _ in range(2):  # whatever a host does with its networks
        trained = {key for key, weight in net.named_parameters() if weight.requires_grad}
        frozen = {key for key, _ in net.named_parameters()} - trained
        layers = {key: type(layer) for key, layer in net.plastic.named_modules()}
        convs, linear = ([key for key in layers if layers[key] is kind] for kind in (nn.Conv2d, nn.Linear))
        assert frozen == {f"stable.{conv}.conv.weight" for conv in convs} | {f"stable.{key}.weight" for key in linear}
        assert {f"stable.{conv}.scale" for conv in convs} <= trained
        assert {f"plastic.{key}" for key, _ in net.plastic.named_parameters()} <= trained
        norms = [key for key, layer in net.stable.named_modules() if isinstance(layer, BatchNorm2d)]
        assert {f"stable.{norm}.weight" for norm in norms} <= trained
        assert not net.set_trainable(False).mix.requires_grad
        assert not any(weight.requires_grad for weight in net.parameters())
        net.set_trainable()
    net.train()
    assert all(layer.training for layer in net.modules() if isinstance(layer, BatchNorm2d))


def test_what_its_maker_has_frozen_gets_no_scales() -> None:
    backbone = build_backbone("smallcnn", SHAPE)
    backbone.layers[:2].requires_grad_(False)
    net = AggregatedBackbone(backbone.keep_frozen()).train()
    for branch in (net.stable, net.plastic):
        assert [type(layer) for layer in branch.layers[:2]] == [nn.Conv2d, BatchNorm2d]
        assert not any(weight.requires_grad for weight in branch.layers[:2].parameters())
        assert not branch.layers[1].training
        assert branch.layers[4].training


def test_the_given_network_is_left_alone() -> None:
    backbone = build_backbone("smallcnn", SHAPE)
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    moved(AggregatedBackbone(backbone))
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())
    assert all(weight.requires_grad for weight in backbone.parameters())


def test_a_copy_is_of_both_networks_and_the_weights() -> None:
    """Levels are kept beside the networks; those of a copy are its own."""
    net = moved(aggregated("resnet32")).eval()
    frozen = Frozen(net)
    before = frozen(images())
    assert torch.equal(before, net(images()))
    moved(net, seed=3)
    assert torch.equal(frozen(images()), before)
    assert not torch.equal(net(images()), before)
    weights = {id(weight) for weight in frozen.parameters()}
    assert {id(weight) for pair in frozen.module.pairs for level in pair for weight in level.parameters()} == weights


def test_no_tensor_has_two_names() -> None:
    net = aggregated("resnet32")
    assert len({tensor.data_ptr() for tensor in net.state_dict().values()}) == len(net.state_dict())
    fresh = aggregated("resnet32")
    fresh.load_state_dict(moved(net).state_dict(), strict=True)
    assert torch.equal(fresh.eval()(images()), net.eval()(images()))


def test_batches_go_through_together() -> None:
    """Each part has batch statistics of its own, in both networks."""
    one = Net(moved(aggregated()), nn.Linear(64, 5)).train()
    other = copy.deepcopy(one)
    x, y = images(4), images(6) + 1
    apart, joint = (one(x), one(y)), joint_forward(other, [x, y])
    for expected, actual in zip(apart, joint, strict=True):
        torch.testing.assert_close(actual.logits, expected.logits)
    for key, value in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[key], value, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_it_compiles_as_a_whole_and_exports() -> None:
    net = moved(aggregated("resnet32"))
    compiled = torch.compile(copy.deepcopy(net), dynamic=False, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(images()), net(images()))
    with evaluating(net):
        program = torch.export.export(net, (images(),))
        torch.testing.assert_close(program.module()(images()), net(images()))


@pytest.mark.slow
def test_another_network_needs_no_compilation_of_its_own() -> None:
    """Many runs in one process: each guards on the types of its layers, and there is a limit to recompilations."""
    compiled = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    torch._dynamo.reset()
    for _ in range(3):
        net = aggregated()
        net.compile(dynamic=False, fullgraph=True, backend=backend)
        net(images())
    assert len(compiled) == 1


def test_cka_is_refused() -> None:
    with pytest.raises(FlashbackError, match="CKA compares networks with one backbone"):
        aggregated().last_stage_layers()
