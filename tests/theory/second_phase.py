"""A host in the middle of phase 2 of its second task: stable, plastic and present weights all differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from flashback import Flashback, Trainer, build_host
from flashback.batches import Batch
from flashback.hosts import Host, Stage
from flashback.knowledge import Support, flat
from flashback.plugin import PHASE_1, PHASE_2
from helpers import quick_config, small_settings, tiny_benchmark

ALPHA = 0.5  # alpha_p: exact in the float32 in which Flashback keeps it


@dataclass
class Situation:
    host: Any
    plastic: Any
    stage: Stage  # phase 2
    step: Any
    terms: Mapping[str, Tensor]  # the named losses of phase 2, as they are descended

    @property
    def parameters(self) -> list[nn.Parameter]:
        return self.stage.parameters()

    @property
    def x(self) -> Tensor:
        x: Tensor = self.step.batch.x
        return x

    def gradient(self, *names: str) -> Tensor:
        """The gradient of some terms, by default of all of them: that of phase 2."""
        terms = [self.terms[name] for name in names or self.terms]
        return gradient(sum(terms[1:], start=terms[0]), self.parameters)

    def host_gradient(self) -> Tensor:
        """Of everything that the host alone would descend."""
        return self.gradient(*(set(self.terms) - {"plasticity"}))

    def rest_gradient(self) -> Tensor:
        """Of everything but the two distances."""
        return self.gradient(*(set(self.terms) - {"plasticity", "stability"}))

    def both_distances(self, support: Support, stable_weight: float, plastic_weight: float) -> Tensor:
        """The gradient of the host's distance to both knowledge bases on one and the same support."""
        host = self.host
        stable = host.weighted_distance(self.step, host.stable, replace(support, weight=stable_weight))
        plastic = host.weighted_distance(self.step, self.plastic, replace(support, weight=plastic_weight))
        return gradient(stable + plastic, self.parameters)

    def pulled_back(self, outputs: Tensor, direction: Tensor) -> Tensor:
        """J^T v for the Jacobian J of some outputs of the step, whatever the loss."""
        return gradient(outputs, self.parameters, direction)


def gradient(outputs: Tensor, parameters: Sequence[nn.Parameter], direction: Tensor | None = None) -> Tensor:
    parts = torch.autograd.grad(
        outputs, parameters, grad_outputs=direction, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return flat(parts)


@torch.no_grad()
def train_a_little(parameters: Iterable[nn.Parameter], generator: torch.Generator) -> None:
    """Weights as if some steps had been made."""
    for parameter in parameters:
        noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        parameter.add_(noise, alpha=0.1)


def batch_of(host: Host, stage: Stage, size: int = 9) -> Batch:
    """New images and, where the stage's stream has them, exemplars."""
    stream = stage.stream()
    rows = torch.linspace(0, len(stream) - 1, size).long()
    raw = stream.images[rows]
    return Batch(host.views.weak(raw, host.generator), stream.labels[rows], raw, stream.slots[rows])


def in_phase_2(name: str, support: str = "host", **settings: Any) -> Situation:
    """Through the real stages up to phase 2 of the second task; only the training inside them is made up."""
    config = quick_config(name, flashback=True, **{"training__epochs": 2, **small_settings(name), **settings})
    host = build_host(config, tiny_benchmark(per_class=6), "cpu").double()
    trainer, plugin = Trainer(host, host.benchmark), Flashback(host, alpha=ALPHA, support=support)
    generator = torch.Generator().manual_seed(5)
    trainer.run_task(host.benchmark.tasks[0])
    plugin.enter(host.benchmark.tasks[1])
    phase_1, phase_2 = (stage for stage in plugin.stages() if stage.name in (PHASE_1, PHASE_2))
    for phase in (phase_1, phase_2):
        trainer.allocate(phase)
        host.double()
        phase.begin()
        train_a_little(phase.parameters(), generator)
    host.train()
    phase_2.before_epoch(0)
    step = phase_2.forward(batch_of(host, phase_2))
    return Situation(host, plugin.plastic, phase_2, step, phase_2.losses(step))


def assert_equal_gradients(one: Tensor, other: Tensor) -> None:
    assert one.dtype == torch.float64
    assert float(one.norm()) > 1e-6
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
