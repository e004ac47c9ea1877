"""Dynamically expandable representation: its parts against slow, obvious computations, and tiny runs with Flashback."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from second_task import SMALL, batch_of, check_same_logits_after_flashback, in_second_task, moved, some_steps, state_of

from flashback import FlashbackError, Trainer
from flashback.batches import Batch
from flashback.hosts import Step
from flashback.hosts.der_expansion import DERExpansionSettings
from flashback.hosts.wa import align_new_rows
from flashback.knowledge import soft_cross_entropy
from flashback.nets import LinearHead, Output, untracked_batchnorm
from flashback.nets.growing import BoostedOutput
from helpers import herd, quick_config, quick_flashback, quick_host, tiny_benchmark

NAME = "der-expansion"


def structure_of(sizes, task):
    """A host that stands before the first step of a task, its structure allocated without any training."""
    benchmark = tiny_benchmark(sizes, per_class=2, test_per_class=1)
    host = quick_host(NAME, benchmark, host__memory_size=sum(sizes))
    for each in benchmark.tasks[: task + 1]:
        host.enter(each)
        Trainer(host, benchmark).allocate(host.stages()[0])
    return host


# ---------------------------------------------------------------- structure


@pytest.mark.parametrize(("task", "modules", "seen", "auxiliary"), [(1, 1, 5, 4), (2, 2, 6, 2), (3, 3, 8, 3)])
def test_modules_and_heads_grow_with_the_tasks(task, modules, seen, auxiliary):
    host = structure_of((2, 3, 1, 2), task)
    width = host.net.module.backbone.width
    assert len(host.stable.model.module.parts) == modules
    assert host.net.head.weight.shape == (seen, (modules + 1) * width)
    assert host.net.module.head.weight.shape == (auxiliary, width)  # the new classes, and one for all old ones
    assert not any(parameter.requires_grad for parameter in host.stable.parameters())
    assert all(parameter.requires_grad for parameter in host.net.parameters())
    assert sum(map(torch.numel, host.trained_parameters())) == sum(map(torch.numel, host.net.parameters()))


@pytest.mark.parametrize("learned", [1, 2])
def test_a_task_starts_from_what_the_last_one_left(learned):
    benchmark = tiny_benchmark((2, 3, 1))
    host = quick_host(NAME, benchmark, **SMALL)
    trainer = Trainer(host, benchmark)
    for task in benchmark.tasks[:learned]:
        trainer.run_task(task)
    x = host.views.plain(benchmark.tasks[0].test.x)
    host.eval()
    before, head = host.expanded()(x), copy.deepcopy(host.net.head)
    host.enter(benchmark.tasks[learned])
    trainer.allocate(host.stages()[0])
    host.eval()
    after, old, width = host.expanded()(x), head.out_features, host.net.module.backbone.width
    assert torch.equal(host.stable(x).logits, before.logits)
    assert torch.equal(after.features[:, :-width], before.features)
    assert torch.equal(after.features[:, -width:], before.features[:, -width:])  # the new module starts as the last one
    assert torch.equal(host.net.head.weight[:old, :-width], head.weight)
    assert torch.equal(host.net.head.bias[:old], head.bias)
    fresh = torch.cat([host.net.head.weight[old:].flatten(), host.net.head.weight[:, -width:].flatten()])
    assert (fresh != 0).all()
    assert fresh.abs().max() <= math.sqrt(3 / host.net.head.in_features)


def test_only_the_new_module_and_the_heads_learn():
    run = in_second_task(NAME)
    before = state_of(run.host)
    some_steps(run, run.host.stages()[0])
    changed = moved(before, run.host)
    assert {name.split(".")[0] for name in changed} == {"net"}
    assert {name for name in before if name.startswith("net.head") or name.startswith("net.module.head")} <= changed
    assert any("running_mean" in name for name in changed)
    old = run.host.task.old
    assert not torch.equal(run.host.net.head.weight[old], before["net.head.weight"][old])  # old rows go on learning


def test_stages():
    run = in_second_task(NAME, stages=0)
    assert [(stage.name, stage.main) for stage in run.host.stages()] == [("expansion", True)]
    run.host.task = run.benchmark.tasks[0]
    assert [(stage.name, stage.main) for stage in run.host.stages()] == [("learn", True)]


# ---------------------------------------------------------------- losses


def test_losses_against_their_definitions():
    host = quick_host(NAME, host__memory_size=7, host__auxiliary=0.7)
    host.enter(host.benchmark.tasks[1])
    generator, labels = torch.Generator().manual_seed(3), torch.tensor([0, 3, 1, 4, 2, 0])
    logits, enhanced = (torch.randn(6, n, generator=generator, dtype=torch.float64) for n in (5, 4))
    batch = Batch(torch.empty(0), labels, torch.empty(0), torch.full_like(labels, -1))
    terms = host.losses(Step(batch, BoostedOutput(torch.empty(0), logits, enhanced, Output(logits, logits))))
    task = auxiliary = 0.0
    for z, auxiliary_row, y in zip(logits.tolist(), enhanced.tolist(), labels.tolist(), strict=True):
        task -= math.log(math.exp(z[y]) / sum(map(math.exp, z)))
        label = 0 if y < 2 else y - 1  # classes 0 and 1 are old
        auxiliary -= math.log(math.exp(auxiliary_row[label]) / sum(map(math.exp, auxiliary_row)))
    assert {name: term.item() for name, term in terms.items()} == {
        "task": pytest.approx(task / 6, rel=1e-12),
        "auxiliary": pytest.approx(0.7 * auxiliary / 6, rel=1e-12),
    }


def test_the_step_has_the_answers_that_the_losses_look_at():
    run = in_second_task(NAME)
    batch = batch_of(run.benchmark.tasks[1].train, run.host)
    with untracked_batchnorm(run.host.net):
        output, module_output = run.host.forward(batch).output, run.host.net.module(batch.x)
    features = torch.cat([run.host.stable(batch.x).features, module_output.features], dim=1)
    assert torch.equal(output.features, features)
    assert torch.equal(output.logits, run.host.net.head(features))
    assert torch.equal(output.enhanced, module_output.logits)


def test_the_first_task_is_plain_cross_entropy():
    benchmark = tiny_benchmark()
    host = quick_host(NAME, benchmark, **SMALL)
    step = host.forward(batch_of(benchmark.tasks[0].train, host))
    assert step.output.logits.shape[1] == 2
    expected = F.cross_entropy(step.output.logits, step.batch.y).item()
    assert {name: value.item() for name, value in host.losses(step).items()} == {"task": pytest.approx(expected)}


# ---------------------------------------------------------------- weight aligning


def test_aligned_rows_have_the_mean_length_of_old_ones():
    head = LinearHead(4, 7).double()
    before = copy.deepcopy(head)
    align_new_rows(head, slice(0, 3), slice(3, 5))
    lengths = [math.sqrt(sum(w * w for w in row)) for row in before.weight.tolist()]
    factor = (sum(lengths[:3]) / 3) / (sum(lengths[3:5]) / 2)
    torch.testing.assert_close(head.weight[3:5], factor * before.weight[3:5])
    assert torch.equal(head.weight[[0, 1, 2, 5, 6]], before.weight[[0, 1, 2, 5, 6]])
    assert torch.equal(head.bias, before.bias)


@pytest.mark.parametrize("align", [True, False])
def test_rows_are_aligned_when_a_task_ends(align):
    run = in_second_task(NAME, host__align=align)
    some_steps(run, run.host.stages()[0])
    run.host.net.head.weight.data[2:] *= 3
    expected = copy.deepcopy(run.host.net.head)
    if align:
        align_new_rows(expected, slice(0, 2), slice(2, 5))
    run.host.stages()[0].end()
    assert torch.equal(run.host.net.head.weight, expected.weight)


def test_with_flashback_rows_are_aligned_after_phase_2_alone():
    run = in_second_task(NAME, flashback=True)
    phase_1, phase_2 = run.method.stages()
    some_steps(run, phase_1)
    before = state_of(run.host)
    phase_1.end()
    assert not moved(before, run.host)
    run.trainer.allocate(phase_2)
    phase_2.begin()
    run.host.net.head.weight.data[2:] *= 3
    phase_2.end()
    lengths = run.host.net.head.weight.norm(dim=1)
    torch.testing.assert_close(lengths[:2].mean(), lengths[2:].mean())


# ---------------------------------------------------------------- knowledge


def test_distance_to_the_primary_module_and_how_often_the_frozen_modules_run():
    run = in_second_task(NAME, flashback=True)
    some_steps(run, run.host.stages()[0])
    knowledge = run.host.blank_knowledge()
    run.host.fill_knowledge(knowledge)
    primary = copy.deepcopy(run.host.net).eval()
    some_steps(run, run.host.stages()[0])
    batch, calls = batch_of(run.benchmark.tasks[1].train, run.host), []
    handle = run.host.stable.register_forward_hook(lambda *_: calls.append(1))
    step = run.host.forward(batch)
    run.host.losses(step)
    distance = run.host.weighted_distance(step, knowledge, run.host.plasticity_support())
    handle.remove()
    assert len(calls) == 1
    with torch.no_grad():
        z_p = primary(run.host.stable(batch.x), batch.x).logits
    torch.testing.assert_close(distance, soft_cross_entropy(step.output.logits, z_p, 2.0))
    assert z_p.shape[1] == 5
    assert not any(parameter.requires_grad for parameter in knowledge.parameters())


def test_bytes_of_knowledge():
    run = in_second_task(NAME, flashback=True, stages=2)
    net, frozen = run.host.net, run.host.stable.model.module
    plastic = [*net.module.backbone.state_dict().values(), *net.head.state_dict().values()]
    stable = [*frozen.parts.state_dict().values(), *frozen.head.state_dict().values()]
    sizes = run.method.knowledge_bytes()
    assert sizes["plastic"] == sum(tensor.nbytes for tensor in plastic)
    assert sizes["stable"] == sum(tensor.nbytes for tensor in stable) + run.host.memory.nbytes()
    assert sizes["plastic"] <= sizes["stable"]


def test_flashback_returns_to_the_same_logits_bit_for_bit():
    check_same_logits_after_flashback(in_second_task(NAME, flashback=True))


# ---------------------------------------------------------------- memory and evaluation


def test_exemplars_are_herded_with_the_features_of_all_modules():
    benchmark = tiny_benchmark()
    host = quick_host(NAME, benchmark, **SMALL)
    trainer = Trainer(host, benchmark)
    for task in benchmark.tasks[:2]:
        trainer.run_task(task)
    host.eval()
    images = benchmark.tasks[1].train
    labels = host.memory.labels[: host.memory.filled]
    for c in benchmark.tasks[1].classes:
        class_images = images.x[images.y == c]
        features = host.expanded()(host.views.plain(class_images)).features
        assert features.shape[1] == 2 * host.net.module.backbone.width
        assert torch.equal(
            host.memory.images[: len(labels)][labels == c], class_images[herd(features, 21 // 5, normalise=True)]
        )


def test_classifier_has_a_column_for_every_class_so_far_and_predicts_only_what_was_met():
    run = in_second_task(NAME, stages=0)
    x = run.host.views.plain(run.benchmark.tasks[1].test.x)
    for classes in (2, 5):
        run.host.eval()
        scores = run.host.scores(x)
        assert scores.shape == (len(x), 5)
        assert scores[:, :classes].isfinite().all()
        assert (scores[:, classes:] == -torch.inf).all()
        run.trainer.allocate(run.host.stages()[0])


# ---------------------------------------------------------------- whole runs


@pytest.mark.parametrize("support", ["memory", *(pytest.param(s, marks=pytest.mark.slow) for s in ("host", "all"))])
def test_a_run_with_flashback_on_unequal_tasks(support):
    benchmark = tiny_benchmark((3, 1, 2))
    method = quick_flashback(NAME, benchmark, flashback__support=support, **SMALL)
    result = Trainer(method, benchmark).run()
    stages = [(entry["task"], entry["stage"]) for entry in result.history.budget]
    assert stages == [(0, "learn"), *((task, f"phase {k}") for task in (1, 2) for k in (1, 2))]
    assert result.history.bytes["plastic"] > 0
    assert torch.bincount(method.host.memory.labels[: method.host.memory.filled]).tolist() == [3] * 6
    assert all(tensor.isfinite().all() for tensor in method.host.state_dict().values())


@pytest.mark.slow
def test_it_learns():
    benchmark = tiny_benchmark((2, 2), per_class=30, test_per_class=20)
    host = quick_host(NAME, benchmark, host__memory_size=20, training__epochs=8, training__views=[])
    accuracy = Trainer(host, benchmark).run()["class_incremental"]["average_accuracy"]
    assert accuracy > 60  # chance is 25, forgetting the first task leaves 50 at best


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(("key", "value"), [("auxiliary", -0.1), ("temperature", 0.0), ("align", 0.5)])
def test_settings_that_cannot_work_are_refused(key, value):
    with pytest.raises(FlashbackError, match=f"host.{key}"):
        quick_config(NAME, **{f"host__{key}": value})


def test_defaults_are_those_of_the_method():
    settings = DERExpansionSettings()
    assert (settings.auxiliary, settings.align, settings.temperature, settings.normalise) == (1.0, True, 2.0, True)
