"""FOSTER's ingredients, each against a slow, obvious computation, and tiny runs with Flashback."""

from __future__ import annotations

import copy
import math
from functools import partial

import pytest
import second_task
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from second_task import SMALL, batch_of, check_same_logits_after_flashback, moved, some_steps, state_of

from flashback import FlashbackError, Trainer
from flashback.hosts.foster import FosterSettings, balanced_distillation, class_weights
from flashback.knowledge import Support, soft_cross_entropy
from flashback.nets import build_backbone
from flashback.nets.growing import Boosted, GrowingNet
from helpers import herd, quick_config, quick_flashback, quick_host, tiny_benchmark


def unchanged(before, module):
    return not moved(before, module)


in_second_task = partial(second_task.in_second_task, "foster")


# ---------------------------------------------------------------- class weights


@pytest.mark.parametrize(
    ("old", "exemplars", "new", "beta", "expected"),
    [
        (50, 20, 10, 0.94, (1.0508, 0.7460)),
        (50, 20, 10, 0.97, (1.0997, 0.5017)),
        (10, 200, 10, 0.98, (1.0089, 0.9911)),
        (90, 22, 10, 0.94, (1.0263, 0.7632)),
    ],
)
def test_class_weights_of_the_published_protocols(old, exemplars, new, beta, expected):
    weights = class_weights(torch.tensor([exemplars] * old + [500] * new), beta)
    assert weights[0].item() == pytest.approx(expected[0], abs=6e-5)
    assert weights[-1].item() == pytest.approx(expected[1], abs=6e-5)


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=12), st.floats(0, 0.999))
def test_class_weights_are_inverse_effective_numbers_that_sum_to_the_classes(counts, beta):
    inverse = [(1 - beta) / (1 - beta**n) for n in counts]
    expected = [len(counts) * v / sum(inverse) for v in inverse]
    weights = class_weights(torch.tensor(counts), beta)
    assert weights.tolist() == pytest.approx(expected, rel=1e-5)
    assert weights.sum().item() == pytest.approx(len(counts), rel=1e-5)


@pytest.mark.parametrize(("counts", "beta"), [([3, 50, 900], 0.0), ([40, 40, 40], 0.97)])
def test_class_weights_are_one_without_beta_or_with_equal_classes(counts, beta):
    assert torch.equal(class_weights(torch.tensor(counts), beta), torch.ones(3))


def test_a_class_without_images_does_not_break_the_weights():
    assert class_weights(torch.tensor([0, 20, 500]), 0.9).isfinite().all()


@pytest.mark.parametrize(("task", "beta"), [(1, 0.9), (2, 0.8), (3, 0.8)])
def test_alignment_weights_follow_the_images_of_the_task_and_the_list_of_betas(task, beta):
    benchmark = tiny_benchmark((2, 3, 1, 1))
    host = quick_host("foster", benchmark, host__memory_size=14, host__beta1=[0.9, 0.8])
    trainer = Trainer(host, benchmark)
    for earlier in benchmark.tasks[:task]:
        trainer.run_task(earlier)
    host.enter(benchmark.tasks[task])
    trainer.allocate(host.stages()[0])
    host.stages()[0].begin()
    old, new = len(host.task.before), len(host.task.classes)
    quota = min(12, 14 // old)
    assert host.weights.tolist() == class_weights(torch.tensor([quota] * old + [12] * new), beta).tolist()


# ---------------------------------------------------------------- balanced distillation


def test_balanced_distillation_against_a_loop():
    generator = torch.Generator().manual_seed(0)
    student, teacher = (3 * torch.randn(5, 4, generator=generator) for _ in range(2))
    weights, temperature = torch.tensor([1.6, 1.2, 0.8, 0.4]), 2.0
    total = 0.0
    for s, t in zip(student.tolist(), teacher.tolist(), strict=True):
        q = [math.exp(v / temperature) * w for v, w in zip(t, weights.tolist(), strict=True)]
        p = [math.exp(v / temperature) for v in s]
        total -= sum(a / sum(q) * math.log(b / sum(p)) for a, b in zip(q, p, strict=True))
    assert balanced_distillation(student, teacher, weights, temperature).item() == pytest.approx(total / 5, rel=1e-5)
    plain = balanced_distillation(student, teacher, torch.ones(4), temperature)
    torch.testing.assert_close(plain, soft_cross_entropy(student, teacher, temperature))


# ---------------------------------------------------------------- structure


def test_heads_of_the_boosted_resnet32_in_the_protocol_with_fifty_first_classes():
    old = GrowingNet(build_backbone("resnet32", (3, 32, 32)), 50)
    boosted = Boosted(old.backbone, old.head, 60, enhancement_rows=60)
    assert boosted.head.weight.shape == (60, 128)
    assert boosted.module.head.weight.shape == (60, 64)
    assert old.head.weight.shape == (50, 64)
    assert torch.equal(boosted.head.weight[:50, :64], old.head.weight)
    assert torch.equal(boosted.head.bias[:50], old.head.bias)
    fresh = torch.cat([boosted.head.weight[50:].flatten(), boosted.head.weight[:, 64:].flatten()])
    assert (fresh != 0).all()
    assert fresh.abs().max() <= math.sqrt(3 / 128)


def test_boosting_starts_from_the_old_network():
    run = in_second_task(stages=0)
    x = run.host.views.plain(run.benchmark.tasks[0].test.x)
    run.host.eval()
    before, module = run.host.net(x), state_of(run.host.net.backbone)
    run.trainer.allocate(run.host.stages()[0])
    assert torch.equal(run.host.stable(x).logits, before.logits)
    assert unchanged(module, run.host.net.module.backbone)
    assert all(parameter.requires_grad for parameter in run.host.net.parameters())
    assert not any(parameter.requires_grad for parameter in run.host.stable.parameters())
    run.host.eval()
    output = run.host.expanded()(x)
    assert output.features.shape[1] == 2 * before.features.shape[1]
    assert output.logits.shape[1] == output.enhanced.shape[1] == 5


@pytest.mark.parametrize("index", [0, 1])
def test_the_old_network_stands_still_in_both_stages(index):
    run = in_second_task(stages=index + 1)
    stage = run.host.stages()[index]
    old, trained = state_of(run.host.stable), state_of(run.host)
    some_steps(run, stage)
    assert unchanged(old, run.host.stable)
    changes = {name for name, tensor in run.host.state_dict().items() if not torch.equal(trained[name], tensor)}
    assert {name.split(".")[0] for name in changes} == {("net", "compression")[index]}
    assert any("running_mean" in name for name in changes)


def test_the_student_starts_as_the_old_network():
    run = in_second_task(stages=2)
    run.host.eval()
    x = run.host.views.plain(run.benchmark.tasks[1].test.x)
    student, old = run.host.compression.student(x), run.host.stable(x)
    assert torch.equal(student.features, old.features)
    torch.testing.assert_close(student.logits[:, :2], old.logits)
    assert student.logits.shape[1] == 5
    assert all(parameter.requires_grad for parameter in run.host.compression.student.parameters())


def test_the_student_becomes_the_old_network_of_the_next_task():
    benchmark = tiny_benchmark()
    host = quick_host("foster", benchmark, **SMALL)
    trainer = Trainer(host, benchmark)
    for task in benchmark.tasks[:2]:
        trainer.run_task(task)
    student = state_of(host.compression.student)
    host.enter(benchmark.tasks[2])
    trainer.allocate(host.stages()[0])
    assert unchanged(student, host.stable.model.module)
    assert host.compression.student is None
    assert host.net.head.weight.shape == (7, 128)


def test_stages_and_their_settings():
    run = in_second_task(stages=0, host__compression_epochs=3, host__compression_lr=0.5)
    boosting, compression = run.host.stages()
    assert (boosting.name, boosting.main, boosting.optimisation.weight_decay) == ("boosting", True, 0.01)
    assert (compression.name, compression.main, compression.epochs) == ("compression", False, 3)
    assert (compression.optimisation.lr, compression.optimisation.weight_decay) == (0.5, 0.0)
    assert compression.optimisation.momentum == 0.9
    run.host.task = run.benchmark.tasks[0]
    assert [stage.main for stage in run.host.stages()] == [True]
    like_main = in_second_task(stages=0).host.stages()[1]
    assert (like_main.epochs, like_main.optimisation.lr) == (boosting.epochs, boosting.optimisation.lr)


# ---------------------------------------------------------------- losses


def test_losses_of_boosting_against_their_definitions():
    run = in_second_task(host__distillation=0.7)
    some_steps(run, run.host.stages()[0], steps=2)
    batch = batch_of(run.benchmark.tasks[1].train, run.host)
    step = run.host.forward(batch)
    terms = run.host.losses(step)
    z, fe, z_s = step.output.logits, step.output.enhanced, run.host.stable(batch.x).logits
    classification = enhancement = distillation = 0.0
    for row, y in enumerate(batch.y.tolist()):
        aligned = [z[row, c].item() / run.host.weights[c].item() for c in range(5)]
        classification -= math.log(math.exp(aligned[y]) / sum(map(math.exp, aligned)))
        enhancement -= fe[row].log_softmax(0)[y].item()
        target, answer = (F.softmax(logits[row, :2] / 2, 0) for logits in (z_s, z))
        distillation -= (target * answer.log()).sum().item()
    n = len(batch)
    assert terms["task"].item() == pytest.approx(classification / n, rel=1e-4)
    assert terms["enhancement"].item() == pytest.approx(enhancement / n, rel=1e-4)
    assert terms["stability"].item() == pytest.approx(0.7 * distillation / n, rel=1e-4)
    assert list(terms) == ["task", "enhancement", "stability"]


def test_the_first_task_is_plain_cross_entropy():
    benchmark = tiny_benchmark()
    host = quick_host("foster", benchmark, **SMALL)
    step = host.forward(batch_of(benchmark.tasks[0].train, host))
    assert step.output.logits.shape[1] == 2
    assert {name: value.item() for name, value in host.losses(step).items()} == {
        "task": pytest.approx(F.cross_entropy(step.output.logits, step.batch.y).item())
    }


def test_compression_distils_the_balanced_teacher():
    run = in_second_task(stages=2)
    batch = batch_of(run.benchmark.tasks[1].train, run.host)
    stage = run.host.stages()[1]
    step = stage.forward(batch)
    terms = stage.losses(step)
    old = run.host.stable(batch.x)
    teacher = copy.deepcopy(run.host.net).eval()(old, batch.x).logits.detach()
    weights = class_weights(torch.tensor([10, 10, 12, 12, 12]), 0.97)
    q = F.softmax(teacher / 2, 1) * weights
    q = q / q.sum(1, keepdim=True)
    expected = -(q * F.log_softmax(step.output.logits / 2, 1)).sum(1).mean()
    torch.testing.assert_close(terms["compression"], expected)
    run.host.zero_grad()
    terms["compression"].backward()
    assert all(parameter.grad is not None for parameter in run.host.compression.student.parameters())
    assert all(parameter.grad is None for parameter in run.host.net.parameters())


# ---------------------------------------------------------------- knowledge


def test_distance_to_the_primary_module_and_how_often_the_old_network_runs():
    run = in_second_task(flashback=True)
    some_steps(run, run.host.stages()[0])
    knowledge = run.host.blank_knowledge()
    run.host.fill_knowledge(knowledge)
    primary = copy.deepcopy(run.host.net).eval()
    some_steps(run, run.host.stages()[0])
    batch = batch_of(run.benchmark.tasks[1].train, run.host)
    calls = []
    handle = run.host.stable.register_forward_hook(lambda *_: calls.append(1))
    step = run.host.forward(batch)
    run.host.losses(step)
    distance = run.host.weighted_distance(step, knowledge, run.host.plasticity_support())
    handle.remove()
    assert len(calls) == 1
    with torch.no_grad():
        z_p = primary(run.host.stable(batch.x), batch.x).logits
    torch.testing.assert_close(distance, soft_cross_entropy(step.output.logits, z_p, 2.0))
    assert not any(parameter.requires_grad for parameter in knowledge.parameters())


def test_both_anchors_pull_towards_their_interpolation():
    """Theorem for dynamic architectures: the two distances act as one to the mixture of both softmax outputs."""
    run = in_second_task()
    knowledge = run.host.blank_knowledge()
    some_steps(run, run.host.stages()[0])
    batch, both = batch_of(run.benchmark.tasks[1].train, run.host), Support(columns=slice(0, 2))
    step = run.host.forward(batch)
    alpha_s, alpha_p, tau = 1.0, 0.3, 2.0
    total = alpha_s * run.host.distance(step, run.host.stable, both) + alpha_p * run.host.distance(
        step, knowledge, both
    )
    (slope,) = torch.autograd.grad(total, step.output.logits)
    answers = [knowledge.logits(step.output.old, batch.x), step.output.old.logits, step.output.logits.detach()]
    y_p, y_s, y = (F.softmax(logits[:, :2] / tau, 1) for logits in answers)
    mixed = (alpha_s * y_s + alpha_p * y_p) / (alpha_s + alpha_p)
    torch.testing.assert_close(slope[:, :2], (alpha_s + alpha_p) / tau * (y - mixed) / len(batch))
    assert not slope[:, 2:].any()


def test_plastic_knowledge_is_the_module_and_its_head_and_no_larger_than_the_stable():
    run = in_second_task(flashback=True, stages=2)
    net = run.host.net
    tensors = [*net.module.backbone.state_dict().values(), *net.head.state_dict().values()]
    sizes = run.method.knowledge_bytes()
    assert sizes["plastic"] == sum(tensor.nbytes for tensor in tensors)
    assert sizes["stable"] == run.host.stable.nbytes() + run.host.memory.nbytes()
    assert sizes["plastic"] <= sizes["stable"]


def test_flashback_returns_to_the_same_logits_bit_for_bit():
    check_same_logits_after_flashback(in_second_task(flashback=True))


# ---------------------------------------------------------------- memory and evaluation


def test_exemplars_are_herded_with_the_features_of_both_branches():
    benchmark = tiny_benchmark()
    host = quick_host("foster", benchmark, **SMALL)
    trainer = Trainer(host, benchmark)
    for task in benchmark.tasks[:2]:
        trainer.run_task(task)
    host.eval()
    images = benchmark.tasks[1].train
    for c in benchmark.tasks[1].classes:
        class_images = images.x[images.y == c]
        x = host.views.plain(class_images)
        features = host.net(host.stable(x), x).features
        stored = host.memory.images[: host.memory.filled][host.memory.labels[: host.memory.filled] == c]
        assert torch.equal(stored, class_images[herd(features, 21 // 5, normalise=True)])


def test_classifiers_have_a_column_for_every_class_so_far_and_predict_only_what_was_met():
    run = in_second_task(stages=0)
    x = run.host.views.plain(run.benchmark.tasks[1].test.x)
    widths = [2, 5, 5]
    for moment, classes in enumerate(widths):
        if moment:
            run.trainer.allocate(run.host.stages()[moment - 1])
        run.host.eval()
        scores = {name: classifier(x) for name, classifier in run.host.classifiers().items()}
        assert list(scores) == ["student", "teacher"]
        for values in scores.values():
            assert values.shape == (len(x), 5)
            assert values[:, :classes].isfinite().all()
            assert (values[:, classes:] == -torch.inf).all()
        assert torch.equal(scores["student"], scores["teacher"]) == (moment < 2)


# ---------------------------------------------------------------- whole runs


@pytest.mark.parametrize("support", ["memory", *(pytest.param(s, marks=pytest.mark.slow) for s in ("host", "all"))])
def test_a_run_with_flashback_on_unequal_tasks(support):
    benchmark = tiny_benchmark((3, 1, 2))
    method = quick_flashback("foster", benchmark, flashback__support=support, **SMALL)
    trainer = Trainer(method, benchmark)
    result = trainer.run()
    stages = [(entry["task"], entry["stage"]) for entry in result.history.budget]
    later = [(task, stage) for task in (1, 2) for stage in ("phase 1", "phase 2", "compression")]
    assert stages == [(0, "learn"), *later]
    for name in ("student", "teacher"):
        matrix = result.classifiers[name]["class_incremental"]["matrix"]
        assert [len(row) for row in matrix] == [1, 2, 3]
    assert result["class_incremental"] == result.classifiers["student"]["class_incremental"]
    assert result.history.bytes["plastic"] > 0
    assert torch.bincount(method.host.memory.labels[: method.host.memory.filled]).tolist() == [3] * 6
    assert all(tensor.isfinite().all() for tensor in method.host.state_dict().values())


@pytest.mark.slow
def test_it_learns():
    benchmark = tiny_benchmark((2, 2), per_class=30, test_per_class=20)
    host = quick_host("foster", benchmark, host__memory_size=20, training__epochs=8, training__views=[])
    accuracy = Trainer(host, benchmark).run()["class_incremental"]["average_accuracy"]
    assert accuracy > 60  # chance is 25, forgetting the first task leaves 50 at best


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("beta1", 1.0),
        ("beta1", []),
        ("beta1", [0.9, -0.1]),
        ("beta2", 1.5),
        ("distillation", -1.0),
        ("temperature", 0.0),
        ("compression_epochs", 0),
        ("compression_lr", 0.0),
    ],
)
def test_settings_that_cannot_work_are_refused(key, value):
    with pytest.raises(FlashbackError, match=f"host.{key}"):
        quick_config("foster", **{f"host__{key}": value})


def test_defaults_are_the_papers():
    settings = FosterSettings()
    assert (settings.beta1, settings.beta2, settings.temperature, settings.distillation) == (0.96, 0.97, 2.0, 1.0)
    assert settings.normalise
