"""Flashback Learning, whole, for every host (Algorithm 1 of the paper).

The main stage of a host is split in two. Phase 1 trains the host briefly and its end state, the primary model, is read
as plastic knowledge. Then the host flashes back to where the stage began, and phase 2 trains again with one more term:

    L2 = Lc + alpha_s Ls + alpha_p Lp      (Eq. 19)

Lp is the host's own distance, called with the plastic instead of the stable knowledge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from flashback.benchmarks import Task
from flashback.config import FlashbackConfig, build, to_dict
from flashback.errors import FlashbackError, abbreviate, require, unknown
from flashback.hosts.base import DEFINE_DISTANCE, Host, copy_tensors
from flashback.hosts.stages import Stage
from flashback.knowledge import Knowledge, Support

PHASE_1, PHASE_2 = "phase 1", "phase 2"


class Flashback:
    """Wraps a host: the same stages, with the main one split into phase 1 and phase 2."""

    def __init__(self, host: Host, settings: FlashbackConfig | None = None, **changes: Any) -> None:
        require(
            isinstance(host, Host),
            f"fb.Flashback wraps a host that stands alone, not {type(host).__name__}; build one with fb.build_host",
        )
        host.check_untrained()
        self.host = host
        known = {setting.name for setting in fields(FlashbackConfig)} - {"enabled"}
        for name in changes.keys() - known:
            raise unknown("setting of flashback", name, known)
        given = host.config.flashback if settings is None else settings
        require(
            isinstance(given, FlashbackConfig),
            f"settings of flashback go by name (alpha=0.1), not {abbreviate(given)}",
        )
        self.settings = build(FlashbackConfig, {**to_dict(given), **changes, "enabled": True}, "flashback.")
        self.settings.check()
        self.settings.split(host.config.training.epochs)
        if not host.has_knowledge:
            raise FlashbackError(
                f"{host.settings.name} keeps no knowledge of earlier tasks, so flashback has nothing to attach to; "
                "run it without flashback"
            )
        require(self.has_distance or host.memory is not None, self.no_distance())
        if self.settings.support == "memory" and host.memory is None:
            raise FlashbackError(
                f"flashback.support=memory needs a host with a memory; {host.settings.name} has none, use host or all"
            )
        require(host.has_stability or self.settings.phase1_stability == 1, self.no_stability())
        self.snapshot: dict[str, Tensor] = {}
        self.plastic: Knowledge | None = None
        self.alpha = torch.zeros((), device=host.device)  # on the device, so that it may move during phase 2

    def __repr__(self) -> str:
        usual, own = to_dict(FlashbackConfig(enabled=True)), to_dict(self.settings)
        told = (f"{name}={own[name]!r}" for name in own if name in ("epochs", "alpha") or own[name] != usual[name])
        return f"Flashback({self.host.settings.name}, {', '.join(told)})"

    # ------------------------------------------------------------ what the trainer asks for

    def enter(self, task: Task) -> None:
        self.host.enter(task)
        require(self.has_distance or self.support().samples == "memory", self.no_distance())

    def stages(self) -> list[Stage]:
        """The stages of the host; from the second task on, the main one in two phases."""
        stages = self.host.stages()
        if self.host.task.index == 0:
            return stages
        main = sum(stage.main for stage in stages)
        name = self.host.settings.name
        require(main == 1, f"flashback splits the main stage of a task in two, and {name} has {main} of them, not one")
        return [phase for stage in stages for phase in (self.phases(stage) if stage.main else [stage])]

    def phases(self, main: Stage) -> list[Stage]:
        first_epochs, second_epochs = self.settings.split(main.epochs)
        if first_epochs == 0 and self.settings.alpha == 0:
            return [replace(main, epochs=second_epochs)]
        optimisation = main.optimisation
        if self.settings.phase1_schedule == "none":
            optimisation = replace(optimisation, schedule="none")

        def begin() -> None:
            main.begin()
            self.take_snapshot()

        def losses_without_plasticity(step: Any) -> Mapping[str, Tensor]:
            terms = dict(main.losses(step))
            require("stability" in terms, self.no_stability())
            return {**terms, "stability": self.settings.phase1_stability * terms["stability"]}

        def losses_with_plasticity(step: Any) -> Mapping[str, Tensor]:
            terms = dict(main.losses(step))
            if self.settings.alpha:
                terms["plasticity"] = self.alpha * self.host.weighted_distance(step, self.plastic, self.support())
            return terms

        def before_epoch_of_phase_2(epoch: int) -> None:
            main.before_epoch(epoch)
            self.set_alpha(epoch, second_epochs)

        phase_1 = replace(
            main,
            name=PHASE_1,
            epochs=first_epochs,
            optimisation=optimisation,
            begin=begin,
            end=lambda: None,
            losses=losses_without_plasticity if self.settings.phase1_stability != 1 else main.losses,
            main=False,
            key=f"{main.training_key}, {PHASE_1}",
            setup_key=main.structure_key,
        )
        # Phase 2 draws the same randomness as the host's own main stage would.
        phase_2 = replace(
            main,
            name=PHASE_2,
            epochs=second_epochs,
            allocate=self.allocate,
            begin=self.flash_back,
            end=lambda: self.finish(main),
            losses=losses_with_plasticity,
            before_epoch=before_epoch_of_phase_2,
            key=main.training_key,
            setup_key=main.structure_key,
        )
        return [phase_1, phase_2]

    @property
    def has_distance(self) -> bool:
        """Whether the host says how far outputs are from knowledge; answers to stored images need not be told."""
        return type(self.host).distance is not Host.distance

    def no_distance(self) -> str:
        return f"flashback needs a distance, and {self.host.settings.name} has none; {DEFINE_DISTANCE}"

    def no_stability(self) -> str:
        return (
            f"flashback.phase1_stability weighs the loss term 'stability', and {self.host.settings.name} has none of "
            "this name; leave it at 1"
        )

    # ------------------------------------------------------------ the parts of Algorithm 1

    def support(self) -> Support:
        """Where the plasticity distance acts: as the host declares it, on all seen columns, or on the memory alone."""
        own = self.host.plasticity_support()
        if self.settings.support == "host":
            return own
        samples = "memory" if self.settings.support == "memory" else own.samples
        columns = own.columns if own.columns == slice(None) else self.host.task.seen  # never fewer
        return replace(own, columns=columns, samples=samples)

    def take_snapshot(self) -> None:
        """The state to flash back to: everything the host mutates, after the main stage has begun."""
        self.snapshot = {name: tensor.detach().clone() for name, tensor in self.host.state_dict().items()}

    def allocate(self) -> None:
        if self.settings.alpha:
            self.plastic = self.host.blank_for(self.support()).to(self.host.device).eval()

    @torch.no_grad()
    def flash_back(self) -> None:
        """Read the plastic knowledge from the primary model, then restore the snapshot, tensor by tensor, in place."""
        require(bool(self.snapshot), "the checkpoint lacks the state to flash back to; start a new run")
        # Plastic targets answer the images of M_{t-1} (Eq. 10). Phase 1 may have replaced some of them, and phase 2
        # will give out its insertion stamps once more; so the memory goes back first.
        self.restore("memory.")
        if self.plastic is not None:
            self.host.extract(self.plastic)
            self.plastic.requires_grad_(False)
        # The paper starts phase 2 from the stable state; weights may instead start on the way to the primary ones.
        start, weights = self.settings.start, dict(self.host.named_parameters())
        primary = {name: weight.clone() for name, weight in weights.items() if start and weight.requires_grad}
        self.restore()
        for name, weight in primary.items():
            weights[name].lerp_(weight, start)
        self.snapshot = {}

    def restore(self, part: str = "") -> None:
        """Copy the snapshot back into the host, or a part of it."""
        for name, tensor in self.host.state_dict().items():
            if name.startswith(part):
                tensor.copy_(self.snapshot[name])

    def finish(self, main: Stage) -> None:
        """Phase 2 ends as the host's stage does; the plastic knowledge has served."""
        self.plastic = None
        main.end()

    def set_alpha(self, epoch: int, epochs: int) -> None:
        share = {"constant": 1.0, "rising": (epoch + 1) / epochs, "falling": 1 - epoch / epochs}
        self.alpha.fill_(self.settings.alpha * share[self.settings.alpha_schedule])

    # ------------------------------------------------------------ what a run records and saves

    def knowledge_bytes(self) -> dict[str, int]:
        plastic = self.plastic.nbytes() if self.plastic is not None else 0
        return self.host.knowledge_bytes() | {"plastic": plastic}

    def networks(self) -> list[torch.nn.Module]:
        return [self.host] if self.plastic is None else [self.host, self.plastic]

    def extra_state(self) -> dict[str, Tensor]:
        """What Flashback itself holds in the middle of a task: the snapshot, later the plastic knowledge."""
        plastic = self.plastic.state_dict() if self.plastic is not None else {}
        return {f"snapshot.{name}": tensor for name, tensor in self.snapshot.items()} | {
            f"plastic.{name}": tensor for name, tensor in plastic.items()
        }

    def load_extra_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over a saved state. The structure of the plastic knowledge stands already, if it is needed at all."""
        snapshot, plastic = (
            {name.removeprefix(part): tensor for name, tensor in state.items() if name.startswith(part)}
            for part in ("snapshot.", "plastic.")
        )
        blank = {name: torch.empty_like(tensor) for name, tensor in self.host.state_dict().items()}
        self.snapshot = blank if snapshot else {}
        copy_tensors(self.snapshot, snapshot)
        if not plastic:
            self.plastic = None
        if self.plastic is not None:
            copy_tensors(self.plastic.state_dict(), plastic)
