"""PODNet's ingredients, each against a slow, obvious computation, and tiny runs with Flashback."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from second_task import SMALL, batch_of, in_second_task, moved, some_steps, state_of

from flashback import FlashbackError, Trainer
from flashback.batches import Batch
from flashback.hosts import Step
from flashback.hosts.podnet import PODNetSettings, k_means, margin_nca, released_nca
from flashback.knowledge import pod_spatial
from flashback.nets import NETS, Backbone, build_backbone
from flashback.nets.heads import ProxyNet, ProxyOutput, local_similarity
from helpers import quick_config, quick_flashback, quick_host, tiny_benchmark

NAME = "podnet"
FEW = {"host__proxies": 3, "host__finetune_epochs": 2}


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def second_task(**settings):
    return in_second_task(NAME, **{**FEW, **settings})


# ---------------------------------------------------------------- the maps of stages


@pytest.mark.parametrize(
    ("net", "shapes"),
    [
        ("resnet32-cosine", [(16, 32), (32, 16), (64, 8)]),
        ("resnet18", [(64, 32), (128, 16), (256, 8), (512, 4)]),
        ("resnet18-imagenet", [(64, 8), (128, 4), (256, 2), (512, 1)]),
        ("smallcnn", [(16, 16), (32, 8), (64, 4), (64, 4)]),
    ],
)
def test_stages_give_their_maps_and_the_last_ones_are_the_features(net, shapes):
    backbone, x = build_backbone(net, (3, 32, 32)).eval(), random(2, 3, 32, 32).float()
    with torch.no_grad():
        maps = backbone.stage_maps(x)
        assert [tuple(stage.shape) for stage in maps] == [(2, width, side, side) for width, side in shapes]
        assert torch.equal(maps[-1].mean((2, 3)), backbone(x))


def test_maps_are_what_each_stage_puts_out():
    backbone, x = build_backbone("resnet32", (3, 32, 32)).eval(), random(2, 3, 32, 32).float()
    seen = []
    for stage in backbone.stages:
        stage.register_forward_hook(lambda module, inputs, output: seen.append(output))
    with torch.no_grad():
        maps = backbone.stage_maps(x)
    assert len(seen) == 3
    assert all(torch.equal(stage_map, output) for stage_map, output in zip(maps, seen, strict=True))


def test_a_network_without_stages_is_refused():
    class Flat(Backbone):
        width = 12

        def __init__(self, shape):
            super().__init__()
            self.layer = torch.nn.Linear(math.prod(shape), 12)

        def forward(self, x):
            return self.layer(x.flatten(1))

    NETS.register("flat")(Flat)
    with pytest.raises(FlashbackError, match="maps of a network's stages, and Flat gives none; choose another"):
        quick_host(NAME, host__net="flat")


# ---------------------------------------------------------------- pooled outputs distillation


def test_pod_spatial_against_a_loop():
    shapes = [(3, 2, 4, 5), (3, 6, 2, 3)]
    maps, anchors = ([random(*shape, seed=seed + k) for k, shape in enumerate(shapes)] for seed in (1, 11))

    def profile(image):
        channels, height, width = image.shape
        rows = [sum(float(image[c, h, w]) ** 2 for w in range(width)) for c in range(channels) for h in range(height)]
        columns = [
            sum(float(image[c, h, w]) ** 2 for h in range(height)) for c in range(channels) for w in range(width)
        ]
        length = math.sqrt(sum(v * v for v in rows + columns))
        return [v / length for v in rows + columns]

    stages = []
    for stage, other in zip(maps, anchors, strict=True):
        pairs = [(profile(stage[k]), profile(other[k])) for k in range(len(stage))]
        stages.append(sum(math.dist(*pair) for pair in pairs) / len(pairs))
    assert pod_spatial(maps, anchors).item() == pytest.approx(sum(stages) / 2, rel=1e-5)


def test_pod_spatial_sees_neither_sign_nor_size_and_has_a_slope_at_its_end():
    maps = [random(2, 3, 4, 4).requires_grad_()]
    assert pod_spatial(maps, [-2 * maps[0].detach()]).item() == pytest.approx(0, abs=1e-6)
    distance = pod_spatial(maps, [maps[0].detach()])
    distance.backward()
    assert distance.item() == 0
    assert not maps[0].grad.any()  # not a number would be the slope of a square root at 0


@pytest.mark.parametrize(("spatial", "flat"), [(0.0, 1.0), (2.0, 0.0), (3.0, 0.5)])
def test_distance_and_its_weight(spatial, flat):
    run = second_task(host__spatial=spatial, host__flat=flat)
    some_steps(run, run.host.stages()[0])
    batch = batch_of(run.benchmark.tasks[1].train, run.host)
    step = run.host.forward(batch)
    old = run.host.stable(batch.x)
    cosines = F.cosine_similarity(step.output.features, old.features, dim=1)
    expected = spatial * pod_spatial(step.output.maps, old.maps) + flat * (1 - cosines).mean()
    assert expected > 0
    torch.testing.assert_close(run.host.distance(step, run.host.stable, run.host.stability_support()), expected)
    torch.testing.assert_close(run.host.losses(step)["stability"], math.sqrt(5 / 3) * expected)  # 5 seen, 3 new
    assert run.host.plasticity_support().weight == 1


# ---------------------------------------------------------------- classification


def test_local_similarity_against_a_loop():
    cosines = random(2, 3, 4).tanh()
    for b, image in enumerate(cosines.tolist()):
        for c, proxies in enumerate(image):
            total = sum(map(math.exp, proxies))
            expected = sum(math.exp(v) / total * v for v in proxies)
            assert local_similarity(cosines)[b, c].item() == pytest.approx(expected, rel=1e-12)


def test_a_class_has_its_own_proxies():
    net = ProxyNet(build_backbone("smallcnn", (1, 12, 12)), [2, 1], proxies=3).eval()
    output = net(random(4, 1, 12, 12).float())
    vectors = torch.cat(net.blocks())
    assert [len(block) for block in net.blocks()] == [6, 3]
    raw = F.cosine_similarity(output.features[:, None], vectors[None], dim=2)
    expected = torch.stack([local_similarity(raw[:, None, 3 * c : 3 * c + 3])[:, 0] for c in range(3)], dim=1)
    torch.testing.assert_close(output.cosines, expected)
    torch.testing.assert_close(output.logits, net.head.sigma * expected)


@pytest.mark.parametrize(("scale", "margin"), [(1.0, 0.6), (7.0, 0.6), (7.0, 0.0)])
def test_nca_against_a_loop(scale, margin):
    cosines, labels = random(5, 4).tanh(), torch.tensor([0, 3, 1, 2, 3])
    losses = []
    for row, y in zip(cosines.tolist(), labels.tolist(), strict=True):
        others = sum(math.exp(scale * v) for c, v in enumerate(row) if c != y)
        losses.append(max(0.0, -math.log(math.exp(scale * (row[y] - margin)) / others)))
    loss = margin_nca(cosines, labels, torch.tensor(scale, dtype=torch.float64), margin)
    assert loss.item() == pytest.approx(sum(losses) / 5, rel=1e-12)


def test_the_hinge_bounds_nca_and_the_margin_does_not_move_the_scale():
    cosines, labels = torch.tensor([[0.9, -0.9], [0.1, 0.0]], dtype=torch.float64), torch.tensor([0, 0])
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    loss = margin_nca(cosines, labels, scale, 0.6)
    assert loss.item() == pytest.approx(
        (0 + 2 * (0.0 - 0.1 + 0.6)) / 2
    )  # the first image leads by more than the margin
    loss.backward()
    assert scale.grad.item() == pytest.approx((0.0 - 0.1) / 2)


def test_a_class_alone_has_no_loss():
    cosines = random(3, 1).requires_grad_()
    loss = margin_nca(cosines, torch.zeros(3, dtype=torch.long), torch.tensor(2.0, dtype=torch.float64), 0.6)
    loss.backward()
    assert loss.item() == 0
    assert not cosines.grad.any()


def test_the_released_loss_against_a_loop():
    cosines, labels, scale = random(5, 4).tanh(), torch.tensor([0, 3, 1, 2, 3]), 3.0
    losses = []
    for row, y in zip(cosines.tolist(), labels.tolist(), strict=True):
        shifted = [scale * (v - max(row)) for v in row]
        blanked = [0.0 if c == y else v for c, v in enumerate(shifted)]
        losses.append(-(shifted[y] - math.log(sum(map(math.exp, blanked)))))
    loss = released_nca(cosines, labels, torch.tensor(scale, dtype=torch.float64))
    assert loss.item() == pytest.approx(sum(losses) / 5, rel=1e-12)


@pytest.mark.parametrize("compat", [False, True])
def test_the_task_loss_is_over_the_classes_seen(compat):
    host = quick_host(NAME, host__memory_size=7, host__margin=0.3, host__compat=compat)
    host.enter(host.benchmark.tasks[1])
    cosines, labels, sigma = random(6, 7).tanh(), torch.tensor([0, 3, 1, 4, 2, 0]), host.net.head.sigma
    batch = Batch(torch.empty(0), labels, torch.empty(0), torch.full_like(labels, -1))
    terms = host.classification(Step(batch, ProxyOutput(torch.empty(0), cosines, cosines, [])))
    seen = cosines[:, :5]
    expected = released_nca(seen, labels, sigma) if compat else margin_nca(seen, labels, sigma, 0.3)
    assert {name: term.item() for name, term in terms.items()} == {"task": expected.item()}


# ---------------------------------------------------------------- imprinting


def test_k_means_finds_groups_that_lie_apart():
    centres = torch.tensor([[0.0, 9.0], [9.0, 0.0], [-9.0, -9.0]], dtype=torch.float64)
    points = (centres[:, None] + 0.3 * random(3, 20, 2)).reshape(60, 2)
    result = min(
        (k_means(points, 3, torch.Generator().manual_seed(seed)) for seed in range(8)),
        key=lambda means: torch.cdist(points, means).amin(1).sum(),
    )
    means = points.reshape(3, 20, 2).mean(1)
    order = torch.cdist(means, result).argmin(1)
    assert sorted(order.tolist()) == [0, 1, 2]
    torch.testing.assert_close(result[order], means)


@pytest.mark.parametrize("clusters", [1, 2, 5])
def test_centres_of_k_means_are_the_means_of_those_nearest_to_them(clusters):
    points = random(40, 3)
    centres = k_means(points, clusters, torch.Generator().manual_seed(1))
    nearest = torch.cdist(points, centres).argmin(1)
    for cluster in range(clusters):
        torch.testing.assert_close(centres[cluster], points[nearest == cluster].mean(0))
    assert torch.equal(centres, k_means(points, clusters, torch.Generator().manual_seed(1)))


def test_k_means_with_fewer_points_than_clusters():
    points = random(2, 3)
    centres = k_means(points, 5, torch.Generator().manual_seed(0))
    assert centres.shape == (5, 3)
    assert (torch.cdist(centres, points).amin(1) == 0).all()


def test_new_proxies_are_imprinted_and_old_ones_stay():
    run = second_task(stages=0)
    before = state_of(run.host)
    stage = run.host.stages()[0]
    run.trainer.allocate(stage)
    stage.begin()
    old, new = run.host.net.blocks()
    after = run.host.state_dict()  # which has the stable model too
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    assert changed == {"net.head.parametrizations.weight.original1"}
    torch.testing.assert_close(new.norm(dim=1), old.norm(dim=1).mean().expand(9))
    images = run.benchmark.tasks[1].train
    run.host.eval()
    unit = F.normalize(run.host.net(run.host.views.plain(images.x)).features.detach())
    for k, c in enumerate(run.benchmark.tasks[1].classes):
        class_images, directions = unit[images.y == c], F.normalize(new[3 * k : 3 * k + 3].detach())
        nearest = torch.cdist(class_images, directions).argmin(1)
        for proxy in nearest.unique():
            mean = F.normalize(class_images[nearest == proxy].mean(0), dim=0)
            torch.testing.assert_close(directions[proxy], mean, atol=0.05, rtol=0)


# ---------------------------------------------------------------- stages


def test_main_stage_trains_backbone_new_proxies_and_scale():
    run = second_task()
    before = state_of(run.host.net)
    some_steps(run, run.host.stages()[0])
    changed = moved(before, run.host.net)
    heads = {name for name in changed if name.startswith("head")}
    assert heads == {"head.sigma", "head.parametrizations.weight.original1"}
    assert any(name.startswith("backbone") and "running" in name for name in changed)


def test_balanced_fine_tuning_trains_the_proxies_of_all_seen_classes_alone():
    run = second_task()
    learn, balanced = run.host.stages()
    learn.end()
    run.trainer.allocate(balanced)
    balanced.begin()
    assert (balanced.name, balanced.main, balanced.epochs, balanced.optimisation.lr) == (
        "balanced fine-tuning", False, 2, 0.05,
    )  # fmt: skip
    assert {balanced.optimisation.rate(epoch, 2) for epoch in range(2)} == {0.05}
    assert torch.bincount(balanced.stream().labels).tolist() == [4] * 5
    before = state_of(run.host.net)
    some_steps(run, balanced)
    assert moved(before, run.host.net) == {f"head.parametrizations.weight.original{task}" for task in (0, 1)}


@pytest.mark.parametrize(("task", "finetune", "stages"), [(0, "seen", 1), (1, "seen", 2), (1, "none", 1)])
def test_stages(task, finetune, stages):
    benchmark = tiny_benchmark()
    host = quick_host(NAME, benchmark, host__finetune=finetune, **SMALL)
    host.enter(benchmark.tasks[task])
    assert [stage.main for stage in host.stages()] == [True, False][:stages]


# ---------------------------------------------------------------- flashback


def test_flashback_goes_back_to_the_imprint_and_is_held_near_the_primary_maps():
    run = second_task(flashback=True)
    x = run.host.views.plain(run.benchmark.tasks[1].test.x)
    before = state_of(run.host)
    phase_1, phase_2, _ = run.method.stages()
    some_steps(run, phase_1)
    primary = copy.deepcopy(run.host.net).eval()
    assert moved(before, run.host)
    run.trainer.allocate(phase_2)
    phase_2.begin()
    assert not moved(before, run.host)
    phase_2.before_epoch(0)
    plastic, expected = run.method.plastic(x), primary(x)
    assert all(torch.equal(a, b) for a, b in zip(plastic.maps, expected.maps, strict=True))
    run.host.train()
    batch = batch_of(run.benchmark.tasks[1].train, run.host)
    step = phase_2.forward(batch)
    anchor = primary(batch.x)
    flat = (1 - F.cosine_similarity(step.output.features, anchor.features, dim=1)).mean()
    expected = 0.1 * (3.0 * pod_spatial(step.output.maps, anchor.maps) + flat)  # alpha_p = 0.1
    torch.testing.assert_close(phase_2.losses(step)["plasticity"], expected)


def test_bytes_of_knowledge():
    run = second_task(flashback=True, stages=2)
    model = sum(tensor.nbytes for tensor in run.host.net.state_dict().values())
    sizes = run.method.knowledge_bytes()
    assert sizes == {"stable": model + run.host.memory.nbytes(), "plastic": model}


@pytest.mark.parametrize("support", ["host", "all", "memory"])
def test_a_run_with_flashback_on_unequal_tasks(support):
    benchmark = tiny_benchmark((3, 1, 2))
    method = quick_flashback(NAME, benchmark, flashback__support=support, **{**SMALL, **FEW})
    result = Trainer(method, benchmark).run()
    stages = [(entry["task"], entry["stage"]) for entry in result.history.budget]
    later = [(task, stage) for task in (1, 2) for stage in ("phase 1", "phase 2", "balanced fine-tuning")]
    assert stages == [(0, "learn"), *later]
    assert result.history.bytes["plastic"] > 0
    assert all(tensor.isfinite().all() for tensor in method.host.state_dict().values())


@pytest.mark.slow
@pytest.mark.parametrize("compat", [False, True])
def test_it_learns(compat):
    benchmark = tiny_benchmark((2, 2), per_class=30, test_per_class=20)
    settings = {"host__compat": compat, "host__finetune_epochs": 4, "training__views": [], "training__momentum": 0.9}
    host = quick_host(NAME, benchmark, host__memory_size=20, training__epochs=8, **settings)
    accuracy = Trainer(host, benchmark).run()["class_incremental"]["average_accuracy"]
    assert accuracy > 60  # chance is 25, forgetting the first task leaves 50 at best
    assert host.net.head.sigma > 0


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("proxies", 0),
        ("margin", -0.1),
        ("spatial", -1.0),
        ("flat", -1.0),
        ("finetune_epochs", 0),
        ("finetune_lr", 0.0),
        ("finetune_milestones", [1.5]),
    ],
)
def test_settings_that_cannot_work_are_refused(key, value):
    with pytest.raises(FlashbackError, match=f"host.{key}"):
        quick_config(NAME, **{f"host__{key}": value})


def test_defaults_are_the_papers():
    settings = PODNetSettings()
    assert (settings.proxies, settings.margin, settings.spatial, settings.flat) == (10, 0.6, 3.0, 1.0)
    assert (settings.finetune_epochs, settings.finetune_lr, settings.finetune_milestones) == (20, 0.05, ())
