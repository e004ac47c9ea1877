"""Flashback itself: how it splits a stage, and the small policies it has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flashback import Flashback, FlashbackError, Trainer, train
from flashback.batches import Batch
from flashback.hosts import HOSTS, Host, Stage
from flashback.knowledge import ModelKnowledge, ReplayedTargets
from flashback.training.trainer import Position
from helpers import forgetting, quick_flashback, quick_host, small_settings, tiny_benchmark


def at_second_task(name: str, **settings: Any) -> tuple[Flashback, Trainer]:
    """A host that has learned its first task and has just met the second."""
    method = quick_flashback(name, **{**small_settings(name), **settings})
    trainer = Trainer(method, method.host.benchmark)
    trainer.run_task(method.host.benchmark.tasks[0])
    method.enter(method.host.benchmark.tasks[1])
    return method, trainer


def batch_of(host: Host, stage: Stage) -> Batch:
    stream = stage.stream()
    rows = torch.arange(0, len(stream), 3)
    raw = stream.images[rows]
    return Batch(host.views.plain(raw), stream.labels[rows], raw, stream.slots[rows])


@torch.no_grad()
def move(parameters: list[torch.nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.add_(torch.linspace(0.01, 0.02, parameter.numel()).view_as(parameter))


def state_of(host: Host) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in host.state_dict().items()}


# ---------------------------------------------------------------- stages


def test_the_first_task_is_left_alone() -> None:
    method = quick_flashback("lwf-mc")
    assert [stage.name for stage in method.stages()] == ["learn"]
    assert method.stages()[0].epochs == 2


def test_only_the_main_stage_is_split() -> None:
    method, _ = at_second_task("lucir")
    host_stages = method.host.stages()
    phase_1, phase_2, other = method.stages()
    assert [stage.main for stage in host_stages] == [True, False]
    assert (phase_1.name, phase_2.name, other.name) == ("phase 1", "phase 2", host_stages[1].name)
    assert other.epochs == host_stages[1].epochs
    assert (phase_1.main, phase_2.main) == (False, True)


@pytest.mark.parametrize("count", [0, 2])
def test_a_host_has_one_main_stage(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    method, _ = at_second_task("lwf-mc")
    (main,) = method.host.stages()
    monkeypatch.setattr(method.host, "stages", lambda: [replace(main, main=k < count) for k in range(2)])
    with pytest.raises(FlashbackError, match=f"lwf-mc has {count} of them, not one"):
        method.stages()


def test_phase_2_has_the_keys_of_the_host_and_phase_1_its_own() -> None:
    method, _ = at_second_task("lwf-mc")
    (main,) = method.host.stages()
    phase_1, phase_2 = method.stages()
    assert phase_2.training_key == main.training_key
    assert phase_1.structure_key == phase_2.structure_key == main.structure_key
    assert phase_1.training_key != main.training_key


@pytest.mark.parametrize(
    ("settings", "epochs"),
    [
        ({"training__epochs": 5, "flashback__epochs": 2}, (2, 3)),
        ({"training__epochs": 5, "flashback__epochs": 2, "flashback__second_epochs": 5}, (2, 5)),
        ({"training__epochs": 5, "flashback__epochs": 7, "flashback__second_epochs": 1}, (7, 1)),
        ({"training__epochs": 5, "flashback__epochs": 0}, (0, 5)),
    ],
)
def test_epochs_of_the_phases(settings: dict[str, Any], epochs: tuple[int, int]) -> None:
    method = quick_flashback("lwf-mc", **settings)
    method.enter(method.host.benchmark.tasks[1])
    assert tuple(stage.epochs for stage in method.stages()) == epochs


def test_nothing_to_do_leaves_one_stage_with_the_epochs_of_phase_2() -> None:
    method = quick_flashback("lwf-mc", flashback__epochs=0, flashback__alpha=0.0, flashback__second_epochs=3)
    method.enter(method.host.benchmark.tasks[1])
    assert [(stage.name, stage.epochs) for stage in method.stages()] == [("learn", 3)]


@pytest.mark.parametrize(("policy", "expected"), [("none", "none"), ("host", "cosine")])
def test_the_schedule_of_phase_1(policy: str, expected: str) -> None:
    method = quick_flashback("lwf-mc", training__schedule="cosine", flashback__phase1_schedule=policy)
    method.enter(method.host.benchmark.tasks[1])
    phase_1, phase_2 = method.stages()
    assert phase_1.optimisation.schedule == expected
    assert phase_2.optimisation.schedule == "cosine"
    assert replace(phase_1.optimisation, schedule="cosine") == phase_2.optimisation


def test_the_host_hears_of_every_epoch_of_both_phases() -> None:
    method, trainer = at_second_task("lwf-mc", training__epochs=3)
    heard: list[int] = []
    main = method.host.main_stage(before_epoch=heard.append, after_epoch=lambda epoch: heard.append(-epoch))
    method.host.__dict__["stages"] = lambda: [main]
    trainer.run_task(method.host.task)
    assert heard == [0, 0, 0, 0, 1, -1]


# ---------------------------------------------------------------- what Flashback refuses


@pytest.mark.parametrize(
    ("host", "changes", "sentence"),
    [
        ("finetune", {}, "finetune keeps no knowledge of earlier tasks"),
        ("lwf-mc", {"support": "memory"}, "flashback.support=memory needs a host with a memory.*lwf-mc has none"),
        ("lwf-mc", {"alpha": -1.0}, "flashback.alpha"),
        ("lwf-mc", {"epochs": 2}, "leaves nothing for phase 2"),
    ],
)
def test_refusals_come_before_any_training(host: str, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FlashbackError, match=sentence) as caught:
        Flashback(quick_host(host), **changes)
    assert "\n" not in str(caught.value)


def test_settings_may_be_given_beside_the_configuration() -> None:
    host = quick_host("lwf-mc")
    method = Flashback(host, alpha=0.5, epochs=1)
    assert (method.settings.alpha, method.settings.epochs, method.settings.enabled) == (0.5, 1, True)
    assert not host.config.flashback.enabled


# ---------------------------------------------------------------- where plasticity acts


@pytest.mark.parametrize(
    ("name", "support", "columns", "samples", "kind"),
    [
        ("icarl", "host", slice(2, 5), "all", ModelKnowledge),
        ("icarl", "all", slice(0, 5), "all", ModelKnowledge),
        ("icarl", "memory", slice(0, 5), "memory", ReplayedTargets),
        ("der", "host", slice(None), "memory", ReplayedTargets),
        ("der", "all", slice(None), "memory", ReplayedTargets),
        ("der", "memory", slice(None), "memory", ReplayedTargets),
    ],
)
def test_support(name: str, support: str, columns: slice, samples: str, kind: type) -> None:
    method, _ = at_second_task(name, flashback__support=support)
    actual = method.support()
    assert (actual.columns, actual.samples) == (columns, samples)
    method.allocate_plastic()
    assert type(method.plastic) is kind


def test_all_columns_are_something_of_their_own_for_three_hosts() -> None:
    """As the page of hosts says."""
    names = [name for name in HOSTS if HOSTS[name].has_knowledge and HOSTS[name].__module__.startswith("flashback.")]
    methods = {name: at_second_task(name, flashback__support="all")[0] for name in names}
    changed = {name for name, method in methods.items() if method.support() != method.host.plasticity_support()}
    assert changed == {"icarl", "icarl-aanets", "lwf-mc"}


def test_the_weight_of_the_host_stays_on_any_support() -> None:
    weights = set()
    for support in ("host", "all", "memory"):
        method, _ = at_second_task("lucir", flashback__support=support)
        weights.add(method.support().weight)
    assert weights == {method.host.plasticity_support().weight}
    assert weights != {1.0}


# ---------------------------------------------------------------- the losses of the phases


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0])
def test_stability_in_phase_1(factor: float) -> None:
    method, trainer = at_second_task("icarl", flashback__phase1_stability=factor)
    (main,) = method.host.stages()
    phase_1 = method.stages()[0]
    trainer.allocate(phase_1)
    phase_1.begin()
    step = phase_1.forward(batch_of(method.host, phase_1))
    terms, host_terms = phase_1.losses(step), main.losses(step)
    assert terms.keys() == host_terms.keys() == {"task", "stability"}
    assert float(host_terms["stability"].detach()) > 0
    assert torch.equal(terms["task"], host_terms["task"])
    assert torch.equal(terms["stability"], factor * host_terms["stability"])


@pytest.mark.parametrize("name", ["beef", "replay"])
def test_stability_in_phase_1_is_refused_at_once_where_there_is_none(name: str) -> None:
    host = quick_host(name, **small_settings(name))
    with pytest.raises(FlashbackError, match=f"scales the loss term 'stability', which {name} does not have"):
        Flashback(host, phase1_stability=0.5)
    Flashback(host, phase1_stability=1.0)


def test_stability_in_phase_1_is_refused_where_no_loss_has_the_name() -> None:
    """A host that does not say so is found out in the first step of phase 1."""

    class Unnamed(HOSTS["lwf-mc"]):  # type: ignore[misc]
        def losses(self, step: Any) -> Any:
            return {name.replace("stability", "held"): term for name, term in super().losses(step).items()}

    with forgetting(HOSTS):
        HOSTS.register("unnamed")(Unnamed)
        method = quick_flashback("unnamed", flashback__phase1_stability=0.5)
        with pytest.raises(FlashbackError, match="'stability', which unnamed does not have; leave it at 1"):
            train(method)
        train(quick_flashback("unnamed"))


def test_it_is_shown_in_a_line() -> None:
    host = quick_host("icarl", **small_settings("icarl"))
    method = Flashback(host, epochs=1, alpha=0.1, support="all")
    assert repr(method) == "Flashback(icarl, epochs=1, alpha=0.1, support='all')"


def in_phase_2(name: str, **settings: Any) -> tuple[Flashback, Stage]:
    method, trainer = at_second_task(name, **settings)
    phase_1, phase_2 = method.stages()[:2]
    trainer.allocate(phase_1)
    phase_1.begin()
    move(phase_1.parameters())
    trainer.allocate(phase_2)
    phase_2.begin()
    return method, phase_2


def test_phase_2_adds_alpha_times_the_distance_to_the_primary_model() -> None:
    method, phase_2 = in_phase_2("icarl", flashback__alpha=0.25)
    host = method.host
    phase_2.before_epoch(0)
    step = phase_2.forward(batch_of(host, phase_2))
    terms, host_terms = dict(phase_2.losses(step)), host.stages()[0].losses(step)
    plasticity = terms.pop("plasticity")
    assert terms.keys() == host_terms.keys()
    assert all(torch.equal(terms[name], host_terms[name]) for name in host_terms)
    logits, primary = step.output.logits, method.plastic(step.batch.x).logits  # type: ignore[misc]
    slow = [
        -(p * torch.log(q) + (1 - p) * torch.log(1 - q))
        for row in range(len(logits))
        for p, q in zip(primary[row, 2:5].sigmoid(), logits[row, 2:5].sigmoid(), strict=True)
    ]
    torch.testing.assert_close(plasticity, 0.25 * torch.stack(slow).mean())


def test_without_alpha_there_is_no_plastic_knowledge() -> None:
    method, phase_2 = in_phase_2("icarl", flashback__alpha=0.0)
    step = phase_2.forward(batch_of(method.host, phase_2))
    assert method.plastic is None
    assert phase_2.losses(step).keys() == {"task", "stability"}
    assert method.knowledge_bytes()["plastic"] == 0


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("constant", [0.5, 0.5, 0.5, 0.5]),
        ("rising", [0.125, 0.25, 0.375, 0.5]),
        ("falling", [0.5, 0.375, 0.25, 0.125]),
    ],
)
def test_how_alpha_moves_over_phase_2(policy: str, expected: list[float]) -> None:
    method, trainer = at_second_task(
        "lwf-mc", training__epochs=5, flashback__alpha=0.5, flashback__alpha_schedule=policy
    )
    seen: list[float] = []
    trainer.observers = [
        lambda event: seen.append(float(method.alpha_now)) if event.get("stage") == "phase 2" else None
    ]
    trainer.run_task(method.host.task)
    assert seen[1:] == expected  # the first event says that the stage begins


# ---------------------------------------------------------------- the flashback


@pytest.mark.parametrize("start", [0.0, 0.5, 1.0])
def test_where_phase_2_starts(start: float) -> None:
    method, trainer = at_second_task("icarl", flashback__start=start)
    host, (phase_1, phase_2) = method.host, method.stages()
    trainer.run_stage(host.task, phase_1)
    stable, primary = dict(method.snapshot), state_of(host)
    trainer.allocate(phase_2)
    phase_2.begin()
    weights = {name for name, weight in host.named_parameters() if weight.requires_grad}
    assert any(not torch.equal(stable[name], primary[name]) for name in weights)
    for name, tensor in host.state_dict().items():
        if name not in weights:
            assert torch.equal(tensor, stable[name]), name  # statistics of batch norm, memory, stable knowledge
        elif start in (0.0, 1.0):
            assert torch.equal(tensor, (stable, primary)[int(start)][name]), name
        else:
            torch.testing.assert_close(tensor, (stable[name] + primary[name]) / 2)


@pytest.mark.parametrize("start", [0.0, 0.25])
def test_weights_with_two_names_move_once(start: float) -> None:
    method, trainer = at_second_task("lwf-mc", flashback__start=start)
    host = method.host
    host.also = host.net.head  # type: ignore[attr-defined]
    phase_1, phase_2 = method.stages()
    trainer.allocate(phase_1)
    phase_1.begin()
    stable = host.net.head.weight.detach().clone()  # type: ignore[union-attr]
    move(phase_1.parameters())
    primary = host.net.head.weight.detach().clone()  # type: ignore[union-attr]
    trainer.allocate(phase_2)
    phase_2.begin()
    torch.testing.assert_close(host.net.head.weight.detach(), torch.lerp(stable, primary, start))  # type: ignore[union-attr]


def test_tensors_keep_their_addresses() -> None:
    """A captured step reads and writes where it did when it was captured."""
    method, trainer = at_second_task("icarl")
    phase_1, phase_2 = method.stages()
    trainer.allocate(phase_1)
    phase_1.begin()
    before = {name: tensor.data_ptr() for name, tensor in method.host.state_dict().items()}
    move(phase_1.parameters())
    trainer.allocate(phase_2)
    phase_2.begin()
    assert {name: tensor.data_ptr() for name, tensor in method.host.state_dict().items()} == before


def test_plastic_knowledge_is_the_end_of_phase_1() -> None:
    method, trainer = at_second_task("icarl")
    phase_1, phase_2 = method.stages()
    trainer.run_stage(method.host.task, phase_1)
    primary = {name: tensor.clone() for name, tensor in method.host.net.state_dict().items()}
    trainer.allocate(phase_2)
    phase_2.begin()
    assert isinstance(method.plastic, ModelKnowledge)
    plastic = method.plastic.model.module.state_dict()
    assert plastic.keys() == primary.keys()
    assert all(torch.equal(plastic[name], tensor) for name, tensor in primary.items())


def test_an_empty_phase_1_makes_the_stable_model_the_primary_one() -> None:
    method, trainer = at_second_task("lwf-mc", flashback__epochs=0)
    phase_1, phase_2 = method.stages()
    trainer.run_stage(method.host.task, phase_1)
    trainer.allocate(phase_2)
    phase_2.begin()
    assert isinstance(method.plastic, ModelKnowledge)
    net = method.host.net.state_dict()
    assert all(torch.equal(net[name], tensor) for name, tensor in method.plastic.model.module.state_dict().items())


def test_plastic_knowledge_and_snapshot_are_dropped_when_they_have_served() -> None:
    method, trainer = at_second_task("icarl")
    phase_1, phase_2 = method.stages()
    trainer.run_stage(method.host.task, phase_1)
    assert method.snapshot.keys() == method.host.state_dict().keys()
    trainer.move(Position(task=1, stage=1))
    trainer.run_stage(method.host.task, phase_2)
    assert method.snapshot == {}
    assert method.plastic is None
    assert method.extra_state() == {}


@pytest.mark.parametrize("in_second_phase", [False, True])
def test_own_state_goes_into_another_flashback(in_second_phase: bool) -> None:
    methods = []
    for _ in range(2):
        method, trainer = at_second_task("der")
        phases = method.stages()
        for phase in phases if in_second_phase else phases[:1]:
            trainer.allocate(phase)
            phase.begin()
            if not methods:
                move(phase.parameters())
        methods.append(method)
    one, other = methods
    state = {name: tensor.clone() for name, tensor in one.extra_state().items()}
    assert {name.split(".")[0] for name in state} == ({"plastic"} if in_second_phase else {"snapshot"})
    other.load_extra_state(state)
    extra = other.extra_state()
    assert extra.keys() == state.keys()
    assert all(torch.equal(extra[name], tensor) for name, tensor in state.items())


def test_the_budget_of_unequal_phases_is_what_was_asked_for() -> None:
    method = quick_flashback(
        "lwf-mc", tiny_benchmark((2, 2), per_class=4), flashback__epochs=3, flashback__second_epochs=2
    )
    trainer = Trainer(method, method.host.benchmark)
    trainer.run()
    spent = [(entry["task"], entry["stage"], entry["steps"]) for entry in trainer.history.budget]
    assert spent == [(0, "learn", 2), (1, "phase 1", 3), (1, "phase 2", 2)]


def test_the_flashback_goes_to_where_the_stage_had_begun() -> None:
    """After imprinting: the new class vectors of phase 2 start as those of phase 1 did."""
    method, trainer = at_second_task("lucir")
    phase_1, phase_2, _ = method.stages()
    trainer.allocate(phase_1)
    before = state_of(method.host)
    phase_1.begin()
    begun = state_of(method.host)
    assert any(not torch.equal(before[name], tensor) for name, tensor in begun.items())
    move(phase_1.parameters())
    trainer.allocate(phase_2)
    phase_2.begin()
    assert all(torch.equal(begun[name], tensor) for name, tensor in method.host.state_dict().items())


def test_the_stage_of_the_host_begins_and_ends_once() -> None:
    method, trainer = at_second_task("lwf-mc")
    calls: list[str] = []
    main = method.host.main_stage(begin=lambda: calls.append("begin"), end=lambda: calls.append("end"))
    method.host.__dict__["stages"] = lambda: [main]
    trainer.run_task(method.host.task)
    assert calls == ["begin", "end"]


def test_phase_1_begins_with_the_randomness_of_the_host() -> None:
    seeds: list[int] = []
    for build in (quick_host, quick_flashback):
        method = build("lwf-mc")
        host, (first, second, _) = method.host, method.host.benchmark.tasks
        trainer = Trainer(method, host.benchmark)
        trainer.run_task(first)
        method.enter(second)
        main = host.main_stage(begin=lambda host=host: seeds.append(host.generator.initial_seed()))
        host.__dict__["stages"] = lambda main=main: [main]
        trainer.run_task(second)
    assert len(seeds) == 2
    assert seeds[0] == seeds[1]


def test_plastic_knowledge_is_counted_though_a_later_stage_has_none() -> None:
    method = quick_flashback("lucir", **small_settings("lucir"))
    result = Trainer(method, method.host.benchmark).run()
    assert result.history.budget[-1]["stage"] == "balanced fine-tuning"
    assert result.history.bytes["plastic"] > 0
