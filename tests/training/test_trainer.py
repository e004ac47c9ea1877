"""The trainer and its step: what they do to weights, what they count, what they say."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flashback import Flashback, FlashbackError, Host, Trainer, evaluate, train
from flashback.batches import Batch
from flashback.benchmarks import Benchmark
from flashback.hosts import Optimisation, Stage, Step
from flashback.training import Interrupted, environment
from flashback.training.environment import SWITCHES, prepare_device, prepared_device, select_device
from flashback.training.evaluation import evaluate_unlearned
from flashback.training.step import TrainingStep, build_optimiser, set_rate, total_loss
from flashback.training.trainer import Position, RunState
from helpers import quick_config, quick_flashback, quick_host, small_settings, tiny_benchmark

Events = list[dict[str, Any]]


def trainer_of(host: Any, **options: Any) -> tuple[Trainer, Events]:
    events: Events = []
    return Trainer(host, host.host.benchmark, [lambda event: events.append(dict(event))], **options), events


# ---------------------------------------------------------------- the optimiser and the step


@pytest.mark.parametrize(
    "optimisation",
    [
        Optimisation(0.1),
        Optimisation(0.1, momentum=0.9),
        Optimisation(0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
        Optimisation(0.1, weight_decay=0.01),
    ],
)
def test_steps_are_plain_sgd(optimisation: Optimisation) -> None:
    """Momentum that starts as zeros equals momentum that is not there yet."""
    host = quick_host("finetune", training__views=[])
    (stage,) = host.stages()
    stage = replace(stage, optimisation=optimisation)
    stream, order = stage.stream(), torch.arange(24)
    step = TrainingStep(host, stage, stream, "fp32")
    reference = quick_host("finetune", training__views=[])
    plain = torch.optim.SGD(
        reference.net.parameters(),
        lr=optimisation.lr,
        momentum=optimisation.momentum,
        weight_decay=optimisation.weight_decay,
        nesterov=optimisation.nesterov,
    )
    for indices in order.split(8):
        step(indices)
        x, y = reference.views.plain(stream.images[indices]), stream.labels[indices]
        plain.zero_grad()
        torch.nn.functional.cross_entropy(reference.net(x).logits, y).backward()
        plain.step()
    for (name, one), other in zip(host.net.state_dict().items(), reference.net.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, msg=name)


def test_a_stage_that_trains_nothing_is_refused() -> None:
    stage = replace(quick_host("finetune").stages()[0], parameters=list)
    with pytest.raises(FlashbackError, match=r"^the stage 'learn' has no parameters to train; .* remove the stage$"):
        build_optimiser(stage)


def test_set_rate_reaches_every_group() -> None:
    optimiser = build_optimiser(quick_host("finetune").stages()[0])
    set_rate(optimiser, 0.125)
    assert {group["lr"] for group in optimiser.param_groups} == {0.125}


def test_a_rate_on_the_device_is_changed_in_place() -> None:
    rate = torch.tensor(0.5)
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=rate, foreach=False)
    set_rate(optimiser, 0.125)
    assert optimiser.param_groups[0]["lr"] is rate
    assert float(rate) == 0.125


def test_the_loss_is_the_sum_of_its_terms() -> None:
    terms = {"task": torch.tensor(1.5), "stability": torch.tensor(2.0), "plasticity": torch.tensor(-0.25)}
    assert float(total_loss(terms)) == 3.25
    assert float(total_loss({"task": torch.tensor(1.5)})) == 1.5


def test_after_step_comes_after_the_step_and_without_gradients() -> None:
    host = quick_host("finetune")
    (stage,) = host.stages()
    before = host.net.head.weight.detach().clone()  # type: ignore[union-attr]
    seen: list[tuple[bool, bool]] = []

    def after_step(step: Any) -> None:
        differs = not torch.equal(host.net.head.weight, before)  # type: ignore[union-attr]
        seen.append((differs, torch.is_grad_enabled()))

    TrainingStep(host, replace(stage, after_step=after_step), stage.stream(), "fp32")(torch.arange(8))
    assert seen == [(True, False)]


# ---------------------------------------------------------------- epochs


class Recorder:
    """Notes the batches of a host's stages, and the losses it computed for them."""

    def __init__(self, host: Host) -> None:
        self.labels: list[list[int]] = []
        self.pixels: list[Tensor] = []
        self.terms: list[dict[str, float]] = []
        losses = host.losses

        def recorded(step: Any) -> Mapping[str, Tensor]:
            terms = losses(step)
            self.labels.append(step.batch.y.tolist())
            self.pixels.append(step.batch.raw)
            self.terms.append({name: float(value.detach()) for name, value in terms.items()})
            return terms

        host.__dict__["losses"] = recorded


@pytest.fixture
def uneven() -> Benchmark:
    """Two tasks of 2 and 1 classes with 7 images each: batches of 5 leave a rest."""
    return tiny_benchmark((2, 1), per_class=7)


def test_every_image_comes_once_per_epoch_in_a_new_order(uneven: Benchmark) -> None:
    host = quick_host("finetune", uneven, training__batch_size=5, training__epochs=2)
    recorder = Recorder(host)
    trainer_of(host)[0].run()
    assert [len(labels) for labels in recorder.labels] == [5, 5, 4, 5, 5, 4, 5, 2, 5, 2]
    epochs = [torch.cat(recorder.pixels[:3]), torch.cat(recorder.pixels[3:6])]
    images = Counter(image.numpy().tobytes() for image in uneven.tasks[0].train.x)
    assert [Counter(image.numpy().tobytes() for image in epoch) for epoch in epochs] == [images, images]
    assert not torch.equal(epochs[0], epochs[1])


def test_epochs_report_means_over_images(uneven: Benchmark) -> None:
    host = quick_host("lwf-mc", uneven, training__batch_size=5, host__penalty=0.01)
    recorder = Recorder(host)
    trainer, events = trainer_of(host)
    trainer.run()
    reported = [event["losses"] for event in events if event["event"] == "epoch"]
    sizes = [len(labels) for labels in recorder.labels]
    batches = [(0, 3), (3, 6), (6, 8), (8, 10)]
    assert len(reported) == len(batches)
    for losses, (start, stop) in zip(reported, batches, strict=True):
        assert losses.keys() == recorder.terms[start].keys()
        for name, value in losses.items():
            total = sum(recorder.terms[k][name] * sizes[k] for k in range(start, stop))
            assert value == pytest.approx(total / sum(sizes[start:stop]), rel=1e-5)


def test_events_in_their_order(uneven: Benchmark) -> None:
    host = quick_host("finetune", uneven, training__schedule="cosine", training__batch_size=5)
    trainer, events = trainer_of(host)
    result = trainer.run()
    assert [(event["event"], event["task"]) for event in events] == [
        (name, task) for task in (0, 1) for name in ("task", "stage", "epoch", "epoch", "evaluation")
    ]
    rates = [event["lr"] for event in events if event["event"] == "epoch"]
    assert rates == pytest.approx([0.05, 0.025] * 2)
    assert [event["steps_per_epoch"] for event in events if event["event"] == "stage"] == [3, 2]
    assert events[-1]["accuracy"]["linear"]["class_incremental"] == result["class_incremental"]["matrix"][-1]


def test_steps_and_images_are_counted(uneven: Benchmark) -> None:
    host = quick_host("finetune", uneven, training__batch_size=5, training__epochs=3, training__first_epochs=2)
    trainer, _ = trainer_of(host)
    result = trainer.run()
    assert trainer.history.budget == [
        {"task": 0, "stage": "learn", "steps": 6, "images": 28},
        {"task": 1, "stage": "learn", "steps": 6, "images": 21},
    ]
    assert result.steps == 12


# ---------------------------------------------------------------- stages


def test_every_stage_starts_without_momentum() -> None:
    host = quick_flashback("lwf-mc", training__momentum=0.9)
    begun: list[bool] = []

    class Momentum:
        trainer: Trainer

        def due(self, position: Any) -> bool:
            step = self.trainer.step
            if step is not None and position.epoch == 0 and position.step == 1:
                buffers = [step.optimiser.state[p]["momentum_buffer"] for p in step.stage.parameters()]
                # After one step from nothing the momentum is the gradient of that step.
                begun.append(all(torch.equal(b, p.grad) for b, p in zip(buffers, step.stage.parameters(), strict=True)))
            return False

        def save(self, state: Any) -> None: ...

    checkpointer = Momentum()
    checkpointer.trainer, _ = trainer_of(host, checkpointer=checkpointer)
    checkpointer.trainer.run()
    assert begun == [True] * 5


def test_a_stage_allocates_begins_trains_and_ends_once() -> None:
    host = quick_host("finetune", training__epochs=1)
    calls: list[str] = []
    (stage,) = host.stages()

    def losses(step: Any) -> Mapping[str, Tensor]:
        if calls[-1] != "losses":
            calls.append("losses")
        return stage.losses(step)

    observed_stage = replace(
        stage,
        allocate=lambda: calls.append("allocate"),
        begin=lambda: calls.append("begin"),
        losses=losses,
        before_epoch=lambda epoch: calls.append(f"epoch {epoch}"),
        after_epoch=lambda epoch: calls.append(f"after epoch {epoch}"),
        end=lambda: calls.append("end"),
    )
    trainer_of(host)[0].run_stage(host.task, observed_stage)
    assert calls == ["allocate", "begin", "epoch 0", "losses", "after epoch 0", "end"]


@pytest.mark.parametrize("at", [Position(0, begun=True, step=3), Position(0, begun=True, epoch=1)])
def test_what_follows_an_epoch_follows_it_once_after_a_resume(at: Position) -> None:
    """Stopped between the last of the three steps of an epoch and what follows them, or right after that."""
    heard: list[int] = []

    def trainer_with(checkpointer: Any = None) -> Trainer:
        host = quick_host("finetune", tiny_benchmark((2,)), training__epochs=2)
        stage = host.main_stage(after_epoch=heard.append)
        host.__dict__["stages"] = lambda: [stage]
        return trainer_of(host, checkpointer=checkpointer)[0]

    class Checkpointer:
        state: RunState

        def due(self, position: Position) -> bool:
            return position == at

        def save(self, state: RunState) -> None:
            self.state = state
            raise Interrupted

    checkpointer = Checkpointer()
    with pytest.raises(Interrupted):
        trainer_with(checkpointer).run()
    again = trainer_with()
    again.resume(checkpointer.state)
    again.run()
    assert heard == [0, 1]


def test_the_generator_of_a_moment_depends_on_seed_task_stage_and_moment() -> None:
    def states(seed: int, name: str) -> list[bytes]:
        host = quick_host("finetune", seed=seed)
        result: list[bytes] = []

        def note(*_: Any) -> None:
            result.append(host.generator.get_state().numpy().tobytes())

        (stage,) = host.stages()
        stage = replace(stage, name=name, begin=note, before_epoch=note, end=note, epochs=1)
        trainer, _ = trainer_of(host)
        for task in host.benchmark.tasks[:2]:
            host.enter(task)
            trainer.position = replace(trainer.position, begun=False, epoch=0)
            trainer.run_stage(task, stage)
        return result

    assert states(0, "learn") == states(0, "learn")
    everything = states(0, "learn") + states(1, "learn") + states(0, "other")
    assert len(set(everything)) == len(everything) == 18


# ---------------------------------------------------------------- what a run measures


def test_matrices_and_accuracies_before_learning() -> None:
    host = quick_host("finetune")
    untrained = evaluate_unlearned(host, host.benchmark.tasks)
    result = train(host)
    assert [len(row) for row in result["class_incremental"]["matrix"]] == [1, 2, 3]
    final = evaluate(host, host.benchmark.tasks)["linear"]
    for setting in ("class_incremental", "task_incremental"):
        assert result[setting]["matrix"][-1] == final[setting]
        assert result[setting]["untrained"] == untrained["linear"][setting]  # type: ignore[index]
        assert len(result[setting]["zero_shot"]) == 2


def test_zero_shot_accuracy_is_measured_before_the_host_begins_the_task() -> None:
    """Imprinting and the like have looked at the new images."""
    host = quick_host("finetune")
    order: list[str] = []
    host.__dict__["begin"] = lambda: order.append("begin")
    scores = host.scores
    host.__dict__["scores"] = lambda x: order.append("scores") or scores(x)
    train(host)
    before_the_second = order[order.index("begin") :]
    assert before_the_second.index("scores") < before_the_second.index("begin", 1)


def test_hosts_without_later_columns_have_no_zero_shot_accuracy() -> None:
    result = train(quick_host("icarl", **small_settings("icarl")))
    assert result["class_incremental"]["zero_shot"] is None
    assert result["class_incremental"]["untrained"] is None
    assert list(result.classifiers) == ["nearest-mean", "linear"]
    assert result.as_dict()["classifier"] == "nearest-mean"


def test_joint_trains_once_on_everything() -> None:
    host = quick_host("joint", tiny_benchmark((2, 2), per_class=6), training__epochs=1)
    recorder = Recorder(host)
    trainer, _ = trainer_of(host)
    result = trainer.run()
    assert [(entry["task"], entry["images"]) for entry in trainer.history.budget] == [(1, 24)]
    assert Counter(label for labels in recorder.labels for label in labels) == dict.fromkeys(range(4), 6)
    metrics = result["class_incremental"]
    assert metrics["average_accuracy"] == sum(metrics["matrix"][1]) / 2
    for metric in ("average_incremental_accuracy", "forgetting", "backward_transfer", "mean_new_task_accuracy"):
        assert metrics[metric] is None, f"{metric}: it was not trained before the end"


# ---------------------------------------------------------------- a loss that is not a number


@pytest.mark.parametrize("at", [1, 4])
def test_a_loss_that_is_not_finite_is_named_with_its_place(at: int) -> None:
    host = quick_host("finetune", tiny_benchmark((2, 2), per_class=12))
    (stage,) = host.stages()
    count = 0

    def losses(step: Any) -> Mapping[str, Tensor]:
        nonlocal count
        count += 1
        terms = dict(stage.losses(step))
        terms["extra"] = terms["task"] * (torch.nan if count == at else 0.0)
        return terms

    host.__dict__["stages"] = lambda: [replace(stage, losses=losses)]
    epoch, position = (at - 1) // 3 + 1, (at - 1) % 3 + 1
    with pytest.raises(FlashbackError) as caught:
        train(host)
    sentence = str(caught.value)
    assert "extra" in sentence
    assert f"learn of task 1, epoch {epoch}, step {position};" in sentence
    assert sentence.endswith("lower training.lr")


def test_a_host_without_stages_is_only_evaluated() -> None:
    host = quick_host("finetune")
    host.__dict__["stages"] = list[Stage]
    before = {name: tensor.clone() for name, tensor in host.state_dict().items()}
    result = train(host)
    assert result.steps == 0
    assert len(result["class_incremental"]["matrix"]) == 3
    assert all(torch.equal(tensor, before[name]) for name, tensor in host.state_dict().items())


# ---------------------------------------------------------------- one host, one training


def test_a_host_is_trained_once() -> None:
    host = quick_host("oewc")
    waiting = Flashback(host)
    train(host)
    for again in (lambda: train(host), lambda: Flashback(host), lambda: train(waiting)):
        with pytest.raises(FlashbackError, match="trained already; build a new one"):
            again()


def test_a_host_is_trained_on_the_benchmark_it_was_built_for() -> None:
    host = quick_host("finetune", tiny_benchmark((2, 3, 2)))
    with pytest.raises(FlashbackError, match=r"built for another benchmark \(tiny\); build one for this benchmark"):
        train(host, tiny_benchmark((3, 2, 2)))
    assert train(host, tiny_benchmark((2, 3, 2))).steps  # the same, loaded again


def test_a_saved_state_is_not_put_into_a_trained_host() -> None:
    trainer, _ = trainer_of(quick_host("oewc"))
    trainer.run()
    with pytest.raises(FlashbackError, match="trained already"):
        trainer_of(trainer.host)[0].resume(trainer.state())
    fresh, _ = trainer_of(quick_host("oewc"))
    fresh.resume(trainer.state())
    assert fresh.run().as_dict() == trainer.run().as_dict()


def test_a_trainer_goes_on_itself() -> None:
    """What an observer raises stops it; asked again, it ends as if nothing had been."""
    stopped: list[str] = []

    def stop_once(event: Mapping[str, Any]) -> None:
        if event["event"] == "task" and event["task"] == 1 and not stopped:
            stopped.append("here")
            raise KeyboardInterrupt

    host = quick_host("oewc")
    trainer = Trainer(host, host.benchmark, [stop_once])
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert trainer.run().as_dict() == train(quick_host("oewc")).as_dict()


# ---------------------------------------------------------------- threads


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("number", "threads"), [(None, 1), ("2", 2)])
def test_a_cpu_has_one_thread_unless_more_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, two_threads: None, number: str | None, threads: int
) -> None:
    if number is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", number)
    prepare_device(quick_config("finetune"), torch.device("cpu"), "fp32")
    assert torch.get_num_threads() == threads


def switches() -> list[object]:
    return [
        torch.are_deterministic_algorithms_enabled(),
        torch.get_num_threads(),
        *(getattr(holder, name) for holder, name in SWITCHES),
    ]


@pytest.mark.parametrize("fast", [True, False])
def test_the_rest_of_a_program_computes_as_before(two_threads: None, fast: bool) -> None:
    before = switches()
    with prepared_device(quick_config("finetune", fast=fast), torch.device("cuda"), "fp32"):
        assert torch.are_deterministic_algorithms_enabled() != fast
        assert not torch.backends.cudnn.allow_tf32
        assert torch.backends.cudnn.benchmark == fast
    assert switches() == before


@pytest.mark.parametrize("device", ["cuda:1", "mps", "meta"])
def test_a_device_is_refused_however_it_is_written(device: str) -> None:
    for written in (device, torch.device(device)):
        with pytest.raises(FlashbackError, match=rf"device \(--device\) must be auto, cpu or cuda, not '{device}'"):
            select_device(written)
    assert select_device(torch.device("cpu")) == torch.device("cpu")


def test_the_commit_is_that_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package may lie in the repository of somebody's own project."""

    def git(*words: str) -> None:
        who = ["-c", "user.name=me", "-c", "user.email=me@here"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    path, other = tmp_path / "own.py", tmp_path / "other.py"
    for file in (path, other):
        file.touch()
    git("init")
    git("add", "own.py")
    git("commit", "-m", "made")
    monkeypatch.setattr(environment, "__file__", str(other))
    assert environment.commit() is None
    monkeypatch.setattr(environment, "__file__", str(path))
    assert re.fullmatch("[0-9a-f]{40}", environment.commit() or "")
    path.write_text("changed")
    assert re.fullmatch(r"[0-9a-f]{40}\+changes", environment.commit() or "")


def test_a_host_that_was_looked_at_first_is_trained_as_any_other() -> None:
    fresh, looked_at = quick_host("finetune"), quick_host("finetune")
    looked_at.eval()
    for host in (fresh, looked_at):
        train(host)
    others = looked_at.state_dict()
    assert all(torch.equal(tensor, others[name]) for name, tensor in fresh.state_dict().items())


def test_a_step_sees_the_training_view_of_its_images() -> None:
    host = quick_host("finetune", training__views=["crop", "flip"])
    (stage,) = host.stages()
    seen: list[Batch] = []

    def forward(batch: Batch) -> Step:
        seen.append(batch)
        return host.forward(batch)

    stream = stage.stream()
    step = TrainingStep(host, replace(stage, forward=forward), stream, "fp32")
    host.generator.manual_seed(5)
    step(torch.arange(8))
    raw = stream.images[:8]
    assert torch.equal(seen[0].raw, raw)
    assert torch.equal(seen[0].x, host.views.weak(raw, torch.Generator().manual_seed(5)))
    assert not torch.equal(seen[0].x, host.views.plain(raw))


def test_the_seed_decides_the_first_weights() -> None:
    one, again, other = (quick_host("finetune", seed=seed).net.state_dict() for seed in (3, 3, 4))
    weights = "backbone.layers.0.weight"
    assert torch.equal(one[weights], again[weights])
    assert not torch.equal(one[weights], other[weights])
