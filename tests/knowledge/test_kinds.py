"""The kinds of knowledge: copies that stand still, quadratic forms, targets of stored images."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from flashback.hosts.replay import StoredTargets
from flashback.knowledge import (
    ImportantParameters,
    ModelKnowledge,
    ModuleKnowledge,
    ReplayedTargets,
    Support,
    flat,
)
from flashback.knowledge.importance import QuadraticForm
from flashback.memory import Memory


def small_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_model_knowledge_is_a_copy_that_stands_still() -> None:
    net = small_net()
    knowledge = ModelKnowledge(net)
    addresses = [tensor.data_ptr() for tensor in knowledge.state_dict().values()]
    knowledge.train()
    x = torch.randn(6, 3)
    before = knowledge(x)
    assert not before.requires_grad
    assert torch.equal(knowledge(x), before)  # no statistics have moved
    assert not any(parameter.requires_grad for parameter in knowledge.parameters())
    with torch.no_grad():
        net[0].weight += 1
    assert torch.equal(knowledge(x), before)
    knowledge.fill(net)
    assert torch.equal(knowledge(x), net.eval()(x))
    assert [tensor.data_ptr() for tensor in knowledge.state_dict().values()] == addresses
    assert knowledge.nbytes() == sum(tensor.nbytes for tensor in net.state_dict().values())


def test_module_knowledge_keeps_parts_by_name() -> None:
    net = small_net()
    knowledge = ModuleKnowledge({"first": net[0], "norm": net[1]})
    with torch.no_grad():
        net[0].weight += 1
    features = torch.randn(6, 3)
    assert not torch.equal(knowledge["first"](features), net[0](features))
    knowledge.fill({"first": net[0], "norm": net[1]})
    assert torch.equal(knowledge["first"](features), net[0](features))
    assert not knowledge.train()["norm"].training
    assert not any(parameter.requires_grad for parameter in knowledge.parameters())
    assert knowledge.nbytes() == sum(
        tensor.nbytes for part in (net[0], net[1]) for tensor in part.state_dict().values()
    )


def test_important_parameters_form_a_quadratic() -> None:
    net = nn.Linear(2, 3)
    knowledge = ImportantParameters(net.parameters())
    knowledge.importance.copy_(torch.arange(9.0))
    anchors = knowledge.values.tolist()
    with torch.no_grad():
        net.weight += 0.5
        net.bias -= 2.0
    now = [*net.weight.flatten().tolist(), *net.bias.tolist()]
    slow = sum(k * (a - b) ** 2 for k, (a, b) in enumerate(zip(now, anchors, strict=True)))
    distance = knowledge.distance(net.parameters())
    assert float(distance.detach()) == pytest.approx(slow, rel=1e-5)
    distance.backward()
    assert net.bias.grad is not None
    assert knowledge.nbytes() == 2 * 9 * 4
    assert torch.equal(flat(net.parameters()), torch.tensor(now))


def test_the_slope_of_the_quadratic_form() -> None:
    present = torch.randn(7, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    anchors, importance = (torch.linspace(low, 2.0, 7, dtype=torch.float64) for low in (-1.0, 0.0))
    assert torch.autograd.gradcheck(QuadraticForm.apply, (present, anchors, importance))


@pytest.fixture
def memory() -> Memory:
    store = Memory(6, (1, 2, 2))
    store.append(torch.arange(4, dtype=torch.uint8)[:, None, None, None].expand(4, 1, 2, 2), torch.arange(4))
    return store


def respond(raw: Tensor) -> Tensor:
    """Three answers to each image."""
    return raw.flatten(1)[:, :1].float() * torch.tensor([1.0, 10.0, 100.0])


def test_replayed_targets_belong_to_filled_slots(memory: Memory) -> None:
    knowledge = ReplayedTargets(memory, 3)
    knowledge.fill(memory, respond)
    assert knowledge.targets[:4].tolist() == [[k, 10.0 * k, 100.0 * k] for k in range(4)]
    assert knowledge.nbytes() == 7 * (3 * 4 + 8)


@pytest.mark.parametrize("columns", [slice(None), slice(0, 2), slice(1, 3)])
def test_only_images_that_are_still_there_count(memory: Memory, columns: slice) -> None:
    knowledge = ReplayedTargets(memory, 3)
    knowledge.fill(memory, respond)
    # Slot 1 gets another image, slot 2 another label, slot 4 its first image; -1 is a new image.
    memory.write(torch.tensor([1]), images=memory.images[1:2], labels=torch.tensor([1]))
    memory.write(torch.tensor([2]), labels=torch.tensor([0]))
    memory.append(memory.images[:1].clone(), torch.tensor([0]))
    slots = torch.tensor([-1, 0, 1, 2, 3, 4])
    responses = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    expected = [
        float((responses[row, columns] - knowledge.targets[slot, columns]).square().mean())
        for row, slot in ((1, 0), (3, 2), (4, 3))
    ]
    result = knowledge.distance(responses, slots, memory, columns)
    assert float(result) == pytest.approx(sum(expected) / 3)


def test_without_targets_the_distance_is_zero_and_has_no_pull(memory: Memory) -> None:
    knowledge = ReplayedTargets(memory, 3)  # never filled: all stamps are 0, as those of empty slots are
    responses = torch.ones(3, 3, requires_grad=True)
    distance = knowledge.distance(responses, torch.tensor([-1, 0, 5]), memory)
    distance.backward()
    assert float(distance.detach()) == 0
    assert responses.grad is not None
    assert responses.grad.abs().sum() == 0


def test_kept_images_keep_their_targets_only_in_their_slot(memory: Memory) -> None:
    """Stamps move with the images; a target of slot 0 says nothing of the image that moved there."""
    knowledge = ReplayedTargets(memory, 3)
    knowledge.fill(memory, respond)
    memory.keep(torch.tensor([0, 2]))
    responses = torch.full((2, 3), 5.0)
    expected = (responses[0] - knowledge.targets[0]).square().mean()
    assert torch.equal(knowledge.distance(responses, torch.tensor([0, 1]), memory), expected)


def test_a_support_is_everything_by_default() -> None:
    assert Support() == Support(columns=slice(None), samples="all", weight=1.0)


@pytest.mark.parametrize("columns", [slice(None), slice(0, 2)])
def test_stored_and_replayed_targets_have_one_distance(columns: slice) -> None:
    memory = Memory(6, (1, 2, 2), {"targets": ((3,), torch.float32)})
    images = torch.arange(4, dtype=torch.uint8)[:, None, None, None].expand(4, 1, 2, 2)
    memory.append(images, torch.arange(4), targets=respond(images))
    replayed = ReplayedTargets(memory, 3)
    replayed.fill(memory, respond)
    responses, slots = torch.randn(3, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([3, 1, 0])
    stored = StoredTargets().distance(responses, slots, memory, columns)
    expected = sum(
        float((responses[row, columns] - respond(images)[slot, columns]).square().mean())
        for row, slot in enumerate(slots.tolist())
    )
    assert float(stored) == pytest.approx(expected / 3)
    assert float(stored) == pytest.approx(float(replayed.distance(responses, slots, memory, columns)))
    assert StoredTargets().nbytes() == 0
