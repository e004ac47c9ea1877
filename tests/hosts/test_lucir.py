"""LUCIR's ingredients, each against a slow, obvious computation, and a tiny run with Flashback."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from flashback import FlashbackError, Trainer
from flashback.hosts import Step
from flashback.hosts.lucir import margin_ranking
from flashback.knowledge import Support, cosine_distance, squared_error
from flashback.nets import Output
from flashback.training.trainer import Position
from helpers import quick_flashback, quick_host, tiny_benchmark

HARSH = {"training__momentum": 0.9, "training__weight_decay": 0.1, "host__memory_size": 14, "host__finetune_epochs": 2}


def state_of(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def changed(before, module):
    return {name for name, tensor in module.state_dict().items() if not torch.equal(before[name], tensor)}


def block(task):
    return f"head.parametrizations.weight.original{task}"


def before_second_task(method, benchmark):
    """A trainer that has learned the first task and entered the second."""
    trainer = Trainer(method, benchmark)
    trainer.run_task(benchmark.tasks[0])
    method.enter(benchmark.tasks[1])
    return trainer


def begin(trainer, stage):
    trainer.allocate(stage)
    stage.begin()


def run_stage(trainer, stage, index):
    trainer.position = Position(1, index)
    trainer.run_stage(trainer.host.task, stage)


def batch_of(host, images):
    x = host.views.plain(images.x)
    return SimpleNamespace(x=x, y=images.y, raw=images.x, slots=torch.full_like(images.y, -1))


# ---------------------------------------------------------------- classifier


def test_logits_are_scaled_cosines_and_stay_within_sigma():
    benchmark = tiny_benchmark()
    host = quick_host("lucir", benchmark, **HARSH)
    Trainer(host, benchmark).run_task(benchmark.tasks[0])
    host.eval()
    sigma = host.net.head.sigma.item()
    assert sigma != 1  # it is learned
    output = host.net(host.views.plain(benchmark.tasks[0].test.x))
    vectors = torch.cat(host.net.blocks())
    expected = F.cosine_similarity(output.features[:, None], vectors[None], dim=2)
    torch.testing.assert_close(output.cosines, expected)
    torch.testing.assert_close(output.logits, sigma * expected)
    assert output.logits.shape[1] == 2
    assert output.logits.abs().max() <= abs(sigma) * (1 + 1e-6)


def test_blocks_have_the_sizes_of_the_tasks():
    host = quick_host("lucir", tiny_benchmark((2, 3, 1)), host__memory_size=14)
    for task in host.benchmark.tasks:
        host.enter(task)
    assert [len(vectors) for vectors in host.net.blocks()] == [2, 3, 1]
    assert torch.equal(host.net.head.weight, torch.cat(host.net.blocks()))


def test_main_stage_moves_only_the_own_class_vectors():
    benchmark = tiny_benchmark()
    host = quick_host("lucir", benchmark, **HARSH)
    trainer = before_second_task(host, benchmark)
    before = state_of(host.net)
    run_stage(trainer, host.stages()[0], 0)
    changes = changed(before, host.net)
    assert block(0) not in changes
    trained = {name for name, _ in host.net.backbone.named_parameters(prefix="backbone")}
    assert {block(1), "head.sigma", *trained} <= changes
    assert len(host.net.blocks()) == 2, "classes to come have no vectors yet"


def test_cross_entropy_is_over_the_classes_seen():
    benchmark = tiny_benchmark()
    host = quick_host("lucir", benchmark, **HARSH)
    trainer = before_second_task(host, benchmark)
    begin(trainer, host.stages()[0])
    host.eval()
    batch = batch_of(host, benchmark.tasks[1].train)
    losses = host.losses(host.forward(batch))
    assert set(losses) == {"task", "stability", "margin"}
    logits = host.net(batch.x).logits[:, :5]
    torch.testing.assert_close(losses["task"], F.cross_entropy(logits, batch.y))


def test_with_all_columns_classes_to_come_are_rivals():
    benchmark = tiny_benchmark()
    host = quick_host("lucir", benchmark, host__columns="all", **HARSH)
    trainer = before_second_task(host, benchmark)
    begin(trainer, host.stages()[0])
    host.eval()
    batch = batch_of(host, benchmark.tasks[1].train)
    batch.y = batch.y % 2  # as if they were of old classes, which the margin is for
    output = host.net(batch.x)
    losses = host.losses(host.forward(batch))
    torch.testing.assert_close(losses["task"], F.cross_entropy(output.logits, batch.y))
    expected = slow_margin(output.cosines.detach(), batch.y, slice(2, 7), 2, 0.5)
    assert losses["margin"].item() == pytest.approx(expected, rel=1e-5)


def test_first_task_has_cross_entropy_alone():
    host = quick_host("lucir", host__memory_size=14)
    host.allocate()
    assert set(host.losses(host.forward(batch_of(host, host.task.train)))) == {"task"}
    assert len(host.stages()) == 1


# ---------------------------------------------------------------- imprinting


def test_imprint_against_a_loop():
    benchmark = tiny_benchmark()
    host = quick_host("lucir", benchmark, **HARSH)
    trainer = before_second_task(host, benchmark)
    before = state_of(host.net)
    begin(trainer, host.stages()[0])
    assert changed(before, host.net) == {block(1)}
    old = host.net.blocks()[0]
    length = sum(vector.norm() for vector in old) / len(old)
    host.eval()
    for column, vector in zip(host.task.classes, host.net.blocks()[1], strict=True):
        images = host.task.train.x[host.task.train.y == column]
        total = torch.zeros(host.net.backbone.width)
        for image in images:
            feature = host.net.backbone(host.views.plain(image[None]))[0]
            total += feature / feature.norm()
        torch.testing.assert_close(vector.norm(), length)
        torch.testing.assert_close(vector, length * total / total.norm(), rtol=1e-4, atol=1e-6)


def test_imprint_from_training_views():
    benchmark = tiny_benchmark()
    imprints = {}
    for view in ("plain", "train"):
        host = quick_host("lucir", benchmark, host__imprint_view=view, **HARSH)
        trainer = before_second_task(host, benchmark)
        generator = host.generator.get_state()
        begin(trainer, host.stages()[0])
        imprints[view] = host.net.blocks()[1].detach().clone()
        host.generator.set_state(generator)
        statistics = {name: tensor.clone() for name, tensor in host.net.backbone.named_buffers()}
        host.train()
        host.begin()
        assert torch.equal(imprints[view], host.net.blocks()[1])
        for name, tensor in host.net.backbone.named_buffers():
            assert torch.equal(tensor, statistics[name])  # in evaluation mode
    assert not torch.equal(imprints["plain"], imprints["train"])
    torch.testing.assert_close(imprints["plain"].norm(dim=1), imprints["train"].norm(dim=1))


# ---------------------------------------------------------------- losses


def slow_margin(cosines, labels, new, hardest, margin):
    hinges = []
    for row, label in zip(cosines.tolist(), labels.tolist(), strict=True):
        if label < new.start:
            rivals = sorted(row[new.start : new.stop], reverse=True)[:hardest]
            hinges += [max(0.0, margin - row[label] + rival) for rival in rivals]
    return sum(hinges) / len(hinges) if hinges else 0.0


@pytest.mark.parametrize("hardest", [1, 2, 3])
@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_margin_ranking_against_a_loop(hardest, margin):
    generator = torch.Generator().manual_seed(hardest)
    cosines = 2 * torch.rand(20, 7, generator=generator, dtype=torch.float64) - 1
    labels = torch.randint(0, 5, (20,), generator=generator)
    new = slice(2, 5)
    assert (labels < 2).any()
    assert (labels >= 2).any()
    result = margin_ranking(cosines, labels, new, hardest, margin)
    assert result.item() == pytest.approx(slow_margin(cosines, labels, new, hardest, margin), abs=1e-12)
    assert result > 0


def test_margin_ranking_without_old_samples_is_zero_and_so_is_its_gradient():
    cosines = torch.rand(6, 5, requires_grad=True)
    ranking = margin_ranking(cosines, torch.tensor([2, 3, 4, 4, 3, 2]), slice(2, 5), 2, 0.5)
    ranking.backward()
    assert ranking == 0
    assert not cosines.grad.any()


def test_hardest_classes_are_no_more_than_the_new_ones():
    benchmark = tiny_benchmark((3, 1))
    host = quick_host("lucir", benchmark, host__hardest=2, host__margin_weight=3.0, **HARSH)
    trainer = before_second_task(host, benchmark)
    begin(trainer, host.stages()[0])
    host.eval()
    batch = batch_of(host, benchmark.tasks[0].train)
    step = host.forward(batch)
    expected = 3 * slow_margin(step.output.cosines, batch.y, slice(3, 4), 1, 0.5)
    assert host.losses(step)["margin"].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("scale", "task", "growth"), [("classes", 1, 2 / 3), ("classes", 2, 5 / 2), ("tasks", 1, 1), ("tasks", 2, 2)]
)
def test_weights_of_both_distances(scale, task, growth):
    benchmark = tiny_benchmark((2, 3, 2))
    host = quick_host("lucir", benchmark, host__scale=scale, host__lambda_base=7.0, host__memory_size=14)
    host.enter(benchmark.tasks[task])
    assert host.stability_support().weight == pytest.approx(7 * math.sqrt(growth))
    assert host.plasticity_support().weight == pytest.approx(7 / math.sqrt(task))


def test_stability_is_the_weighted_cosine_distance_to_the_old_features():
    benchmark = tiny_benchmark()
    host = quick_host("lucir", benchmark, **HARSH)
    trainer = before_second_task(host, benchmark)
    old = state_of(host.net.backbone)
    stage = host.stages()[0]
    run_stage(trainer, stage, 0)
    host.eval()
    batch = batch_of(host, benchmark.tasks[1].test)
    step = host.forward(batch)
    new_features = step.output.features
    host.net.backbone.load_state_dict(old)
    old_features = host.net(batch.x).features
    mean = torch.stack([1 - F.cosine_similarity(a, b, dim=0) for a, b in zip(new_features, old_features, strict=True)])
    expected = 5 * math.sqrt(2 / 3) * mean.mean()
    torch.testing.assert_close(host.losses(step)["stability"], expected)
    assert expected > 0


def double_step(features):
    batch = SimpleNamespace(x=None)
    return Step(batch, Output(features, features))


def holds(anchor):
    return lambda x: Output(anchor, anchor)


def test_distance_is_half_the_squared_distance_of_unit_vectors():
    host = quick_host("lucir", host__memory_size=14)
    generator = torch.Generator().manual_seed(0)
    h, anchor = torch.randn(2, 9, 6, generator=generator, dtype=torch.float64)
    distance = host.distance(double_step(h), holds(anchor), Support())
    half_squared = 0.5 * (F.normalize(h) - F.normalize(anchor)).square().sum(dim=1).mean()
    torch.testing.assert_close(distance, half_squared, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("alpha_s", "alpha_p"), [(1.0, 1.0), (3.0, 0.5)])
def test_both_anchors_pull_towards_one_point_between_them(alpha_s, alpha_p):
    """The paper's Theorem for distillation: J^T (a_s + a_p) (f - (a_s f_s + a_p f_p) / (a_s + a_p))."""
    host = quick_host("lucir", host__memory_size=14)
    generator = torch.Generator().manual_seed(1)
    h, h_s, h_p = torch.randn(3, 9, 6, generator=generator, dtype=torch.float64)
    h.requires_grad_()
    step = double_step(h)
    total = alpha_s * host.distance(step, holds(h_s), Support()) + alpha_p * host.distance(step, holds(h_p), Support())
    (gradient,) = torch.autograd.grad(total, h)
    unit, unit_s, unit_p = F.normalize(h), F.normalize(h_s), F.normalize(h_p)
    anchor = (alpha_s * unit_s + alpha_p * unit_p) / (alpha_s + alpha_p)
    pull = (alpha_s + alpha_p) * (unit - anchor).detach() / len(h)
    (expected,) = torch.autograd.grad(unit, h, pull)
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-13)


# ---------------------------------------------------------------- balanced fine-tuning


@pytest.mark.parametrize(("finetune", "tuned"), [("seen", {block(0), block(1)}), ("current", {block(1), "head.sigma"})])
def test_finetuning_moves_the_classifier_alone(finetune, tuned):
    benchmark = tiny_benchmark()
    host = quick_host("lucir", benchmark, host__finetune=finetune, **HARSH)
    trainer = before_second_task(host, benchmark)
    learn, balanced = host.stages()
    run_stage(trainer, learn, 0)
    before = state_of(host)
    run_stage(trainer, balanced, 1)
    assert changed(before, host) == {f"net.{name}" for name in tuned}
    spent = trainer.history.budget[-1]
    assert spent["images"] == 2 * host.memory.filled  # every epoch the whole memory
    labels = balanced.stream().labels
    assert torch.bincount(labels).tolist() == [14 // 5] * 5


@pytest.mark.parametrize(("finetune", "in_training_mode"), [("seen", False), ("current", True)])
def test_finetuning_sees_the_statistics_of_the_net_or_of_the_batch(finetune, in_training_mode):
    benchmark = tiny_benchmark()
    host = quick_host("lucir", benchmark, host__finetune=finetune, **HARSH)
    trainer = before_second_task(host, benchmark)
    host.train()
    with torch.no_grad():
        batch = batch_of(host, benchmark.tasks[1].train)
        before = state_of(host)
        features = host.stages()[1].forward(batch).output.features
        assert host.net.training
        assert changed(before, host) == set()  # no statistics move
        begin(trainer, host.stages()[0])
        seen = {}
        for mode in (False, True):  # a training pass moves the statistics, so it comes last
            host.train(mode)
            seen[mode] = host.net(batch.x).features
        torch.testing.assert_close(features, seen[in_training_mode])
        assert not torch.allclose(features, seen[not in_training_mode])


def test_a_finetuning_without_milestones_keeps_its_rate():
    benchmark = tiny_benchmark()
    host = quick_host("lucir", benchmark, host__finetune_milestones=(), **HARSH)
    host.enter(benchmark.tasks[1])
    balanced = host.stages()[1]
    assert {balanced.optimisation.rate(epoch, 20) for epoch in range(20)} == {0.01}


def test_replayed_knowledge_is_the_direction_of_the_features():
    """The distance of replayed knowledge is 1 - cos, the distance LUCIR has everywhere else."""
    benchmark = tiny_benchmark()
    host = quick_host("lucir", benchmark, **HARSH)
    features = torch.randn(4, host.net.backbone.width, generator=torch.Generator().manual_seed(0))
    anchor = torch.randn(4, host.net.backbone.width, generator=torch.Generator().manual_seed(1))
    first, second = (host.response(Output(x, x)) for x in (features, anchor))
    assert first.shape[1] == host.response_width()
    torch.testing.assert_close(squared_error(first, second), cosine_distance(features, anchor))


def test_less_forget_term_has_no_gradient_in_the_finetuning():
    benchmark = tiny_benchmark()
    host = quick_host("lucir", benchmark, **HARSH)
    trainer = before_second_task(host, benchmark)
    learn, balanced = host.stages()
    run_stage(trainer, learn, 0)
    trainer.allocate(balanced)
    step = balanced.forward(batch_of(host, benchmark.tasks[1].train))
    assert not host.weighted_distance(step, host.stable, host.stability_support()).requires_grad
    assert set(balanced.losses(step)) == {"task", "margin"}
    assert all(term.requires_grad for term in balanced.losses(step).values())


def test_finetuning_schedule_and_switch():
    benchmark = tiny_benchmark()
    host = quick_host("lucir", benchmark, **{**HARSH, "host__finetune_epochs": 20, "host__finetune_lr": 0.02})
    host.enter(benchmark.tasks[1])
    balanced = host.stages()[1]
    rates = [balanced.optimisation.rate(epoch, balanced.epochs) for epoch in range(20)]
    assert rates == pytest.approx([0.02] * 10 + [0.002] * 10)
    assert balanced.optimisation.momentum == 0.9
    assert not balanced.main
    none = quick_host("lucir", benchmark, host__finetune="none", **HARSH)
    none.enter(benchmark.tasks[1])
    assert [stage.name for stage in none.stages()] == ["learn"]


def test_backbone_trains_again_after_a_finetuning():
    benchmark = tiny_benchmark()
    host = quick_host("lucir", benchmark, **HARSH)
    trainer = Trainer(host, benchmark)
    for task in benchmark.tasks[:2]:
        trainer.run_task(task)
    host.enter(benchmark.tasks[2])
    trainer.allocate(host.stages()[0])
    trained = {id(parameter) for parameter in host.trained_parameters()}
    assert trained == {id(p) for p in [*host.net.backbone.parameters(), host.net.head.sigma, host.net.blocks()[2]]}


# ---------------------------------------------------------------- with Flashback


def test_flashing_back_restores_the_imprint():
    benchmark = tiny_benchmark()
    method = quick_flashback("lucir", benchmark, **HARSH)
    trainer = before_second_task(method, benchmark)
    phase_1, phase_2, balanced = method.stages()
    assert balanced.name == "balanced fine-tuning"
    begin(trainer, phase_1)
    imprinted = state_of(method.host.net)
    run_stage(trainer, phase_1, 0)
    assert block(1) in changed(imprinted, method.host.net)
    begin(trainer, phase_2)
    assert changed(imprinted, method.host.net) == set()


def test_tiny_run_with_flashback():
    benchmark = tiny_benchmark()
    runs = {}
    for flashback in (False, True):
        method = (quick_flashback if flashback else quick_host)("lucir", benchmark, **HARSH)
        events = []
        trainer = Trainer(method, benchmark, [events.append])
        runs[flashback] = trainer.run()
        plastic = {e["task"] for e in events if e["event"] == "epoch" and "plasticity" in e["losses"]}
        assert plastic == ({1, 2} if flashback else set())
        sizes = trainer.history.bytes
        assert sizes.get("plastic", 0) <= sizes["stable"]
        assert runs[flashback].history.zero_shot["linear"]["class_incremental"]
    assert runs[True].steps == runs[False].steps
    assert [len(row) for row in runs[True]["class_incremental"]["matrix"]] == [1, 2, 3]


class OnceAt:
    """A checkpointer that saves at one position."""

    def __init__(self, position):
        self.position, self.state = position, None

    def due(self, position):
        return position == self.position

    def save(self, state):
        tensors = {name: tensor.clone() for name, tensor in state.tensors.items()}
        self.state = type(state)(tensors, state.values)


def test_resuming_in_the_finetuning_equals_never_stopping():
    benchmark = tiny_benchmark()
    checkpointer = OnceAt(Position(1, 1, begun=True, epoch=0, step=1))
    host = quick_host("lucir", benchmark, **HARSH)
    Trainer(host, benchmark, checkpointer=checkpointer).run()
    resumed = quick_host("lucir", benchmark, **HARSH)
    trainer = Trainer(resumed, benchmark)
    trainer.resume(checkpointer.state)
    trainer.run()
    assert changed(state_of(host), resumed) == set()


@pytest.mark.parametrize(
    ("key", "value"),
    [("lambda_base", -1), ("hardest", 0), ("finetune_epochs", 0), ("finetune_lr", 0), ("margin", -0.1)],
)
def test_bad_settings_are_refused(key, value):
    with pytest.raises(FlashbackError, match=f"host.{key}"):
        quick_host("lucir", **{f"host__{key}": value})
