"""Flashback Learning for every host (Algorithm 1 of the paper).

The main stage of a host becomes two phases. Phase 1 trains the host for a few epochs; its end state, the primary model,
gives the plastic knowledge. Then the host flashes back to where the stage began, and phase 2 trains with one more term:

    L2 = Lc + alpha_s Ls + alpha_p Lp      (FL Eq. 19)

Lp is the distance that the host defines, called with the plastic instead of the stable knowledge. Other choices of the
loss are in `flashback.plasticity`.

With `flashback.teacher=running` phase 1 has no epochs, and plastic knowledge is a running average of the trained model.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from flashback.benchmarks import Task
from flashback.config import FlashbackConfig, build, to_dict
from flashback.errors import abbreviate, require, unknown
from flashback.hosts.base import Host, copy_tensors, no_stability_message
from flashback.hosts.stages import Stage, no_op
from flashback.hosts.weight_averaging import newest_share, reestimate_batchnorm
from flashback.knowledge import Knowledge, ModelKnowledge, Support, cached_outputs
from flashback.plasticity import DIVIDED, PHASE_1_WEIGHT, PlasticityLoss

PHASE_1, PHASE_2 = "phase 1", "phase 2"
STEPS = "averaged steps"  # beside the tensors of a running teacher


class Flashback:
    """A host with Flashback Learning: the same stages, the main one split into phase 1 and phase 2.

    `Trainer` and `train` take it wherever they take a host.

    Args:
        host: An untrained host with knowledge of earlier tasks.
        settings: Settings of flashback; by default those in the host's configuration.
        **changes: Single settings by name, such as alpha=0.1 or epochs=3.

    Raises:
        FlashbackError: The host is not a Host, is already trained, or keeps no knowledge that flashback can use; or a
            setting is unknown or out of range.
    """

    def __init__(self, host: Host, settings: FlashbackConfig | None = None, **changes: Any) -> None:
        require(
            isinstance(host, Host),
            f"fb.Flashback wraps a Host, not {type(host).__name__}; build one with fb.build_host",
        )
        host.check_untrained()
        self.host = host
        self.settings = merge_settings(host.config.flashback if settings is None else settings, changes)
        self.settings.split(host.config.training.epochs)  # refuses an E1 that leaves nothing for phase 2
        require(
            host.has_knowledge,
            f"{host.settings.name} {host.refuses_flashback_because}, so flashback has nothing to attach to; run it "
            "without flashback",
        )
        self.plasticity_loss = PlasticityLoss(host, self.settings)
        self.snapshot: dict[str, Tensor] = {}
        self.plastic: Knowledge | None = None
        # Tensors on the device, so that a captured CUDA graph reads their current values.
        self.alpha_now = torch.zeros((), device=host.device)
        self.teacher_steps = torch.zeros((), device=host.device)  # steps in the average of a running teacher

    def __repr__(self) -> str:
        default, values = to_dict(FlashbackConfig(enabled=True)), to_dict(self.settings)
        changed = [name for name in values if name in ("epochs", "alpha") or values[name] != default[name]]
        return f"Flashback({self.host.settings.name}, {', '.join(f'{name}={values[name]!r}' for name in changed)})"

    # ------------------------------------------------------------ Algorithm 1

    def stages(self) -> list[Stage]:
        """Return the stages of the host; from the second task on, the main one in two phases."""
        stages = self.host.stages()
        if self.host.task.index == 0:
            return stages
        main, name = sum(stage.main for stage in stages), self.host.settings.name
        require(main == 1, f"flashback splits the main stage of a task in two, and {name} has {main} of them, not one")
        return [phase for stage in stages for phase in (self.phases(stage) if stage.main else [stage])]

    def phases(self, main: Stage) -> list[Stage]:
        """Split the main stage: E1 epochs of the host's losses, flash back, E2 epochs with the plasticity loss."""
        first_epochs, second_epochs = self.settings.split(main.epochs)
        if first_epochs == 0 and not self.needs_plastic:  # the host alone
            return [replace(main, epochs=second_epochs)]
        optimisation = main.optimisation
        if self.settings.phase1_schedule == "none":
            optimisation = replace(optimisation, schedule="none")

        def begin_phase_1() -> None:
            main.begin()
            self.take_snapshot()

        def losses_of_phase_1(step: Any) -> Mapping[str, Tensor]:
            """L1 = Lc + alpha_s Ls (FL Eq. 14), with Ls scaled by `flashback.phase1_stability`."""
            terms = dict(main.losses(step))
            require("stability" in terms, no_stability_message(self.host.settings.name, *PHASE_1_WEIGHT))
            return {**terms, "stability": self.settings.phase1_stability * terms["stability"]}

        def losses_of_phase_2(step: Any) -> Mapping[str, Tensor]:
            """L2 = Lc + alpha_s Ls + alpha_p Lp (FL Eq. 19)."""
            if not self.settings.alpha:
                return main.losses(step)
            assert self.plastic is not None
            with cached_outputs(self.host.stable, self.plastic):
                terms = dict(main.losses(step))
                if self.settings.images == "divided":
                    require("stability" in terms, no_stability_message(self.host.settings.name, *DIVIDED))
                    terms["stability"] = self.plasticity_loss.stability_on_exemplars(step)
                terms["plasticity"] = self.alpha_now * self.plasticity_loss(step, self.plastic)
            return terms

        def before_epoch_of_phase_2(epoch: int) -> None:
            main.before_epoch(epoch)
            self.set_alpha(epoch, second_epochs)

        def after_step_of_phase_2(step: Any) -> None:
            main.after_step(step)
            self.move_teacher()

        phase_1 = replace(
            main,
            name=PHASE_1,
            epochs=first_epochs,
            optimisation=optimisation,
            begin=begin_phase_1,
            end=no_op,
            losses=losses_of_phase_1 if self.settings.phase1_stability != 1 else main.losses,
            main=False,  # phase 2 is the main stage
            key=f"{main.training_key}, {PHASE_1}",
            setup_key=main.structure_key,
        )
        # Phase 2 draws the same randomness as the main stage of the host alone.
        phase_2 = replace(
            main,
            name=PHASE_2,
            epochs=second_epochs,
            allocate=self.allocate_plastic,
            begin=self.flash_back,
            end=lambda: self.finish(main),
            losses=losses_of_phase_2,
            after_step=after_step_of_phase_2 if self.settings.teacher == "running" else main.after_step,
            before_epoch=before_epoch_of_phase_2,
            key=main.training_key,
            setup_key=main.structure_key,
        )
        return [phase_1, phase_2]

    def take_snapshot(self) -> None:
        """Copy the state to flash back to: everything that the host changes, after `begin` of the main stage."""
        self.snapshot = {name: tensor.detach().clone() for name, tensor in self.host.state_dict().items()}

    def allocate_plastic(self) -> None:
        """Make plastic knowledge without content, if a setting needs it."""
        if self.needs_plastic:
            self.plastic = self.plasticity_loss.blank().to(self.host.device).train()

    @torch.no_grad()
    def flash_back(self) -> None:
        """Read the plastic knowledge from the primary model, then restore the snapshot, tensor by tensor, in place.

        Raises:
            FlashbackError: The checkpoint of a resumed run has no snapshot.
        """
        require(bool(self.snapshot), "the checkpoint lacks the state to flash back to; start a new run")
        # Plastic targets belong to the memory that phase 2 starts with, M_{t-1} (FL Eq. 10). Phase 1 may have replaced
        # some of its images, and phase 2 uses the same stamps again, so the memory is restored first.
        self.restore("memory.")
        if self.plastic is not None:
            self.plasticity_loss.fill(self.plastic)
            self.plastic.requires_grad_(False)
        # The paper starts phase 2 from the stable state; `flashback.start` moves it towards the primary weights.
        share, weights = self.settings.start, dict(self.host.named_parameters())
        primary = {name: weight.clone() for name, weight in weights.items() if share and weight.requires_grad}
        self.restore()
        for name, weight in primary.items():
            weights[name].lerp_(weight, share)
        self.snapshot = {}
        self.teacher_steps.zero_()

    def move_teacher(self) -> None:
        """Move a running teacher towards the trained model, after a step."""
        if isinstance(self.plastic, ModelKnowledge):
            self.teacher_steps.add_(1)
            self.plastic.follow(self.host.net, newest_share(self.teacher_steps, self.settings.decay))

    def restore(self, prefix: str = "") -> None:
        """Copy the snapshot back into the host, or the part of it with this prefix."""
        for name, tensor in self.host.state_dict().items():
            if name.startswith(prefix):
                tensor.copy_(self.snapshot[name])

    def set_alpha(self, epoch: int, epochs: int) -> None:
        """Set alpha_p for an epoch of phase 2, by `flashback.alpha_schedule`."""
        factor = {"constant": 1.0, "rising": (epoch + 1) / epochs, "falling": 1 - epoch / epochs}
        self.alpha_now.fill_(self.settings.alpha * factor[self.settings.alpha_schedule])

    def finish(self, main: Stage) -> None:
        """Merge with the primary model if `flashback.merge` is set, drop the plastic knowledge, end the main stage."""
        if self.settings.merge:
            self.merge(self.plastic, main)
        self.plastic = None
        main.end()

    @torch.no_grad()
    def merge(self, plastic: Any, main: Stage) -> None:
        """Move the trained weights towards the primary ones by the share `flashback.merge`, and re-estimate batch norm.

        Args:
            plastic: A copy of the primary network.
            main: The main stage, whose images give the batch-norm statistics.
        """
        primary = dict(plastic.model.module.named_parameters())
        for name, weight in self.host.net.named_parameters():
            if weight.requires_grad:
                weight.lerp_(primary[name], self.settings.merge)
        reestimate_batchnorm(self.host, main)

    @property
    def needs_plastic(self) -> bool:
        """Whether phase 2 uses plastic knowledge."""
        return self.settings.alpha > 0 or self.settings.merge > 0

    def support(self) -> Support:
        """Return where the plasticity distance acts."""
        return self.plasticity_loss.support()

    # ------------------------------------------------------------ checks

    def enter(self, task: Task) -> None:
        """Start a task; the trainer calls it first."""
        self.host.enter(task)
        self.plasticity_loss.check_task()

    # ------------------------------------------------------------ state, for records and checkpoints

    def knowledge_bytes(self) -> dict[str, int]:
        """Return the bytes of stable and plastic knowledge."""
        plastic = self.plastic.nbytes() if self.plastic is not None else 0
        return self.host.knowledge_bytes() | {"plastic": plastic}

    def networks(self) -> list[torch.nn.Module]:
        """Return all modules that a step runs."""
        return [self.host] if self.plastic is None else [self.host, self.plastic]

    def extra_state(self) -> dict[str, Tensor]:
        """Return the state that is not in the host: in phase 1 the snapshot, in phase 2 the plastic knowledge."""
        plastic = dict(self.plastic.state_dict()) if self.plastic is not None else {}
        if plastic and self.settings.teacher == "running":
            plastic[STEPS] = self.teacher_steps
        return {f"snapshot.{name}": tensor for name, tensor in self.snapshot.items()} | {
            f"plastic.{name}": tensor for name, tensor in plastic.items()
        }

    def load_extra_state(self, state: Mapping[str, Tensor]) -> None:
        """Load what `extra_state` returned. Plastic knowledge is already allocated if it is needed."""
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
            steps = {STEPS: self.teacher_steps} if self.settings.teacher == "running" else {}
            copy_tensors({**self.plastic.state_dict(), **steps}, plastic)


def merge_settings(settings: FlashbackConfig, changes: Mapping[str, Any]) -> FlashbackConfig:
    """Return checked settings with single values replaced."""
    known = {setting.name for setting in fields(FlashbackConfig)} - {"enabled"}
    for name in changes.keys() - known:
        raise unknown("setting of flashback", name, known)
    require(
        isinstance(settings, FlashbackConfig),
        f"settings of flashback go by name (alpha=0.1), not {abbreviate(settings)}",
    )
    merged = build(FlashbackConfig, {**to_dict(settings), **changes, "enabled": True}, "flashback.")
    merged.check()
    return merged
