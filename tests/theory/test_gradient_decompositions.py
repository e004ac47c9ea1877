"""Theorems 1 to 4: with flashback the gradient pulls towards an interpolation of stable and plastic knowledge.

They hold as printed where stability and plasticity have the same support, and column by column elsewhere. Every
gradient is that of the losses which training descends; the right-hand sides use J^T v alone, never a loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from second_phase import ALPHA, Situation, assert_equal_gradients, gradient, in_phase_2
from torch import Tensor

from flashback.knowledge import ReplayedTargets, Support, flat
from flashback.nets.growing import BoostedOutput

STABLE = 0.75  # alpha_s where a test is free to choose it


def interpolation(stable: Tensor, plastic: Tensor, alpha_s: float, alpha_p: float = ALPHA) -> Tensor:
    return (alpha_s * stable + alpha_p * plastic) / (alpha_s + alpha_p)


# ---------------------------------------------------------------- Theorem 1: distillation


def binary(name: str) -> tuple[Situation, Tensor, Tensor, Tensor]:
    """A host with binary distillation; the sigmoids of present, stable and primary model."""
    now = in_phase_2(name)
    f, f_s, f_p = now.step.output.logits, now.host.stable(now.x).logits, now.plastic(now.x).logits
    return now, f.detach().sigmoid(), f_s.sigmoid(), f_p.sigmoid()


@pytest.mark.parametrize("name", ["lwf-mc", "icarl", "icarl-aanets"])
def test_theorem_1_as_printed_on_one_support(name: str) -> None:
    """For binary cross-entropy the sigmoids take the place of the outputs."""
    now, p, p_s, p_p = binary(name)
    seen = slice(0, now.host.task.seen.stop)
    expected = torch.zeros_like(p)
    expected[:, seen] = (p - interpolation(p_s, p_p, STABLE))[:, seen] / p[:, seen].numel()
    pull = (STABLE + ALPHA) * now.pulled_back(now.step.output.logits, expected)
    assert_equal_gradients(now.both_distances(Support(columns=seen), STABLE, ALPHA), pull)


@pytest.mark.parametrize("name", ["lwf-mc", "icarl", "icarl-aanets"])
def test_theorem_1_column_by_column_on_the_own_supports(name: str) -> None:
    """Old columns follow the stable model; new ones an interpolation of the labels and the primary model."""
    now, p, p_s, p_p = binary(name)
    task, labels = now.host.task, now.step.batch.y
    rows, seen = len(labels), task.seen.stop
    stability, plasticity, task_loss = torch.zeros_like(p), torch.zeros_like(p), torch.zeros_like(p)
    for row in range(rows):
        for column in range(seen):
            if column < task.new.start:
                stability[row, column] = (p - p_s)[row, column] / (rows * seen)
            else:
                truth = float(labels[row] == column)
                task_loss[row, column] = (p[row, column] - truth) / (rows * seen)
                plasticity[row, column] = ALPHA * (p - p_p)[row, column] / (rows * len(task.classes))
    logits = now.step.output.logits
    assert_equal_gradients(now.gradient("task"), now.pulled_back(logits, task_loss))
    assert_equal_gradients(now.host_gradient(), now.pulled_back(logits, task_loss + stability))
    assert_equal_gradients(now.gradient(), now.pulled_back(logits, task_loss + stability + plasticity))


@pytest.mark.parametrize("name", ["lwf-mc", "icarl", "icarl-aanets"])
def test_theorem_1_without_an_interpolation_between_disjoint_supports(name: str) -> None:
    """On the own supports of the host the printed form does not hold: no column has both anchors."""
    now, p, p_s, p_p = binary(name)
    expected = (p - interpolation(p_s, p_p, 1.0)) / p.numel()
    printed = now.rest_gradient() + (1.0 + ALPHA) * now.pulled_back(now.step.output.logits, expected)
    assert not torch.allclose(now.gradient(), printed, rtol=1e-3)


@pytest.mark.parametrize(
    ("name", "settings"), [("lucir", {}), ("lucir-aanets", {}), ("podnet", {"host__spatial": 0.0})]
)
def test_theorem_1_for_the_cosine_distance(name: str, settings: dict[str, float]) -> None:
    """1 - cos is half the squared distance of unit vectors (the paper's appendix), so unit features interpolate."""
    now = in_phase_2(name, **settings)
    unit = F.normalize(now.step.output.features, dim=1)
    unit_s, unit_p = (F.normalize(model(now.x).features, dim=1) for model in (now.host.stable, now.plastic))
    alpha_s = now.host.stability_support().weight
    alpha_p = ALPHA * now.host.plasticity_support().weight
    expected = (unit.detach() - interpolation(unit_s, unit_p, alpha_s, alpha_p)) / len(unit)
    pull = (alpha_s + alpha_p) * now.pulled_back(unit, expected)
    assert_equal_gradients(now.gradient(), now.rest_gradient() + pull)
    half = 0.5 * (unit - unit_s).square().sum(dim=1).mean()
    torch.testing.assert_close(now.terms["stability"], alpha_s * half, rtol=1e-9, atol=0)


# ---------------------------------------------------------------- Theorem 2: replay


@pytest.mark.parametrize("name", ["der", "der++", "xder"])
def test_theorem_2_on_the_memory(name: str) -> None:
    """The mean over n samples and C columns makes 2 / (n C) of the paper's 1/2."""
    now = in_phase_2(name)
    output, slots = now.host.replayed(now.step)
    f, alpha_s = output.logits, now.host.settings.alpha
    target = interpolation(now.host.memory["targets"][slots], now.plastic.targets[slots], alpha_s)
    pull = (alpha_s + ALPHA) * now.pulled_back(f, 2 * (f.detach() - target) / f.numel())
    assert_equal_gradients(now.gradient(), now.rest_gradient() + pull)
    stability = alpha_s * now.pulled_back(f, 2 * (f.detach() - now.host.memory["targets"][slots]) / f.numel())
    assert_equal_gradients(now.host_gradient(), now.rest_gradient() + stability)


def test_theorem_2_where_images_of_the_memory_were_replaced() -> None:
    """A slot with another image has no plastic target any more: only the others are pulled, and are the mean."""
    now = in_phase_2("der", host__minibatch=12)
    memory, (output, slots) = now.host.memory, now.host.replayed(now.step)
    overwritten_slots = slots[::3]
    memory.write(
        overwritten_slots, images=memory.images[overwritten_slots].flip(0), labels=memory.labels[overwritten_slots]
    )
    terms, f = now.stage.losses(now.step), output.logits
    there = (~torch.isin(slots, overwritten_slots)).double()[:, None]
    assert 0 < there.sum() < len(there)
    expected = 2 * there * (f.detach() - now.plastic.targets[slots]) / (there.sum() * f.shape[1])
    assert_equal_gradients(gradient(terms["plasticity"], now.parameters), ALPHA * now.pulled_back(f, expected))


def test_theorem_2_on_the_memory_of_icarl() -> None:
    """flashback.support=memory, with stable targets of the same kind for the same slots."""
    now = in_phase_2("icarl", support="memory")
    host, memory, f = now.host, now.host.memory, now.step.output.logits
    slots = now.step.batch.slots
    stable = ReplayedTargets(memory, host.response_width()).double()
    stable.fill(memory, lambda raw: host.embed(raw, host.response, host.stable.model.module))
    seen = slice(0, host.task.seen.stop)
    support = Support(columns=seen, samples="memory", weight=STABLE)
    is_stored = slots >= 0
    assert 0 < is_stored.sum() < len(slots)
    expected = torch.zeros_like(f)
    for row in torch.nonzero(is_stored).flatten().tolist():
        target = interpolation(stable.targets[slots[row]], now.plastic.targets[slots[row]], STABLE)
        expected[row, seen] = 2 * (f[row].detach() - target)[seen] / (int(is_stored.sum()) * seen.stop)
    stability = gradient(host.weighted_distance(now.step, stable, support), now.parameters)
    pull = (STABLE + ALPHA) * now.pulled_back(f, expected)
    assert_equal_gradients(stability + now.gradient("plasticity"), pull)


def test_theorem_2_without_a_stability_distance() -> None:
    """Plain replay keeps exemplars and no answers; those of the primary model pull, on the exemplars of the batch."""
    now = in_phase_2("replay")
    f, slots, seen = now.step.output.logits, now.step.batch.slots, now.host.task.seen.stop
    is_stored = slots >= 0
    assert "stability" not in now.terms
    assert 0 < is_stored.sum() < len(slots)
    expected = torch.zeros_like(f)
    for row in torch.nonzero(is_stored).flatten().tolist():
        difference = f[row].detach() - now.plastic.targets[slots[row]]
        expected[row, :seen] = 2 * difference[:seen] / (int(is_stored.sum()) * seen)
    assert_equal_gradients(now.gradient(), now.host_gradient() + ALPHA * now.pulled_back(f, expected))


@pytest.mark.parametrize("name", ["er", "agem"])
def test_theorem_2_on_draws_without_a_stability_distance(name: str) -> None:
    """ER keeps labels, A-GEM a direction that steps must not oppose; the primary model's answers to a draw pull."""
    now = in_phase_2(name)
    output, slots = now.host.replayed(now.step)
    f = output.logits
    assert "stability" not in now.terms
    expected = 2 * (f.detach() - now.plastic.targets[slots]) / f.numel()
    assert_equal_gradients(now.gradient(), now.host_gradient() + ALPHA * now.pulled_back(f, expected))


# ---------------------------------------------------------------- Theorem 3: parameter regularisation


def theta(now: Situation) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in now.parameters])


@pytest.mark.parametrize("name", ["oewc", "mas", "si"])
def test_theorem_3_for_a_single_anchor(name: str) -> None:
    """The penalties have no factor 1/2, so the paper's alphas are twice those of the settings."""
    now = in_phase_2(name)
    stable, plastic = now.host.stable, now.plastic
    if not plastic.importance.any():  # where it comes of the steps of phase 1, which are made up here
        plastic.importance.copy_(torch.rand(plastic.importance.shape, generator=torch.Generator().manual_seed(3)))
        now.terms = now.stage.losses(now.step)
    alpha_s, alpha_p = 2 * now.host.settings.strength, 2 * ALPHA
    stability = alpha_s * stable.importance * (theta(now) - stable.values)
    plasticity = alpha_p * plastic.importance * (theta(now) - plastic.values)
    assert_equal_gradients(now.gradient("stability"), stability)
    assert_equal_gradients(now.host_gradient(), now.gradient("task") + stability)
    assert_equal_gradients(now.gradient(), now.gradient("task") + stability + plasticity)
    assert_equal_gradients(now.gradient("plasticity"), plasticity)


def test_theorem_3_for_ewc() -> None:
    """One stability gradient for every earlier task; here the half is part of the penalty, as printed."""
    now = in_phase_2("ewc")
    anchors = [now.host.stable[task] for task in range(now.host.task.index)]
    stability = sum(anchor.importance * (theta(now) - anchor.values) for anchor in anchors)
    plasticity = ALPHA * now.plastic.importance * (theta(now) - now.plastic.values)
    assert_equal_gradients(now.gradient("stability"), now.host.settings.strength * stability)
    assert_equal_gradients(now.gradient("plasticity"), plasticity)


def test_theorem_3_for_caf() -> None:
    """As for EWC, over all learners; what decides whom they follow and what they forget is pulled by no anchor."""
    now = in_phase_2("caf", host__forgetting=0.1, host__co_learning=0.5)
    host, present = now.host, flat(now.host.net.parameters()).detach()
    stability = host.settings.strength * host.stable[0].importance * (present - host.stable[0].values)
    plasticity = ALPHA * now.plastic.importance * (present - now.plastic.values)
    pull = torch.zeros_like(theta(now))
    pull[: len(present)] = stability + plasticity
    assert len(pull) == len(present) + host.forget_logits.numel() + host.follow_logits.numel()
    assert_equal_gradients(now.gradient(), now.rest_gradient() + pull)
    assert_equal_gradients(now.gradient("stability", "plasticity"), pull)


def test_theorem_3_for_afec() -> None:
    """As for EWC; the empty network, trained in the same steps, and the pull towards it are part of the rest."""
    now = in_phase_2("afec", host__empty_strength=3.0)
    host, present = now.host, flat(now.host.net.parameters()).detach()
    size = len(present)  # the parameters of the network come first, those of the empty one are pulled by no anchor
    stability = host.settings.strength * host.stable[0].importance * (present - host.stable[0].values)
    plasticity = ALPHA * now.plastic.importance * (present - now.plastic.values)
    pull = torch.zeros_like(theta(now))
    pull[:size] = stability + plasticity
    assert_equal_gradients(now.gradient(), now.rest_gradient() + pull)
    expanded, backbone = host.expanded, flat(host.net.backbone.parameters()).detach()
    expected = 3.0 * expanded.importance * (backbone - expanded.values)
    assert_equal_gradients(now.gradient("convergence")[: len(backbone)], expected)


def test_theorem_3_for_pnc() -> None:
    """As for online EWC; in the place of the task loss the knowledge base descends on the active column's answers."""
    now = in_phase_2("pnc")
    stability = 2 * now.host.settings.strength * now.host.stable.importance * (theta(now) - now.host.stable.values)
    plasticity = 2 * ALPHA * now.plastic.importance * (theta(now) - now.plastic.values)
    assert_equal_gradients(now.gradient(), now.gradient("compression") + stability + plasticity)


# ---------------------------------------------------------------- Theorem 4: dynamic architectures


def softened(now: Situation, columns: slice) -> Callable[[Tensor], Tensor]:
    return lambda logits: (logits.detach()[:, columns] / now.host.settings.temperature).softmax(dim=1)


def answers(now: Situation) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of the present (expanded), the stable and the primary model."""

    def logits(knowledge: Any) -> Tensor:
        expanding = isinstance(now.step.output, BoostedOutput)
        return knowledge.logits(now.step.output.old, now.x) if expanding else knowledge(now.x).logits

    return now.step.output.logits, logits(now.host.stable), logits(now.plastic)


@pytest.mark.parametrize("name", ["foster", "wa", "bic", "lwf"])
@pytest.mark.parametrize("tau", [1.0, 2.0, 5.0])
def test_theorem_4_as_printed_on_one_support(name: str, tau: float) -> None:
    """Softmax over the columns that the stable model has, with the factor 1 / tau; also where nothing expands."""
    now = in_phase_2(name, host__temperature=tau)
    f, f_s, f_p = answers(now)
    old = now.host.task.old
    soft = softened(now, old)
    expected = torch.zeros_like(f)
    expected[:, old] = (soft(f) - interpolation(soft(f_s), soft(f_p), STABLE)) / len(f)
    pull = (STABLE + ALPHA) / tau * now.pulled_back(f, expected)
    assert_equal_gradients(now.both_distances(Support(columns=old), STABLE, ALPHA), pull)


@pytest.mark.parametrize(("name", "alpha_s"), [("foster", 1.0), ("wa", 2 / 5), ("bic", 2 / 5), ("lwf", 1.0)])
@pytest.mark.parametrize("tau", [1.0, 2.0])
def test_theorem_4_on_the_own_supports(name: str, alpha_s: float, tau: float) -> None:
    """Stability over the softmax of old columns, plasticity over that of all seen ones."""
    now = in_phase_2(name, host__temperature=tau)
    f, f_s, f_p = answers(now)
    old, seen = now.host.task.old, slice(0, now.host.task.seen.stop)
    stability, plasticity = torch.zeros_like(f), torch.zeros_like(f)
    soft_old, soft_seen = softened(now, old), softened(now, seen)
    stability[:, old] = alpha_s * (soft_old(f) - soft_old(f_s)) / (tau * len(f))
    plasticity[:, seen] = ALPHA * (soft_seen(f) - soft_seen(f_p)) / (tau * len(f))
    assert_equal_gradients(now.host_gradient(), now.rest_gradient() + now.pulled_back(f, stability))
    assert_equal_gradients(now.gradient(), now.rest_gradient() + now.pulled_back(f, stability + plasticity))


@pytest.mark.parametrize("name", ["beef", "beef-compress"])
def test_theorem_4_without_a_stability_distance(name: str) -> None:
    """BEEF keeps what it knew in frozen modules; the prototype logits of the new one follow the primary model."""
    now = in_phase_2(name)
    tau, f = now.host.settings.temperature, now.step.output.logits
    soft = softened(now, slice(None))
    assert "stability" not in now.terms
    pull = ALPHA / tau * now.pulled_back(f, (soft(f) - soft(now.plastic(now.x).logits)) / len(f))
    assert_equal_gradients(now.gradient(), now.host_gradient() + pull)


def test_theorem_4_for_expandable_representations() -> None:
    """They keep what they knew in frozen modules too; the logits of all modules joined follow the primary ones."""
    now = in_phase_2("der-expansion")
    tau, f = now.host.settings.temperature, now.step.output.logits
    soft = softened(now, slice(None))
    assert "stability" not in now.terms
    primary = now.plastic.logits(now.step.output.old, now.x)
    pull = ALPHA / tau * now.pulled_back(f, (soft(f) - soft(primary)) / len(f))
    assert_equal_gradients(now.gradient(), now.host_gradient() + pull)
