"""Linear connector: the free directions of a layer, the projection, the average, and what stays as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from elastic_tasks import step_of
from torch import nn

from flashback import FlashbackError, Trainer
from flashback.hosts.connector import NullSpace, add_inputs, projected_layers
from flashback.knowledge import ModelKnowledge
from helpers import quick_host, tiny_benchmark

TRAINING = {"training__momentum": 0.9, "training__weight_decay": 0.1, "training__lr": 0.05}


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


class Watched:
    """Keeps the network at the end of each stage of the second task."""

    def __init__(self, **settings: Any) -> None:
        benchmark = tiny_benchmark((2, 2))
        self.host: Any = quick_host("connector", benchmark, **{**TRAINING, **settings})
        trainer, self.ends = Trainer(self.host, benchmark), dict[str, dict[str, torch.Tensor]]()
        trainer.run_task(benchmark.tasks[0])
        self.before, self.projections = self.state(), [space.projection.clone() for space in self.host.spaces]
        connect = self.host.connect

        def watching() -> None:
            self.ends["projected"] = self.state()
            self.ends["plain"] = {
                key: tensor.clone() for key, tensor in self.host.plain.model.module.state_dict().items()
            }
            connect()

        self.host.connect = watching
        trainer.run_task(benchmark.tasks[1])

    def state(self) -> dict[str, torch.Tensor]:
        return {key: tensor.clone() for key, tensor in self.host.net.state_dict().items()}


# ---------------------------------------------------------------- the free directions


def test_free_directions_are_those_without_energy() -> None:
    used, space = random(40, 2) @ random(2, 5), NullSpace(5)
    space.add(used)
    space.update(ratio=10)
    assert space.projection.trace().item() == pytest.approx(3, abs=1e-4)
    assert (used @ space.projection).abs().max() < 1e-4
    torch.testing.assert_close(space.projection @ space.projection, space.projection)


def test_the_ratio_decides_what_counts_as_free() -> None:
    space = NullSpace(3)
    space.add(torch.diag(torch.tensor([1.0, 2.0, 10.0])))  # eigenvalues 1, 4, 100
    for ratio, free in ((1, 1), (3.9, 1), (4.1, 2), (99, 2), (101, 3)):
        space.update(ratio)
        assert space.projection.trace().item() == pytest.approx(free), ratio


def test_the_covariance_of_a_convolution_is_that_of_its_patches() -> None:
    layer, images = nn.Conv2d(2, 3, 3, stride=2, padding=1, bias=False), random(5, 2, 7, 7)
    space = NullSpace(layer.weight[0].numel())
    add_inputs(space, layer, (images,))
    padded, expected = nn.functional.pad(images, (1, 1, 1, 1)).double(), torch.zeros(18, 18, dtype=torch.float64)
    for image in padded:
        for row in range(0, 7, 2):
            for column in range(0, 7, 2):
                patch = image[:, row : row + 3, column : column + 3].reshape(-1)
                expected += torch.outer(patch, patch)
    torch.testing.assert_close(space.covariance, expected)
    space.update(ratio=1)
    change = (random(3, 18) @ space.projection).view_as(layer.weight)
    assert (nn.functional.conv2d(images, change, stride=2, padding=1)).abs().max() > 1e-3  # all directions are used


def test_covariances_add_up_over_tasks() -> None:
    """Of the first layer, whose inputs do not depend on what was learned."""
    host = Watched().host
    layer, space = projected_layers(host.net.backbone)[0], host.spaces[0]
    expected = torch.zeros_like(space.covariance)
    for task in host.benchmark.tasks:
        images = host.views.plain(task.train.x)
        for patches in nn.functional.unfold(images, layer.kernel_size, 1, layer.padding, layer.stride).double():
            expected += sum(torch.outer(patch, patch) for patch in patches.T)
    torch.testing.assert_close(space.covariance, expected)


# ---------------------------------------------------------------- two networks and their average


def test_the_projected_network_changes_in_free_directions_alone() -> None:
    watched = Watched(host__null_ratio=3.0)
    modules = watched.host.net.backbone.named_modules()
    names = [f"backbone.{name}.weight" for name, layer in modules if isinstance(layer, nn.Conv2d | nn.Linear)]
    free, outside = 0.0, 0.0
    for name, projection in zip(names, watched.projections, strict=True):
        change, plain = ((watched.ends[end][name] - watched.before[name]).flatten(1) for end in ("projected", "plain"))
        torch.testing.assert_close(change @ projection, change, atol=1e-5, rtol=1e-4)
        free += change.norm().item()
        outside += (plain - plain @ projection).norm().item()
    assert free > 1e-3
    assert outside > 1e-2, "the other network is not held"


@pytest.mark.parametrize(("share", "beta"), [(None, 0.5), (0.25, 0.25)])
def test_a_task_ends_on_the_average(share: float | None, beta: float) -> None:
    watched = Watched(host__share=share)
    end = watched.state()
    for name, tensor in end.items():
        if tensor.is_floating_point():
            expected = (1 - beta) * watched.ends["projected"][name] + beta * watched.ends["plain"][name]
            torch.testing.assert_close(tensor, expected)
    assert not torch.equal(watched.ends["projected"]["head.weight"], watched.ends["plain"]["head.weight"])


def test_head_rows_of_earlier_tasks_stay_in_spite_of_weight_decay() -> None:
    watched = Watched()
    for end in (*watched.ends.values(), watched.state()):
        assert torch.equal(end["head.weight"][:2], watched.before["head.weight"])
        assert not torch.equal(end["head.weight"][2:], watched.host.initial_net.head.weight[2:])


# ---------------------------------------------------------------- losses


def test_the_losses_of_both_networks() -> None:
    host: Any = Watched().host
    step = step_of(host)
    assert set(host.losses(step)) == {"task", "penalty", "stability"}
    assert set(host.supervised_losses(step)) == {"task", "penalty"}
    knowledge = ModelKnowledge(host.net)
    host.reset_to_initial()
    batch_step = step_of(host)
    expected = (batch_step.output.features - knowledge(batch_step.batch.x).features).square().mean()
    torch.testing.assert_close(host.distance(batch_step, knowledge, host.plasticity_support()), expected)
    logits = batch_step.output.logits[:, 2:4]
    task = nn.functional.cross_entropy(logits, batch_step.batch.y - 2)
    torch.testing.assert_close(host.losses(batch_step)["task"], task)


def test_the_penalty_holds_what_is_not_projected() -> None:
    host: Any = Watched().host
    others = host.unprojected_parameters()
    projected = {id(layer.weight) for layer in projected_layers(host.net.backbone)}
    assert {id(p) for p in others} | projected == {id(p) for p in host.net.backbone.parameters()}
    assert (host.anchor.importance > 0).any()
    torch.testing.assert_close(host.anchor.values, torch.cat([p.flatten() for p in others]))


def test_a_ratio_below_one_is_refused() -> None:
    with pytest.raises(FlashbackError, match=r"host\.null_ratio must be at least 1, not 0\.5"):
        quick_host("connector", host__null_ratio=0.5)
