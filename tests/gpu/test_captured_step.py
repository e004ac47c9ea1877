"""On a GPU the captured step computes what the eager one does, resumes exactly, and compiles no more than needed."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flashback.config import CheckpointConfig, RunConfig
from flashback.hosts import HOSTS, Step
from flashback.hosts.lwf_mc import LwFMC
from flashback.training import Checkpoints, Interrupted, Trainer, build_method
from flashback.training.environment import prepare_device
from flashback.training.fast import CapturedStep, make_step
from flashback.training.step import set_rate
from flashback.training.trainer import Position, RunState
from helpers import quick_config, tiny_benchmark

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
ADAM = {"training__momentum": 0.0, "training__lr": 0.005, "training__weight_decay": 0.01}
HELD = {"mas": {"host__strength": 0.01}}  # its own 1.0 diverges at the rate of quick runs, eager steps too
FORMS: list[tuple[str, dict[str, Any]]] = [
    ("icarl", {"flashback__images": "divided"}),
    ("foster", {"flashback__images": "new"}),
    ("lucir", {"flashback__images": "new", "flashback__where": "better"}),
    ("lwf-mc", {"flashback__where": "correct", "flashback__teacher": "running", "flashback__decay": 0.9}),
    ("der++", {"flashback__where": "better"}),
    ("icarl", {"flashback__distance": "features", "flashback__images": "new"}),
    ("oewc", {"flashback__distance": "features", "flashback__where": "correct"}),
    ("replay", {"flashback__distance": "features"}),
    ("lwf-mc", {"flashback__merge": 0.4}),
    ("lucir", {"flashback__distance": "logits", "training__teacher_statistics": "batch"}),
]
FAMILIES = ("icarl", "icarl-aanets", "lwf-mc", "oewc", "der++", "xder", "foster", "beef")


@pytest.fixture(autouse=True, scope="module")
def deterministic() -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


class StopAt(Checkpoints):
    def __init__(self, folder: Path, moment: int | None) -> None:
        super().__init__(folder, CheckpointConfig())
        self.moment, self.moments = moment, []

    def due(self, position: Position) -> bool:
        self.moments.append(position)
        if len(self.moments) - 1 == self.moment:
            self.stopping.set()
            return True
        return False


def config_of(name: str, **settings: Any) -> RunConfig:
    memory = {"host__memory_size": 40} if hasattr(HOSTS[name].Settings(), "memory_size") else {}
    values = {"training__momentum": 0.9, "training__epochs": 4, "flashback__epochs": 2, **memory, **HELD.get(name, {})}
    return quick_config(name, flashback=HOSTS[name].has_knowledge, **(values | settings))


def train(
    config: RunConfig, precision: str = "fp32", checkpointer: Checkpoints | None = None, state: RunState | None = None
) -> tuple[dict[str, Any], dict[str, torch.Tensor], list[Any]]:
    device = torch.device("cuda")
    prepare_device(config, device, precision)
    benchmark = tiny_benchmark(per_class=25)
    events: list[Any] = []
    trainer = Trainer(build_method(config, benchmark, device), benchmark, [events.append], checkpointer, precision)
    if state is not None:
        trainer.resume(state)
    result = trainer.run()
    weights = {name: tensor.cpu() for name, tensor in trainer.host.state_dict().items()}
    return result.as_dict(), weights, [event for event in events if event["event"] == "epoch"]


def assert_captured_equals_eager(name: str, settings: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a step that cannot be captured warns
        captured = train(config_of(name, **settings))
    eager = train(config_of(name, **settings, capture=False))
    assert captured[0] == eager[0]
    assert all(torch.equal(captured[1][key], tensor) for key, tensor in eager[1].items())


@pytest.mark.parametrize("name", ["lwf-mc", "oewc", "der++"])
def test_averages_are_captured(name: str) -> None:
    settings = {"compile": False, "training__average": 0.9, "training__merge": 0.3}
    assert_captured_equals_eager(name, settings)


@pytest.mark.parametrize("name", ["lwf-mc", "lucir"])
def test_a_running_teacher_is_captured(name: str) -> None:
    settings = {"compile": False, "flashback__teacher": "running", "flashback__decay": 0.9}
    assert_captured_equals_eager(name, settings)


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_other_forms_are_captured(name: str, form: dict[str, Any]) -> None:
    settings = {"compile": False, "flashback__alpha": 0.5, **form}
    assert_captured_equals_eager(name, settings)


@pytest.mark.parametrize("name", list(HOSTS))
def test_captured_run_equals_the_eager_run(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a step that cannot be captured warns
        captured = train(config_of(name, compile=False))
    eager = train(config_of(name, compile=False, capture=False))
    assert captured[2] == eager[2]
    assert captured[0] == eager[0]
    for key, tensor in eager[1].items():
        assert torch.equal(captured[1][key], tensor), key


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
@pytest.mark.parametrize("name", ["icarl", "der++", "foster"])
def test_a_captured_run_with_adam_equals_the_eager_run(name: str, optimiser: str) -> None:
    """Its count of steps and its rate, which falls on the way, are tensors that a graph reads anew at every replay."""
    config = config_of(name, compile=False, training__optimiser=optimiser, training__schedule="cosine", **ADAM)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        captured = train(config)
    eager = train(replace(config, capture=False))
    assert captured[2] == eager[2]
    assert captured[0] == eager[0]
    for key, tensor in eager[1].items():
        assert torch.equal(captured[1][key], tensor), key


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
def test_captured_steps_with_adam_are_those_of_the_cpu(optimiser: str) -> None:
    """Eager, captured and replayed ones; kernels round differently, no more.

    With the usual eps a gradient that is nothing but rounding would move a weight as far as any other.
    """
    settings = {"training__optimiser": optimiser, "training__eps": 1e-3, "training__views": [], **ADAM}
    config = config_of("finetune", compile=False, **settings)
    benchmark, weights = tiny_benchmark(per_class=25), []
    for place in ("cpu", "cuda"):
        device = torch.device(place)
        prepare_device(config, device, "fp32")
        trainer = Trainer(build_method(config, benchmark, device), benchmark)
        (stage,) = trainer.method.stages()
        trainer.allocate(stage)
        trainer.host.train()
        step = make_step(trainer.host, stage, stage.stream(), "fp32")
        for k, indices in enumerate(torch.arange(48, device=device).split(8)):
            set_rate(step.optimiser, 0.005 / (k + 1))
            step(indices)
        if place == "cuda":
            assert isinstance(step, CapturedStep)
            assert len(step.graphs) == 1
        counts = {float(step.optimiser.state[parameter]["step"]) for parameter in stage.parameters()}
        assert counts == {6.0}
        weights.append({name: tensor.detach().cpu() for name, tensor in trainer.host.net.named_parameters()})
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-3, atol=1e-4, msg=name)


def test_a_captured_run_with_adam_resumes_exactly(tmp_path: Path) -> None:
    config = config_of("icarl", compile=False, training__optimiser="adam", **ADAM)
    checkpointer = StopAt(tmp_path / "whole", None)
    whole = train(config, "bf16", checkpointer)
    phase_2 = [k for k, at in enumerate(checkpointer.moments) if (at.task, at.stage, at.begun) == (1, 1, True)]
    folder = tmp_path / "stopped"
    with pytest.raises(Interrupted):
        train(config, "bf16", StopAt(folder, phase_2[len(phase_2) // 2]))
    again = train(config, "bf16", StopAt(folder, None), Checkpoints(folder, CheckpointConfig()).load())
    assert again[0] == whole[0]
    for key, tensor in whole[1].items():
        assert torch.equal(again[1][key], tensor), key


@pytest.mark.parametrize("name", ["ewc", "caf"])
def test_a_captured_run_with_dropout_equals_the_eager_run_and_resumes_exactly(name: str, tmp_path: Path) -> None:
    """Layers draw from torch's own generator, whose place a graph moves on at every replay."""
    adam = {"training__optimiser": "adam", "training__momentum": 0.0, "training__lr": 0.001}
    config = config_of(name, compile=False, host__net="cnn6", host__loss="ce_current", **adam)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpointer = StopAt(tmp_path / "whole", None)
        whole = train(config, checkpointer=checkpointer)
    eager = train(replace(config, capture=False))
    folder = tmp_path / "stopped"
    with pytest.raises(Interrupted):
        train(config, checkpointer=StopAt(folder, len(checkpointer.moments) // 2))
    again = train(config, checkpointer=StopAt(folder, None), state=Checkpoints(folder, CheckpointConfig()).load())
    for other in (eager, again):
        assert other[0] == whole[0]
        assert all(torch.equal(other[1][key], tensor) for key, tensor in whole[1].items())


def test_a_hook_before_the_update_is_captured_too() -> None:
    class Clipping(LwFMC):
        def before_update(self, step: Step) -> None:
            torch.nn.utils.clip_grad_norm_(self.trained_parameters(), 0.05)

    HOSTS.register("clipping")(Clipping)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        captured = train(config_of("clipping", compile=False))
    eager = train(config_of("clipping", compile=False, capture=False))
    bare = train(config_of("lwf-mc", compile=False))
    assert all(torch.equal(captured[1][key], tensor) for key, tensor in eager[1].items())
    assert any(not torch.equal(captured[1][key], tensor) for key, tensor in bare[1].items())


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_resumed_captured_run_equals_the_run_never_stopped(name: str, precision: str, tmp_path: Path) -> None:
    config = config_of(name, compile=False)
    checkpointer = StopAt(tmp_path / "whole", None)
    whole = train(config, precision, checkpointer)
    second = [k for k, position in enumerate(checkpointer.moments) if position.task == 1 and position.begun]
    switch = next(k for k in second if checkpointer.moments[k].stage == 1)
    for moment in (second[len(second) // 5], switch, second[-2]):  # in phase 1, at the switch, near the end of phase 2
        folder = tmp_path / str(moment)
        with pytest.raises(Interrupted):
            train(config, precision, StopAt(folder, moment))
        again = train(config, precision, StopAt(folder, None), Checkpoints(folder, CheckpointConfig()).load())
        assert again[0] == whole[0], checkpointer.moments[moment]
        for key, tensor in whole[1].items():
            assert torch.equal(again[1][key], tensor), (checkpointer.moments[moment], key)


@pytest.mark.parametrize(("name", "net"), [("icarl", "smallcnn"), ("icarl-aanets", "smallcnn"), ("ewc", "cnn6")])
def test_a_compiled_run_resumes_exactly_too(name: str, net: str, tmp_path: Path) -> None:
    """Long runs compile; here the batches are as small as the images, so that it is quick. `cnn6` has dropout."""
    config, moment = config_of(name, compile=True, host__net=net), 40
    whole = train(config, "bf16")
    with pytest.raises(Interrupted):
        train(config, "bf16", StopAt(tmp_path, moment))
    again = train(config, "bf16", StopAt(tmp_path, None), Checkpoints(tmp_path, CheckpointConfig()).load())
    assert again[0] == whole[0]
    for key, tensor in whole[1].items():
        assert torch.equal(again[1][key], tensor), key


def test_images_that_are_fetched_ahead_do_not_disturb_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    resident = train(config_of("icarl", compile=False))
    monkeypatch.setattr("flashback.batches.streams.available_bytes", lambda device: 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fetched = train(config_of("icarl", compile=False))
    assert fetched[0] == resident[0]
    for key, tensor in resident[1].items():
        assert torch.equal(fetched[1][key], tensor), key


@pytest.mark.parametrize(
    ("name", "lengths"), [("icarl", (2, 4)), ("der++", (2, 4)), ("agem", (2, 4)), ("xder", (3, 5))]
)
def test_compilations_do_not_grow_with_the_tasks(name: str, lengths: tuple[int, int]) -> None:
    """X-DER's first and last tasks have shapes of their own."""
    counts = []
    for tasks in lengths:
        torch.compiler.reset()
        torch._dynamo.utils.counters.clear()
        config = config_of(name, compile=True)
        device = torch.device("cuda")
        prepare_device(config, device, "bf16")
        benchmark = tiny_benchmark((2,) * tasks, per_class=25)
        Trainer(build_method(config, benchmark, device), benchmark, precision="bf16").run()
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert counts[0] == counts[1] > 0


def test_a_memory_that_fills_slowly_does_not_compile_at_every_step() -> None:
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    train(config_of("der", compile=True, training__batch_size=4, host__minibatch=40), "bf16")
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1  # with a whole draw


def test_memory_does_not_grow_with_the_tasks() -> None:
    """Every task captures anew; what the graphs of a task held is free again when it ends."""
    config = config_of("lwf-mc", compile=False)
    device = torch.device("cuda")
    prepare_device(config, device, "bf16")
    benchmark = tiny_benchmark((2,) * 6, per_class=25)
    sizes = []

    def note(event: Any) -> None:
        if event["event"] == "evaluation":
            sizes.append(torch.cuda.memory_allocated(device))

    Trainer(build_method(config, benchmark, device), benchmark, [note], precision="bf16").run()
    assert sizes[5] - sizes[1] < 4 << 20  # a cuBLAS workspace of one more stream would be 32 MiB


def test_what_cannot_be_captured_runs_eagerly_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    host = HOSTS["finetune"]
    monkeypatch.setattr(host, "after_step", lambda self, step: float(step.output.logits.sum()))
    with pytest.warns(UserWarning, match="cannot be captured"):
        train(config_of("finetune"))


def test_graphs_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    replays = []
    original = CapturedStep.capture
    monkeypatch.setattr(CapturedStep, "capture", lambda self, *a: replays.append(original(self, *a)) or replays[-1])
    train(config_of("icarl"))
    assert replays
    assert all(replays)
