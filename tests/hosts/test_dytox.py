"""DyTox: its losses against slow, obvious computations, what grows, what learns, and tiny runs with Flashback."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

import pytest
import torch
from later_tasks import Answers, changed, in_later_task, made_step, slow_distillation, some_steps, state_of

from flashback import FlashbackError, Trainer
from flashback.hosts.dytox import DyToxSettings
from flashback.knowledge import Support
from flashback.nets import Backbone
from helpers import herd, quick_config, quick_flashback, quick_host, tiny_benchmark

NAME = "dytox"
SMALL: dict[str, Any] = {"host__memory_size": 28, "host__finetune_epochs": 1, "training__lr": 0.1}
in_task = partial(in_later_task, NAME, small=SMALL)


def sigmoid_loss(logits: list[float], label: int) -> float:
    """The mean over columns of the binary cross-entropy to a one-hot label."""
    terms = [math.log(1 + math.exp(-z if column == label else z)) for column, z in enumerate(logits)]
    return sum(terms) / len(terms)


# ---------------------------------------------------------------- losses


@pytest.mark.parametrize(("task", "old", "seen"), [(1, 2, 5), (2, 5, 7)])
def test_losses_against_their_definitions(task: int, old: int, seen: int) -> None:
    host: Any = in_task(task, host__divergence=0.3, host__temperature=2.0).host
    labels, width = [0, old, seen - 1, 1], host.net.backbone.width
    step = made_step(labels, seen)
    generator = torch.Generator().manual_seed(5)
    step.output.features = torch.randn(4, (task + 1) * width, generator=generator, dtype=torch.float64)
    teacher = torch.randn(4, seen, generator=generator, dtype=torch.float64)
    host.stable, host.divergence = Answers(teacher), host.divergence.double()
    classification = sum(map(sigmoid_loss, step.output.logits.tolist(), labels)) / 4
    newest = step.output.features[:, task * width :]
    divergence = 0.0
    for embedding, label in zip(newest, labels, strict=True):
        logits = host.divergence(embedding).tolist()
        assert len(logits) == 1 + seen - old
        divergence += sigmoid_loss(logits, 0 if label < old else 1 + label - old) / 4
    share = old / seen
    distillation = slow_distillation(step.output.logits, teacher, old, temperature=2.0) / old
    terms = {name: term.item() for name, term in host.losses(step).items()}
    assert terms == {
        "task": pytest.approx((1 - share) * classification),
        "stability": pytest.approx(share * distillation),
        "divergence": pytest.approx(0.3 * divergence),
    }


def test_the_first_task_has_the_classification_loss_alone() -> None:
    host: Any = quick_host(NAME, **SMALL)
    step = made_step([0, 1, 1], 2)
    expected = sum(map(sigmoid_loss, step.output.logits.tolist(), [0, 1, 1])) / 3
    terms = {name: term.item() for name, term in host.losses(step).items()}
    assert terms == {"task": pytest.approx(expected)}


def test_the_distance_is_averaged_over_its_columns() -> None:
    host: Any = in_task().host
    step, teacher = made_step([0, 1, 4], 5), made_step([0, 1, 4], 5, seed=1).output.logits
    assert host.plasticity_support() == Support(columns=slice(0, 5))
    assert host.stability_support() == Support(columns=slice(0, 2), weight=2 / 5)
    for columns in (2, 5):
        distance = host.distance(step, Answers(teacher), Support(columns=slice(0, columns)))
        expected = slow_distillation(step.output.logits, teacher, columns, temperature=1.0) / columns
        assert distance.item() == pytest.approx(expected)


def test_the_divergence_head_teaches_the_newest_token_alone() -> None:
    host: Any = in_task(2).host
    stage = host.stages()[0]
    stream = stage.stream()
    x = host.views.plain(stream.images[:6])
    step = made_step(stream.labels[:6].tolist(), 7)
    step.output = host.net(x)
    host.net.tokens.requires_grad_()
    slopes = torch.autograd.grad(host.divergence_loss(step), list(host.net.tokens), allow_unused=True)
    assert [slope is not None and bool((slope != 0).any()) for slope in slopes] == [False, False, True]


# ---------------------------------------------------------------- what grows and what learns


def test_every_task_brings_a_token_and_a_classifier() -> None:
    benchmark = tiny_benchmark((2, 3, 1), per_class=2, test_per_class=1)
    host: Any = quick_host(NAME, benchmark, host__memory_size=6)
    for task in benchmark.tasks:
        before = [token.clone() for token in host.net.tokens]
        host.enter(task)
        Trainer(host, benchmark).allocate(host.stages()[0])
        assert len(host.net.tokens) == len(host.net.head) == task.index + 1
        assert [classifier[1].out_features for classifier in host.net.head] == benchmark.sizes[: task.index + 1]
        assert all(torch.equal(*pair) for pair in zip(before, host.net.tokens, strict=False))
        logits = host.net(host.views.plain(task.test.x)).logits
        assert logits.shape[1] == task.seen.stop
    assert len(set(map(tuple, torch.stack(list(host.net.tokens)).tolist()))) == 3  # each starts as itself


def test_the_main_stage_leaves_earlier_tokens_and_classifiers_as_they_are() -> None:
    run = in_task(2)
    main = run.host.stages()[0]
    before = state_of(run.host)
    some_steps(run.host, main)
    changes = changed(before, run.host)
    assert not [
        name for name in changes if name.startswith(("net.tokens.0", "net.tokens.1", "net.head.0", "net.head.1"))
    ]
    assert {"net.tokens.2", "net.head.2.1.weight", "divergence.1.weight", "net.attention.query.weight"} <= changes
    assert any(name.startswith("net.backbone") for name in changes)
    assert not any(name.startswith("stable") for name in changes)


def test_fine_tuning_trains_all_but_the_encoder_on_equally_many_images() -> None:
    run = in_task(1)
    main, tuning = run.host.stages()
    main.end()  # herding
    run.trainer.allocate(tuning)
    counts = torch.bincount(tuning.stream().labels).tolist()
    assert counts == [28 // 5] * 5
    before = state_of(run.host)
    some_steps(run.host, tuning, every=1)
    changes = changed(before, run.host)
    assert changes == {name for name in before if name.startswith(("net.tokens", "net.head", "net.attention"))}
    assert not any(parameter.requires_grad for parameter in run.host.net.backbone.parameters())


def test_the_next_task_trains_the_encoder_again() -> None:
    run = in_task(2)
    assert all(parameter.requires_grad for parameter in run.host.net.backbone.parameters())


@pytest.mark.parametrize(("setting", "rate"), [(None, 0.01), (0.003, 0.003)])
def test_the_rate_of_fine_tuning(setting: float | None, rate: float) -> None:
    host: Any = in_task(stages=0, host__finetune_lr=setting, host__finetune_epochs=7, training__schedule="cosine").host
    main, tuning = host.stages()
    assert (main.main, tuning.main) == (True, False)
    assert tuning.epochs == 7
    assert [tuning.optimisation.rate(epoch, 7) for epoch in (0, 6)] == pytest.approx([rate, rate])


def test_the_first_task_has_no_fine_tuning() -> None:
    assert [stage.name for stage in quick_host(NAME, **SMALL).stages()] == ["learn"]


def test_exemplars_are_herded_with_the_embeddings_of_all_tasks() -> None:
    benchmark = tiny_benchmark()
    host: Any = quick_host(NAME, benchmark, **SMALL)
    host.enter(benchmark.tasks[0])
    trainer = Trainer(host, benchmark)
    trainer.run_task(benchmark.tasks[0])
    host.enter(benchmark.tasks[1])
    main = host.stages()[0]
    trainer.allocate(main)
    main.begin()
    some_steps(host, main)
    main.end()
    host.eval()
    images, labels = benchmark.tasks[1].train, host.memory.labels[: host.memory.filled]
    for c in benchmark.tasks[1].classes:
        class_images = images.x[images.y == c]
        features = host.net(host.views.plain(class_images)).features
        assert features.shape[1] == 2 * host.net.backbone.width
        assert torch.equal(
            host.memory.images[: len(labels)][labels == c], class_images[herd(features, 28 // 5, normalise=True)]
        )


# ---------------------------------------------------------------- with Flashback


def test_flashback_anchors_to_the_whole_primary_model_and_restores_the_divergence_head() -> None:
    run = in_task(flashback=True)
    phase_1, phase_2, tuning = run.method.stages()
    assert tuning.name == "balanced fine-tuning"
    before = state_of(run.host)
    some_steps(run.host, phase_1)
    assert "divergence.1.weight" in changed(before, run.host)
    primary = copy.deepcopy(run.host.net).eval()
    run.trainer.allocate(phase_2)
    phase_2.begin()
    assert not changed(before, run.host)
    x = run.host.views.plain(run.benchmark.tasks[1].test.x)
    assert torch.equal(run.method.plastic(x).logits, primary(x).logits)


@pytest.mark.parametrize("net", ["convit-small", pytest.param("resnet32", marks=pytest.mark.slow)])
def test_a_run_with_flashback_on_unequal_tasks(net: str) -> None:
    benchmark = tiny_benchmark((3, 1, 2), per_class=6, test_per_class=2)
    method = quick_flashback(NAME, benchmark, host__net=net, **SMALL)
    result = Trainer(method, benchmark).run()
    stages = [(entry["task"], entry["stage"]) for entry in result.history.budget]
    later = ("phase 1", "phase 2", "balanced fine-tuning")
    assert stages == [(0, "learn"), *((task, name) for task in (1, 2) for name in later)]
    assert torch.bincount(method.host.memory.labels[: method.host.memory.filled]).tolist() == [4] * 6
    assert all(tensor.isfinite().all() for tensor in method.host.state_dict().values())


@pytest.mark.slow
def test_it_learns() -> None:
    benchmark = tiny_benchmark((2, 2), per_class=30, test_per_class=20)
    small = {**SMALL, "training__epochs": 10, "training__views": [], "training__optimiser": "adamw"}
    host = quick_host(NAME, benchmark, **{**small, "host__net": "convit-small", "training__lr": 0.001})
    accuracy = Trainer(host, benchmark).run()["class_incremental"]["average_accuracy"]
    assert accuracy > 60  # chance is 25, forgetting the first task leaves 50 at best


# ---------------------------------------------------------------- settings


def test_defaults_are_those_of_the_publication() -> None:
    settings = DyToxSettings()
    assert (settings.divergence, settings.temperature, settings.finetune_epochs) == (0.1, 1.0, 20)
    assert settings.normalise


@pytest.mark.parametrize(("key", "value"), [("divergence", -0.1), ("temperature", 0.0), ("finetune_lr", 0.0)])
def test_settings_that_cannot_work_are_refused(key: str, value: float) -> None:
    with pytest.raises(FlashbackError, match=f"host.{key}"):
        quick_config(NAME, **{f"host__{key}": value})


def test_a_network_without_maps_is_refused() -> None:
    class Plain(Backbone):
        width = 3

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean((2, 3)).expand(-1, 3)

    host: Any = quick_host(NAME, **SMALL)
    host.net.backbone = Plain()
    with pytest.raises(FlashbackError, match="dytox takes the last maps of a network as patches, and Plain gives"):
        host.check()
