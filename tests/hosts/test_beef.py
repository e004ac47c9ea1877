"""The ingredients of BEEF and BEEF-Compress, each against a slow, obvious computation, and tiny runs with Flashback."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import second_task
import torch
import torch.nn.functional as F
from second_task import batch_of, moved, some_steps, state_of

from flashback import FlashbackError, Trainer
from flashback.knowledge import soft_cross_entropy
from flashback.nets import LinearHead, Output
from flashback.nets.growing import Concatenation, EnergyNet, EnergyOutput, Fusion
from flashback.nets.small import SmallCNN
from helpers import herd, quick_config, quick_flashback, quick_host, tiny_benchmark

BOTH = ["beef", "beef-compress"]
SMALL = {**second_task.SMALL, "host__energy": 0.1}


def in_second_task(name="beef", **settings):
    return second_task.in_second_task(name, **{**SMALL, **settings})


def structure_of(name, sizes, task):
    """A host that stands before the first step of a task, its structure allocated without any training."""
    benchmark = tiny_benchmark(sizes, per_class=2, test_per_class=1)
    host = quick_host(name, benchmark, host__memory_size=sum(sizes))
    trainer = Trainer(host, benchmark)
    for each in benchmark.tasks[: task + 1]:
        host.enter(each)
        stages = host.stages()
        for stage in stages if each.index < task else stages[:1]:
            trainer.allocate(stage)
    return host


def shaken(module):
    """All parameters and statistics of a module as random as those of a trained one."""
    generator = torch.Generator().manual_seed(5)
    statistics = [buffer for name, buffer in module.named_buffers() if "running" in name]
    for tensor in [*module.parameters(), *statistics]:
        tensor.data = torch.rand(tensor.shape, generator=generator) / 4 + 0.05
    return module


# ---------------------------------------------------------------- prototypes


def test_sizes_in_the_protocol_with_fifty_first_classes():
    host = structure_of("beef", (50, 10, 10, 10), task=3)
    assert host.net.backward == 3
    assert host.net.head.weight.shape == (13, 64)
    assert host.net.unknown.weight.shape == (80, 64)
    assert len(host.fusion.scale) == len(host.fusion.shift) == 3
    assert sorted(set(host.net.pseudo_labels.tolist())) == list(range(13))
    assert host.old.module.head.weight.shape == (70, 3 * 64)
    assert host.folded().head.weight.shape == (80, 4 * 64)


def test_the_compressed_variant_has_one_backward_prototype_and_one_calibration_pair():
    host = structure_of("beef-compress", (50, 10, 10, 10), task=3)
    assert host.net.head.weight.shape == (11, 64)
    assert host.net.unknown.weight.shape == (80, 64)
    assert host.fusion.scale.shape == host.fusion.shift.shape == (1,)
    assert host.old.module.head.weight.shape == (70, 64)
    assert host.net.pseudo_labels.tolist() == [0] * 70 + list(range(1, 11))


@pytest.mark.parametrize(("task", "expected"), [(0, [0, 1]), (1, [0, 0, 1]), (2, [0, 0, 1, 2, 3, 4])])
def test_pseudo_labels_of_unequal_tasks(task, expected):
    """An image of an earlier task i has label i, one of the k-th new class t + k."""
    assert structure_of("beef", (2, 1, 3), task).net.pseudo_labels.tolist() == expected


def random_answer(rows=6, old=3, new=2):
    generator = torch.Generator().manual_seed(1)
    u, f = (2 * torch.randn(rows, n, generator=generator) for n in (2 + new, old + new))
    return EnergyOutput(torch.zeros(rows, 1), u, f), torch.tensor([0, 1, 1, 3, 4, 4])  # class 2 does not occur


def test_task_loss_divides_backward_logits_and_takes_pseudo_labels():
    host = quick_host("beef", host__alignment=1.7, host__memory_size=14)
    host.net = EnergyNet(SmallCNN(1), [0, 0, 1], 2)
    answer, labels = random_answer()
    step = SimpleNamespace(output=answer, generated=None, batch=SimpleNamespace(y=labels))
    columns, expected = [0, 0, 1, 2, 3], 0.0
    for row, y in zip(answer.logits.tolist(), labels.tolist(), strict=True):
        aligned = [value / 1.7 if c < 2 else value for c, value in enumerate(row)]
        expected -= math.log(math.exp(aligned[columns[y]]) / sum(map(math.exp, aligned)))
    terms = host.losses(step)
    assert {name: value.item() for name, value in terms.items()} == {"task": pytest.approx(expected / 6, rel=1e-5)}


@pytest.mark.parametrize("compat", [False, True])
def test_energy_loss_asks_the_forward_prototype_of_the_class(compat):
    host = quick_host("beef", host__compat=compat, host__memory_size=14)
    host.net = EnergyNet(SmallCNN(1), [0, 0, 1], 2)
    answer, labels = random_answer()
    columns, expected = [0, 0, 1, 2, 3], 0.0
    for row, y in enumerate(labels.tolist()):
        blanked = {columns[other] for other in labels.tolist()} if compat else {columns[y]}
        u = [0.0 if c in blanked else value for c, value in enumerate(answer.logits[row].tolist())]
        z = [*u, *answer.unknown[row].tolist()]
        expected -= math.log(math.exp(z[4 + y]) / sum(map(math.exp, z)))
    assert host.energy_loss(answer, labels).item() == pytest.approx(expected / len(labels), rel=1e-5)


def test_energy_targets_lie_behind_the_known_columns(monkeypatch):
    host = structure_of("beef", (50, 10, 10, 10), task=3)
    seen = []
    monkeypatch.setattr("flashback.hosts.beef.cross_entropy", lambda _, targets: seen.append(targets))
    host.energy_loss(EnergyOutput(torch.zeros(80, 64), torch.zeros(80, 13), torch.zeros(80, 80)), torch.arange(80))
    assert seen[0].tolist() == list(range(13, 93))


# ---------------------------------------------------------------- generated images


def test_generated_images_against_plain_langevin_steps():
    run = in_second_task(host__sampling_rate=0.7, host__sampling_noise=0.3)
    net, x = run.host.net, run.host.views.plain(run.benchmark.tasks[1].train.x[:6])
    state = run.host.generator.get_state()
    generated = run.host.generate(x)
    run.host.generator.set_state(state)
    upside_down = [[[row[::-1] for row in channel[::-1]] for channel in image] for image in x.tolist()]
    expected = torch.tensor(upside_down)
    net.eval()
    for _ in range(3):
        image = expected.clone().requires_grad_()
        output = net(image)
        p = F.softmax(torch.cat([output.logits, output.unknown], 1), 1)
        p[:, output.logits.shape[1] :].sum().log().backward()
        expected = image.detach() - 0.7 * image.grad
        expected = expected + 0.3 * torch.randn(x.shape, generator=run.host.generator)
    torch.testing.assert_close(generated, expected)
    assert not generated.requires_grad


def test_generating_moves_only_pixels():
    run = in_second_task()
    before = state_of(run.host)
    run.host.zero_grad()
    x = run.host.views.plain(run.benchmark.tasks[1].train.x)
    original = x.clone()
    run.host.generate(x)
    assert torch.equal(x, original)
    assert not moved(before, run.host)
    assert all(parameter.grad is None for parameter in run.host.parameters())
    assert run.host.net.training
    with torch.no_grad():
        run.host.generate(x)


@pytest.mark.parametrize(("energy", "passes"), [(0.1, 2), (0.0, 1)])
def test_generated_images_pass_in_training_mode_and_only_if_they_count(energy, passes):
    run = in_second_task(host__energy=energy)
    counter = next(b for name, b in run.host.net.named_buffers() if "num_batches_tracked" in name)
    before = counter.item()
    step = run.host.forward(batch_of(run.benchmark.tasks[1].train, run.host))
    assert counter.item() == before + passes
    assert set(run.host.losses(step)) == ({"task", "energy"} if energy else {"task"})


def test_the_energy_term_has_its_weight():
    run = in_second_task(host__energy=0.25)
    step = run.host.forward(batch_of(run.benchmark.tasks[1].train, run.host))
    expected = 0.25 * run.host.energy_loss(step.generated, step.batch.y)
    torch.testing.assert_close(run.host.losses(step)["energy"], expected)


# ---------------------------------------------------------------- expansion and fusion


@pytest.mark.parametrize("name", BOTH)
def test_expansion_starts_from_the_first_module_and_leaves_old_ones_alone(name):
    run = in_second_task(name, stages=0)
    first = state_of(run.host.net.backbone)
    run.trainer.allocate(run.host.stages()[0])
    assert not moved(first, run.host.net.backbone)
    assert not moved(first, run.host.old.module.first)
    old, fusion = state_of(run.host.old), state_of(run.host.fusion)
    some_steps(run, run.host.stages()[0])
    assert not moved(old, run.host.old)
    assert not moved(fusion, run.host.fusion)
    assert any("running_mean" in key for key in moved(first, run.host.net.backbone))


def test_a_later_module_starts_from_the_first_one_too():
    benchmark = tiny_benchmark((2, 2, 1))
    host = quick_host("beef", benchmark, **SMALL)
    trainer = Trainer(host, benchmark)
    trainer.run_task(benchmark.tasks[0])
    first = state_of(host.net.backbone)
    trainer.run_task(benchmark.tasks[1])
    second = state_of(host.net.backbone)
    host.enter(benchmark.tasks[2])
    trainer.allocate(host.stages()[0])
    assert not moved(first, host.net.backbone)
    assert not moved(first, host.old.module.parts[0])
    assert not moved(second, host.old.module.parts[1])
    assert moved(second, host.net.backbone)


def test_fusion_adds_calibrated_backward_logits_to_old_ones():
    fusion = shaken(Fusion([0, 0, 1]))
    generator = torch.Generator().manual_seed(2)
    old = Output(torch.randn(5, 4, generator=generator), torch.randn(5, 3, generator=generator))
    new = Output(torch.randn(5, 2, generator=generator), torch.randn(5, 4, generator=generator))
    fused = fusion(old, new)
    for row in range(5):
        for c, group in enumerate([0, 0, 1]):
            raised = (1 + fusion.scale[group]) * new.logits[row, group] + fusion.shift[group]
            assert fused.logits[row, c].item() == pytest.approx((old.logits[row, c] + raised).item(), rel=1e-5)
    assert torch.equal(fused.logits[:, 3:], new.logits[:, 2:])
    assert torch.equal(fused.features, torch.cat([old.features, new.features], 1))
    zero = Fusion([0, 0, 1])(old, new)
    assert torch.equal(zero.logits[:, :3], old.logits + new.logits[:, [0, 0, 1]])


def test_folding_keeps_the_logits():
    x = torch.randn(6, 1, 12, 12, generator=torch.Generator().manual_seed(3))
    old = Concatenation([SmallCNN(1)], LinearHead(64, 2))
    for groups in ([0, 0], [0, 0, 1, 1, 1]):  # twice: a folded network is folded again
        net, fusion = EnergyNet(SmallCNN(1), groups, 3), Fusion(groups)
        for module in (old, net, fusion):
            shaken(module).eval()
        unfolded = fusion(old(x), net(x))
        old = fusion.folded(old, net).eval()
        folded = old(x)
        assert torch.equal(folded.features, unfolded.features)
        torch.testing.assert_close(folded.logits, unfolded.logits)
    assert old.head.weight.shape == (8, 192)


def test_the_next_task_inherits_the_fused_network():
    run = in_second_task(stages=2)
    some_steps(run, run.host.stages()[1])
    run.host.eval()
    x = run.host.views.plain(run.benchmark.tasks[1].test.x)
    before = run.host.expanded()(x)
    run.method.enter(run.benchmark.tasks[2])
    run.trainer.allocate(run.host.stages()[0])
    after = run.host.old(x)
    torch.testing.assert_close(after.logits, before.logits)
    assert torch.equal(after.features, before.features)


@pytest.mark.parametrize("name", BOTH)
def test_fusion_trains_the_calibration_alone(name):
    run = in_second_task(name, stages=2, host__fusion_lr=0.2, host__fusion_epochs=4)
    fusion = run.host.stages()[1]
    assert (fusion.name, fusion.main, fusion.epochs, fusion.optimisation.lr) == ("fusion", False, 4, 0.2)
    assert fusion.optimisation.weight_decay == 0.01
    before = state_of(run.host)
    some_steps(run, fusion)
    assert moved(before, run.host) == {"fusion.scale", "fusion.shift"}
    run.host.zero_grad()
    step = fusion.forward(batch_of(run.benchmark.tasks[1].train, run.host))
    terms = fusion.losses(step)
    torch.testing.assert_close(terms["task"], F.cross_entropy(step.output.logits, step.batch.y))
    terms["task"].backward()
    assert {key for key, weight in run.host.named_parameters() if weight.grad is not None} == {
        "fusion.scale",
        "fusion.shift",
    }
    run.host.eval()
    torch.testing.assert_close(step.output.logits, run.host.expanded()(step.batch.x).logits)


def test_the_balanced_set_has_all_exemplars_and_as_many_new_images_of_each_class():
    run = in_second_task(host__memory_size=14, benchmark=tiny_benchmark((2, 3, 2)))
    stream, memory, new = run.host.balanced_stream(), run.host.memory, run.benchmark.tasks[1].train
    assert torch.bincount(stream.labels).tolist() == [7] * 5
    assert sorted(stream.slots[stream.slots >= 0].tolist()) == list(range(memory.filled))
    fresh = stream.slots < 0
    selection = [(new.x == image).flatten(1).all(1).nonzero().item() for image in stream.images[fresh]]
    assert len(set(selection)) == len(selection) == 21
    assert new.y[selection].tolist() == stream.labels[fresh].tolist()
    run.host.generator.manual_seed(99)
    assert torch.equal(run.host.balanced_stream().images, stream.images)
    run.host.config = replace(run.host.config, seed=1)
    assert not torch.equal(run.host.balanced_stream().images, stream.images)


def test_compression_distils_the_fused_network_into_the_old_module():
    run = in_second_task("beef-compress", stages=3)
    stage = run.host.stages()[2]
    assert (stage.name, stage.optimisation.weight_decay) == ("compression", 0.0)
    assert torch.equal(run.host.compression.weights, torch.ones(5))
    run.host.eval()
    x = run.host.views.plain(run.benchmark.tasks[1].test.x)
    student, old = run.host.compression.student(x), run.host.old(x)
    assert torch.equal(student.features, old.features)
    torch.testing.assert_close(student.logits[:, :2], old.logits)
    teacher = run.host.expanded()(x).logits.detach()
    run.host.train()
    step = stage.forward(batch_of(run.benchmark.tasks[1].test, run.host))
    torch.testing.assert_close(stage.losses(step)["compression"], soft_cross_entropy(step.output.logits, teacher, 2.0))
    before = state_of(run.host)
    some_steps(run, stage)
    assert {key.split(".")[0] for key in moved(before, run.host)} == {"compression"}
    student = state_of(run.host.compression.student.backbone)
    run.method.enter(run.benchmark.tasks[2])
    run.trainer.allocate(run.host.stages()[0])
    assert not moved(student, run.host.old.module.first)
    assert not moved(student, run.host.net.backbone)
    assert len(run.host.old.module.parts) == 1
    assert run.host.compression.student is None


# ---------------------------------------------------------------- knowledge


def test_plasticity_is_a_distance_of_raw_prototype_logits():
    run = in_second_task(host__alignment=3.0)
    expansion = run.host.stages()[0]
    knowledge = run.host.blank_knowledge()
    some_steps(run, expansion)
    run.host.fill_knowledge(knowledge)
    run.host.eval()
    batch = batch_of(run.benchmark.tasks[1].train, run.host)
    z_p = run.host.net(batch.x).logits.detach()
    some_steps(run, expansion)
    step = run.host.forward(batch)
    distance = run.host.weighted_distance(step, knowledge, run.host.plasticity_support())
    assert z_p.shape[1] == 1 + 3
    torch.testing.assert_close(distance, soft_cross_entropy(step.output.logits, z_p, 2.0))
    assert "stability" not in run.host.losses(step)


@pytest.mark.parametrize("name", BOTH)
def test_plastic_knowledge_is_module_and_known_prototypes_and_no_larger_than_the_stable(name):
    run = in_second_task(name, flashback=True, stages=2)
    net, old = run.host.net, run.host.old
    sizes = run.method.knowledge_bytes()
    parts = [*net.backbone.state_dict().values(), *net.head.state_dict().values()]
    assert sizes["plastic"] == sum(tensor.nbytes for tensor in parts)
    frozen = [*old.module.parts.state_dict().values(), *old.module.head.state_dict().values()]
    assert sizes["stable"] == sum(tensor.nbytes for tensor in frozen) + run.host.memory.nbytes()
    assert sizes["plastic"] <= sizes["stable"]


@pytest.mark.parametrize("name", BOTH)
def test_flashback_returns_to_the_same_logits_bit_for_bit(name):
    run = in_second_task(name, flashback=True)
    x = run.host.views.plain(run.benchmark.tasks[1].test.x)
    run.host.eval()
    before, module_output = run.host.expanded()(x), run.host.net(x)
    phase_1, phase_2 = run.method.stages()[:2]
    some_steps(run, phase_1)
    run.host.eval()
    primary = run.host.net(x)
    assert not torch.equal(primary.logits, module_output.logits)
    run.trainer.allocate(phase_2)
    phase_2.begin()
    run.host.eval()
    assert torch.equal(run.host.expanded()(x).logits, before.logits)
    assert torch.equal(run.host.net(x).unknown, module_output.unknown)
    assert torch.equal(run.method.plastic(x).logits, primary.logits)


# ---------------------------------------------------------------- whole runs


def test_exemplars_are_herded_with_the_features_of_all_modules():
    benchmark = tiny_benchmark((2, 1, 2))
    host = quick_host("beef", benchmark, **SMALL)
    Trainer(host, benchmark).run()
    host.eval()
    images = benchmark.tasks[2].train
    for c in benchmark.tasks[2].classes:
        class_images = images.x[images.y == c]
        x = host.views.plain(class_images)
        features = torch.cat([*(part(x) for part in host.old.module.parts), host.net.backbone(x)], 1)
        assert features.shape[1] == 3 * 64
        filled = host.memory.filled
        stored = host.memory.images[:filled][host.memory.labels[:filled] == c]
        assert torch.equal(stored, class_images[herd(features, 21 // 5, normalise=True)])


@pytest.mark.parametrize("name", BOTH)
def test_classifiers_have_a_column_for_every_class_so_far_at_any_moment(name):
    run = in_second_task(name, stages=0)
    x = run.host.views.plain(run.benchmark.tasks[1].test.x)
    expected = {"beef": ["linear"], "beef-compress": ["student", "teacher"]}[name]
    for moment in range(len(run.host.stages()) + 1):
        if moment:
            run.trainer.allocate(run.host.stages()[moment - 1])
        classes = 5 if moment else 2
        run.host.eval()
        scores = {key: classifier(x) for key, classifier in run.host.classifiers().items()}
        assert list(scores) == expected
        for values in scores.values():
            assert values.shape == (len(x), 5)
            assert values[:, :classes].isfinite().all()
            assert (values[:, classes:] == -torch.inf).all()


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("support", ["memory", *(pytest.param(s, marks=pytest.mark.slow) for s in ("host", "all"))])
def test_a_run_with_flashback_on_unequal_tasks(name, support):
    benchmark = tiny_benchmark((3, 1, 2))
    method = quick_flashback(name, benchmark, flashback__support=support, **SMALL)
    result = Trainer(method, benchmark).run()
    stages = [(entry["task"], entry["stage"]) for entry in result.history.budget]
    compression = ["compression"] if name == "beef-compress" else []
    later = ["phase 1", "phase 2", "fusion", *compression]
    assert stages == [(0, "learn"), *((task, stage) for task in (1, 2) for stage in later)]
    for classifier in result.classifiers.values():
        assert [len(row) for row in classifier["class_incremental"]["matrix"]] == [1, 2, 3]
    assert result.history.bytes["plastic"] > 0
    assert torch.bincount(method.host.memory.labels[: method.host.memory.filled]).tolist() == [3] * 6
    assert all(tensor.isfinite().all() for tensor in method.host.state_dict().values())


@pytest.mark.slow
@pytest.mark.parametrize("name", BOTH)
def test_it_learns(name):
    benchmark = tiny_benchmark((2, 2), per_class=30, test_per_class=20)
    host = quick_host(name, benchmark, host__memory_size=20, training__epochs=8, training__views=[])
    accuracy = Trainer(host, benchmark).run()["class_incremental"]["average_accuracy"]
    assert accuracy > 60  # chance is 25, forgetting the first task leaves 50 at best


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("alignment", 0.0),
        ("energy", -0.1),
        ("sampling_steps", -1),
        ("sampling_rate", -1.0),
        ("sampling_noise", -1.0),
        ("fusion_epochs", 0),
        ("fusion_lr", 0.0),
        ("temperature", 0.0),
    ],
)
@pytest.mark.parametrize("name", BOTH)
def test_settings_that_cannot_work_are_refused(name, key, value):
    with pytest.raises(FlashbackError, match=f"host.{key}"):
        quick_config(name, **{f"host__{key}": value})


def test_the_compressed_variant_checks_the_settings_of_both_parents():
    with pytest.raises(FlashbackError, match=r"host\.compression_epochs"):
        quick_config("beef-compress", host__compression_epochs=0)
    assert quick_config("beef-compress").host.beta2 == 0


def test_fusion_sees_as_many_images_of_each_class() -> None:
    run = in_second_task(host__memory_size=14, benchmark=tiny_benchmark((2, 3, 2)))
    fusion = run.host.stages()[1]
    assert torch.bincount(fusion.stream().labels).tolist() == [7] * 5
