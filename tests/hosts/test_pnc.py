"""P&C: the active column and what it reads, both stages, every loss by hand, what flashback anchors and restores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from elastic_tasks import slow_penalty
from later_tasks import batch_of, changed, in_later_task, slow_cross_entropy, slow_distillation, some_steps, state_of
from torch import Tensor, nn
from torch.nn import functional as F

from flashback import FlashbackError, Trainer
from flashback.conformance import Trial, resumes
from flashback.hosts.pnc import CompressionStep
from flashback.knowledge import ImportantParameters
from flashback.knowledge.importance import fisher_diagonal
from flashback.nets import NETS, Backbone, Net, Output, Shape
from flashback.nets.combined import ActiveColumn
from flashback.nets.small import SmallCNN
from helpers import forgetting, quick_host, tiny_benchmark

BOTH = pytest.mark.parametrize("column", ["fresh", "kept"])


def in_task(task: int = 1, stages: int = 2, **settings: Any) -> Any:
    """P&C with some stages of a task begun: progress, or both."""
    return in_later_task("pnc", task, stages, small={"training__momentum": 0.9}, **settings)


# ---------------------------------------------------------------- the active column


def made_column(seed: int = 0) -> tuple[ActiveColumn, Tensor]:
    """A column beside another backbone, in float64, both with statistics of their own, and images for them."""
    torch.manual_seed(seed)
    x = torch.randn(5, 1, 12, 12, dtype=torch.float64)
    net, other = Net(SmallCNN(1), nn.Linear(64, 3)).double(), SmallCNN(1).double()
    net.backbone(2 * x)
    other(3 * x)
    return ActiveColumn(net, other, x).double(), x


def slow_column(column: Any, x: Tensor) -> Tensor:
    """h_l = level(h_(l-1)) + alpha_l * U_l relu(V_l k_l + c_l), written with matrices, and the head on their mean."""
    h, known = x, column.other.module.stage_maps(x)
    for level, lateral, k in zip(column.backbone.levels(), column.laterals, known, strict=True):
        inner = torch.einsum("oi,bihw->bohw", lateral.inner.weight[:, :, 0, 0], k) + lateral.inner.bias[:, None, None]
        lateral_input = torch.einsum("oi,bihw->bohw", lateral.outer.weight[:, :, 0, 0], inner.clamp(min=0))
        h = level(h) + lateral.alpha * lateral_input
    pooled = h.mean((2, 3)).float()  # features are float32 in every network
    return F.linear(pooled, column.head.weight.float(), column.head.bias.float())


def test_the_column_against_a_slow_reference() -> None:
    column, x = made_column()
    column.head.float()
    assert len(column.laterals) == len(column.backbone.levels()) == 4
    for mode in (column.eval(), column.train()):
        torch.testing.assert_close(mode(x).logits, slow_column(column, x), rtol=1e-5, atol=1e-6)


def test_without_its_laterals_it_is_the_network_alone() -> None:
    column, x = made_column()
    column.head.float()
    alone = Net(column.backbone, column.head)
    assert not torch.allclose(column.eval()(x).logits, alone.eval()(x).logits)
    for lateral in column.laterals:
        nn.init.zeros_(lateral.alpha)  # type: ignore[arg-type]
    assert torch.equal(column(x).logits, alone(x).logits)


def test_laterals_start_small_and_all_of_it_learns_but_the_copy() -> None:
    column, x = made_column()
    column.head.float()
    alphas = torch.cat([lateral.alpha.flatten() for lateral in column.laterals])  # type: ignore[operator]
    assert 0 <= alphas.min() < 0.01 < 0.09 < alphas.max() <= 0.1
    column.train()(x).logits.square().sum().backward()
    for name, parameter in column.named_parameters():
        assert (parameter.grad is not None) == (not name.startswith("other.")), name
        assert parameter.grad is None or parameter.grad.any(), name
    assert not any(module.training for module in column.other.modules())


@pytest.mark.slow
@pytest.mark.parametrize(("net", "widths"), [("resnet32", [16, 32, 64]), ("cnn6", [32, 64, 128, 256])])
def test_other_backbones_have_laterals_of_their_widths(net: str, widths: list[int]) -> None:
    host: Any = in_task(host__net=net).host
    assert [len(lateral.alpha) for lateral in host.column.laterals] == widths
    x = host.views.plain(host.task.train.x[:3])
    assert host.column(x).features.shape == (3, widths[-1])


def test_a_network_without_levels_is_refused_before_training() -> None:
    class Plain(Backbone):
        width = 4

        def forward(self, x: Tensor) -> Tensor:
            return F.adaptive_avg_pool2d(x, 2).flatten(1)

    def plain(shape: Shape) -> Backbone:
        return Plain()

    with forgetting(NETS):
        NETS.register("plain")(plain)
        with pytest.raises(FlashbackError, match="Plain does not define them; give its class a method levels"):
            quick_host("pnc", host__net="plain")


# ---------------------------------------------------------------- the column from task to task


def test_stages_share_a_task() -> None:
    """As many epochs each; the first task has its own number and schedule, for both."""
    schedules = {"training__schedule": "cosine", "training__first_schedule": "none"}
    host: Any = quick_host("pnc", training__epochs=3, training__first_epochs=5, **schedules)
    for task, epochs, schedule in ((0, 5, "none"), (1, 3, "cosine"), (2, 3, "cosine")):
        host.enter(host.benchmark.tasks[task])
        stages = host.stages()
        assert [(stage.name, stage.main) for stage in stages] == [("progress", False), ("compress", True)]
        assert [stage.epochs for stage in stages] == [epochs, epochs]
        assert [stage.optimisation.schedule for stage in stages] == [schedule, schedule]


def test_progress_may_have_its_own_epochs_and_rate() -> None:
    host: Any = quick_host("pnc", host__progress_epochs=7, host__progress_lr=0.2)
    progress, compress = host.stages()
    assert (progress.epochs, progress.optimisation.lr) == (7, 0.2)
    assert (compress.epochs, compress.optimisation.lr) == (2, 0.05)


@BOTH
def test_the_column_begins_where_the_setting_says(column: str) -> None:
    run = in_task(task=1, stages=0, host__column=column)
    host, first = run.host, state_of(run.host.column)
    assert not isinstance(host.column, ActiveColumn)  # the first task has nothing to read
    host.enter(run.benchmark.tasks[1])
    progress = host.stages()[0]
    run.trainer.allocate(progress)
    progress.begin()
    assert isinstance(host.column, ActiveColumn)
    same = {name for name, tensor in first.items() if torch.equal(tensor, host.column.state_dict()[name])}
    assert ("backbone.layers.0.weight" in same) == (column == "kept")
    assert (same == first.keys()) == (column == "kept")

    some_steps(host, progress)
    before = state_of(host.column)
    host.enter(run.benchmark.tasks[2])
    run.trainer.allocate(host.stages()[0])
    changes = {name for name in changed(before, host.column) if not name.startswith("other.")}
    assert ("laterals.0.inner.weight" in changes) == (column == "fresh")
    assert bool(changes) == (column == "fresh")


def test_frozen_layers_of_a_fresh_column_are_those_of_the_network() -> None:
    def half_frozen(shape: Shape) -> Backbone:
        backbone = SmallCNN(shape[0])
        backbone.layers[:2].requires_grad_(False)
        return backbone

    with forgetting(NETS):
        NETS.register("half-frozen")(half_frozen)
        host: Any = in_task(host__net="half-frozen").host
        layers, known = host.column.backbone.layers, host.net.backbone.layers
        assert torch.equal(layers[0].weight, known[0].weight)
        assert not torch.equal(layers[3].weight, known[3].weight)


@BOTH
def test_the_column_reads_the_knowledge_base_of_before_the_task(column: str) -> None:
    """What it says stands still while the knowledge base learns from it."""
    run = in_task(task=2, stages=1, host__column=column)
    host, (progress, compress) = run.host, run.host.stages()
    assert not changed(state_of(host.column.other.module), host.net.backbone)
    some_steps(host, progress)
    run.trainer.allocate(compress)
    compress.begin()
    before, outputs = state_of(host.column), compress.forward(batch_of(host, compress)).target
    some_steps(host, compress)
    assert changed(before, host.column) == set()
    assert changed(state_of(host.column.other.module), host.net.backbone)
    assert torch.equal(compress.forward(batch_of(host, compress)).target, outputs)


@pytest.mark.slow
def test_a_kept_column_resumes_everywhere() -> None:
    """The suite over all hosts has fresh ones."""
    resumes(Trial("pnc", {"host.column": "kept"}, tiny_benchmark(per_class=6, test_per_class=2)))


# ---------------------------------------------------------------- a batch


def test_each_stage_moves_one_network() -> None:
    """Progress leaves the knowledge base alone, statistics too, and compression the column."""
    host: Any = in_task().host
    progress, compress = host.stages()
    net, column = state_of(host.net), state_of(host.column)
    some_steps(host, progress)
    assert changed(net, host.net) == set()
    changes = changed(column, host.column)
    assert {name for name in column if not name.startswith("other.")} == changes
    column = state_of(host.column)
    some_steps(host, compress)
    assert changed(column, host.column) == set()
    assert changed(net, host.net) == net.keys()


@pytest.mark.parametrize("loss", ["ce_all", "ce_current", "bce_current"])
def test_every_term_against_a_slow_reference(loss: str) -> None:
    host: Any = in_task(task=2, host__loss=loss, host__strength=3.0, host__gamma=0.5).host
    progress, compress = host.stages()
    batch = batch_of(host, compress)
    some_steps(host, compress)
    generator, size = torch.Generator().manual_seed(1), len(batch.y)
    outputs, target = (3 * torch.randn(size, 7, generator=generator, dtype=torch.float64) for _ in range(2))
    output, new = Output(torch.zeros(0), outputs), host.task.new

    def slow_binary(logits: Tensor, expected: Tensor) -> float:
        p = logits.sigmoid()
        return float(-(expected * p.log() + (1 - expected) * (1 - p).log()).sum() / expected.numel())

    terms = compress.losses(CompressionStep(batch, output, target))
    assert list(terms) == ["compression", "stability"]
    (task,) = progress.losses(CompressionStep(batch, output, target)).values()
    if loss == "ce_all":
        compression, expected_column = (
            slow_distillation(outputs, target, 7, 1.0),
            slow_cross_entropy(outputs, batch.y.tolist(), 7),
        )
    elif loss == "ce_current":
        part, labels = outputs[:, new], (batch.y - new.start).tolist()
        compression, expected_column = (
            slow_distillation(part, target[:, new], 2, 1.0),
            slow_cross_entropy(part, labels, 2),
        )
    else:
        hit = torch.stack([batch.y == column for column in range(new.start, new.stop)], dim=1).double()
        compression, expected_column = (
            slow_binary(outputs[:, new], target[:, new].sigmoid()),
            slow_binary(outputs[:, new], hit),
        )
    assert terms["compression"].item() == pytest.approx(compression, rel=1e-9)
    assert task.item() == pytest.approx(expected_column, rel=1e-9)
    assert terms["stability"].item() == pytest.approx(3.0 * slow_penalty(host, host.stable), rel=1e-4)
    assert slow_penalty(host, host.stable) > 0


def test_the_distillation_is_a_divergence_up_to_a_constant() -> None:
    """Least where both say the same, with the gradient of KL(active column || knowledge base)."""
    host: Any = quick_host("pnc")
    generator = torch.Generator().manual_seed(2)
    outputs, target = (torch.randn(4, 7, generator=generator, dtype=torch.float64) for _ in range(2))
    outputs.requires_grad_()
    divergence = F.kl_div(outputs.log_softmax(1), target.softmax(1), reduction="batchmean")
    (expected,), (actual,) = (torch.autograd.grad(d, outputs) for d in (divergence, host.distillation(outputs, target)))
    torch.testing.assert_close(actual, expected)
    assert host.distillation(target, target) < host.distillation(outputs, target)


def test_labels_are_for_the_active_column_alone() -> None:
    host: Any = in_task().host
    progress, compress = host.stages()
    batch = batch_of(host, compress)
    other = type(batch)(batch.x, batch.y.roll(3), batch.raw, batch.slots)
    assert (batch.y != other.y).any()

    def losses(stage: Any) -> list[dict[str, float]]:
        host.eval()
        return [
            {k: v.item() for k, v in stage.losses(stage.forward(labelled_batch)).items()}
            for labelled_batch in (batch, other)
        ]

    one, two = losses(compress)
    assert one == two
    one, two = losses(progress)
    assert one != two


def test_the_first_task_is_compressed_without_a_penalty() -> None:
    host: Any = quick_host("pnc")
    trainer, terms = Trainer(host, host.benchmark), dict[str, set[str]]()

    def note(event: Any) -> None:
        if event["event"] == "epoch":
            terms[event["stage"]] = set(event["losses"])

    trainer.observers = [note]
    before = state_of(host.net)
    trainer.run_task(host.benchmark.tasks[0])
    assert terms == {"progress": {"task"}, "compress": {"compression"}}
    assert changed(before, host.net) == before.keys()
    assert host.stable.importance.any()


# ---------------------------------------------------------------- knowledge


def test_importance_is_that_of_the_knowledge_base_and_runs() -> None:
    """F <- gamma F + F_new, at the end of the compression, and the anchor is the knowledge base."""
    host: Any = in_task(host__gamma=0.5).host
    compress, train = host.stages()[1], host.benchmark.tasks[1].train
    some_steps(host, compress)
    before = host.stable.importance.clone()
    new = fisher_diagonal(host.net, train.x, train.y, host.views.plain, "mammoth")
    compress.end()
    torch.testing.assert_close(host.stable.importance, 0.5 * before + new)
    assert torch.equal(host.stable.values, torch.cat([p.detach().flatten() for p in host.net.parameters()]))


def test_prediction_is_by_the_knowledge_base() -> None:
    host: Any = in_task().host
    x = host.benchmark.tasks[0].test.x
    before = host.predict(x)
    with torch.no_grad():
        for parameter in host.column.parameters():
            parameter.fill_(float("nan"))
    assert torch.equal(host.predict(x), before)
    assert host.predictor() is host.net


def test_flashback_anchors_the_knowledge_base_and_restores_it_alone_in_the_compression() -> None:
    run = in_later_task("pnc", 1, 0, flashback=True, small={}, training__epochs=3, host__progress_epochs=2)
    host, method, trainer = run.host, run.method, run.trainer
    stages = method.stages()
    assert [(s.name, s.epochs) for s in stages] == [("progress", 2), ("phase 1", 1), ("phase 2", 2)]
    trainer.run_stage(host.task, stages[0])
    before, column = state_of(host.net), state_of(host.column)
    trainer.position = type(trainer.position)(1, 1)
    trainer.run_stage(host.task, stages[1])
    primary = torch.cat([p.detach().flatten() for p in host.net.parameters()])
    assert changed(before, host.net)
    train = host.task.train
    importance = fisher_diagonal(host.net, train.x, train.y, host.views.plain, "mammoth")
    trainer.allocate(stages[2])
    stages[2].begin()
    assert changed(before, host.net) == set()
    assert changed(column, host.column) == set()
    plastic: Any = method.plastic
    assert isinstance(plastic, ImportantParameters)
    assert torch.equal(plastic.values, primary)
    torch.testing.assert_close(plastic.importance, importance)
    host.train()
    stages[2].before_epoch(0)
    terms = stages[2].losses(stages[2].forward(batch_of(host, stages[2])))
    assert list(terms) == ["compression", "stability", "plasticity"]


def size_of(module: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())


@BOTH
def test_bytes_count_what_is_there_of_earlier_tasks(column: str) -> None:
    """The anchor and the old knowledge base; the whole column where it goes on."""
    run = in_later_task("pnc", 0, 0, flashback=True, small={}, host__column=column, host__strength=1.0)
    run.trainer.run()
    host: Any = run.host
    anchor = 2 * 4 * sum(parameter.numel() for parameter in host.net.parameters())
    beside = size_of(host.column) if column == "kept" else size_of(host.net.backbone)
    assert run.trainer.history.bytes == {"stable": anchor + beside, "plastic": anchor}


# ---------------------------------------------------------------- settings and a short run


@pytest.mark.parametrize(
    ("setting", "value", "sentence"),
    [
        ("strength", -1.0, r"host\.strength must not be negative"),
        ("gamma", 1.5, r"host\.gamma must lie in \[0, 1\]"),
        ("column", "old", r"host\.column must be one of fresh, kept"),
        ("progress_epochs", 0, r"host\.progress_epochs must be at least 1"),
        ("progress_lr", 0.0, r"host\.progress_lr must be above 0"),
    ],
)
def test_refuses_values_that_cannot_work(setting: str, value: object, sentence: str) -> None:
    with pytest.raises(FlashbackError, match=sentence):
        quick_host("pnc", **{f"host__{setting}": value})


@pytest.mark.slow
@BOTH
def test_the_knowledge_base_takes_over_what_the_column_has_learned(column: str) -> None:
    """It never sees a label, and yet knows the classes of a task after a few epochs."""
    plain = {"training__epochs": 4, "training__lr": 0.02, "training__momentum": 0.5, "training__views": []}
    host: Any = quick_host("pnc", tiny_benchmark((2, 3), per_class=40), host__column=column, **plain)
    result = Trainer(host, host.benchmark).run()["task_incremental"]["matrix"]
    assert all(row[-1] > 90 for row in result)
