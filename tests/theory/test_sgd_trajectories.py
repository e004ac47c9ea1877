"""The SGD trajectory under quadratic penalties, with Gamma_s = eta alpha_s F_s and Gamma_p = eta alpha_p F_p:

    theta_k = (I - Gamma)^k theta_0 - eta sum_j (I - Gamma)^(k-1-j) grad Lc(theta_j)
              + sum_j (I - Gamma)^(k-1-j) (Gamma_s theta_s + Gamma_p theta_p),      Gamma = Gamma_s + Gamma_p

The last bracket is a constant. The paper prints it to the power j (Eqs. 30 and 31, and the appendix), with which the
formula fails from the first step on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
import torch
from second_phase import ALPHA, Situation, gradient, in_phase_2
from torch import Tensor

from flashback.knowledge import flat
from flashback.training.step import build_optimiser, total_loss

RATE = 0.05


@dataclass
class Penalised:
    """Online EWC in phase 2, with importances that keep every factor of (I - Gamma) inside (0, 1)."""

    now: Situation
    with_plasticity: bool
    constant: Tensor | None  # a task gradient that never changes; None: the one of the task loss

    def __post_init__(self) -> None:
        self.optimiser = build_optimiser(
            replace(self.now.stage, optimisation=replace(self.now.stage.optimisation, lr=RATE, momentum=0.0))
        )
        self.task_gradients: list[Tensor] = []

    def theta(self) -> Tensor:
        return flat(self.now.parameters).detach().clone()

    def losses(self) -> Mapping[str, Tensor]:
        terms = dict(self.now.stage.losses(self.now.stage.forward(self.now.step.batch)))
        if self.constant is not None:
            terms["task"] = (flat(self.now.parameters) * self.constant).sum()
        if not self.with_plasticity:
            del terms["plasticity"]
        return terms

    def descend(self, steps: int) -> None:
        for _ in range(steps):
            self.optimiser.zero_grad()
            terms = self.losses()
            self.task_gradients.append(gradient(terms["task"], self.now.parameters))
            total_loss(terms).backward()
            self.optimiser.step()

    def gammas(self) -> tuple[Tensor, Tensor]:
        """The penalties have no factor 1/2: alpha_s = 2 strength, alpha_p = 2 flashback.alpha."""
        gamma_s = RATE * 2 * self.now.host.settings.strength * self.now.host.stable.importance
        gamma_p = RATE * 2 * ALPHA * self.now.plastic.importance
        return gamma_s, gamma_p if self.with_plasticity else torch.zeros_like(gamma_p)

    def anchor(self) -> Tensor:
        gamma_s, gamma_p = self.gammas()
        return gamma_s * self.now.host.stable.values + gamma_p * self.now.plastic.values

    def closed_form(self, start: Tensor, steps: int, as_printed: bool = False) -> Tensor:
        share = 1 - sum(self.gammas())
        memory = [share ** (steps - 1 - j) for j in range(steps)]
        learned = sum(factor * task for factor, task in zip(memory, self.task_gradients, strict=True))
        pulled = sum(factor * self.anchor() ** (j if as_printed else 1) for j, factor in enumerate(memory))
        return share**steps * start - RATE * learned + pulled


def penalised(with_plasticity: bool, task: str) -> Penalised:
    now = in_phase_2("oewc", host__strength=2.0)
    generator = torch.Generator().manual_seed(3)

    def random() -> Tensor:
        return torch.rand(now.plastic.values.shape, generator=generator, dtype=torch.float64)

    now.host.stable.importance.copy_(1.0 + 1.5 * random())
    now.plastic.importance.copy_(1.0 + 7.0 * random())
    constant = {"constant": 0.1 * (random() - 0.5), "none": torch.zeros_like(random()), "real": None}[task]
    result = Penalised(now, with_plasticity, constant)
    assert all(0 < float(extreme) < 1 for extreme in sum(result.gammas()).aminmax())
    return result


@pytest.mark.parametrize("with_plasticity", [False, True], ids=["host", "flashback"])
@pytest.mark.parametrize("task", ["constant", "real"])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_trajectory(task: str, with_plasticity: bool, steps: int) -> None:
    run = penalised(with_plasticity, task)
    start = run.theta()
    run.descend(steps)
    assert float((run.theta() - start).abs().max()) > 1e-3
    torch.testing.assert_close(run.theta(), run.closed_form(start, steps), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("with_plasticity", [False, True], ids=["host", "flashback"])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_the_printed_power_is_wrong(with_plasticity: bool, steps: int) -> None:
    """Of diagonal importances the power is that of every entry; after one step it puts 1 in the anchor's place."""
    run = penalised(with_plasticity, "constant")
    start = run.theta()
    run.descend(steps)
    off = (run.theta() - run.closed_form(start, steps, as_printed=True)).abs()
    assert float(off.median()) > 0.01
    if steps == 1:
        torch.testing.assert_close(off, (1 - run.anchor()).abs(), rtol=1e-10, atol=1e-12)


def test_a_constant_task_gradient_gives_a_geometric_series() -> None:
    """Both sums at once: [I - (I - Gamma)^k] Gamma^-1 (Gamma_s theta_s + Gamma_p theta_p - eta g)."""
    run = penalised(with_plasticity=True, task="constant")
    start, steps = run.theta(), 9
    run.descend(steps)
    gamma = sum(run.gammas())
    factor = (1 - gamma) ** steps
    end = factor * start + (1 - factor) * (run.anchor() - RATE * run.constant) / gamma
    torch.testing.assert_close(run.theta(), end, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("with_plasticity", [False, True], ids=["host", "flashback"])
def test_without_a_task_the_limit_is_the_interpolation(with_plasticity: bool) -> None:
    """Gamma^-1 (Gamma_s theta_s + Gamma_p theta_p): the stable weights alone, or between stable and primary ones."""
    run = penalised(with_plasticity, "none")
    run.descend(150)
    gamma_s, gamma_p = run.gammas()
    limit = run.anchor() / (gamma_s + gamma_p)
    torch.testing.assert_close(run.theta(), limit, rtol=0, atol=1e-9)
    stable, plastic = run.now.host.stable.values, run.now.plastic.values
    if not with_plasticity:
        torch.testing.assert_close(limit, stable)
    else:
        share = (run.theta() - stable) / (plastic - stable)
        differs = (plastic - stable).abs() > 1e-3
        torch.testing.assert_close(share[differs], (gamma_p / (gamma_s + gamma_p))[differs], rtol=1e-4, atol=1e-4)
