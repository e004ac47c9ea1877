"""What somebody meets who calls the library from Python: defaults, paths, refusals, and what a notebook shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import flashback as fb
from flashback.config import FlashbackConfig, TrainingConfig
from flashback.hosts import HOSTS
from flashback.records import RunFolder, read_record
from flashback.reports import read_report
from flashback.training import building
from helpers import quick_config, quick_flashback, quick_host, tiny_benchmark

# ---------------------------------------------------------------- devices


def test_a_host_is_built_where_a_run_would_train_it(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[str | torch.device] = []

    def select(device: str | torch.device = "auto") -> torch.device:
        requests.append(device)
        return torch.device("cpu")

    monkeypatch.setattr(building, "select_device", select)
    host = fb.build_host(quick_config("finetune"), tiny_benchmark())
    fb.build_host(quick_config("finetune"), tiny_benchmark(), "cuda")
    fb.build_host(quick_config("finetune"), tiny_benchmark(), torch.device("cpu"))
    assert requests == ["auto", "cuda", torch.device("cpu")]
    assert host.device == torch.device("cpu")


@pytest.mark.slow
def test_a_device_may_be_one_of_torch_everywhere(tmp_path: Path) -> None:
    here = torch.device("cpu")
    settings = {"benchmark.tasks": 2, "training.epochs": 1, "flashback.second_epochs": 1, "training.batch_size": 500}
    comparison = fb.compare("lwf-mc", seeds=[0], out=tmp_path, settings=settings, device=here)
    assert comparison.failures == {}
    assert fb.load_trained(tmp_path / "host" / "seed-0", device=here).device == here


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(fb.FlashbackError, match="auto, cpu or cuda, not 'gpu'"):
        fb.build_host(quick_config("finetune"), tiny_benchmark(), "gpu")


# ---------------------------------------------------------------- paths


def test_paths_may_be_strings(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    RunFolder.open(Path(folder), {"host": {"name": "finetune"}}).write_run({"steps": 1})
    RunFolder(Path(folder)).finish({}, {"matrix": []})
    assert read_record(folder) == read_record(Path(folder))
    assert read_report(folder).skipped == read_report([folder]).skipped == read_report([Path(folder)]).skipped


# ---------------------------------------------------------------- refusals


def test_a_mistyped_setting_of_flashback_is_named() -> None:
    host = fb.build_host(quick_config("lwf-mc"), tiny_benchmark(), "cpu")
    with pytest.raises(fb.FlashbackError, match=r"unknown setting of flashback 'alpah'; did you mean 'alpha'\?"):
        fb.Flashback(host, alpah=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"support": "everything"}, r"flashback\.support must be one of host, all, memory, not 'everything'"),
        ({"phase1_schedule": "hosts"}, r"flashback\.phase1_schedule must be one of none, host, not 'hosts'"),
        (
            {"alpha_schedule": "risin"},
            r"flashback\.alpha_schedule must be one of constant, rising, falling, not 'risin'",
        ),
        ({"alpha": "x"}, r"flashback\.alpha must be a number, not 'x'"),
        ({"alpha": True}, r"flashback\.alpha must be a number, not True"),
        ({"alpha": float("nan")}, r"flashback\.alpha must be a finite number, not nan"),
        ({"epochs": 1.5}, r"flashback\.epochs must be a whole number, not 1\.5"),
        ({"second_epochs": "2"}, r"flashback\.second_epochs must be a whole number, not '2'"),
        ({"settings": {"alpha": 1}}, r"settings of flashback go by name \(alpha=0\.1\), not \{'alpha': 1\}"),
        ({"settings": FlashbackConfig(support="everything")}, r"flashback\.support must be one of"),  # type: ignore[arg-type]
    ],
)
def test_nonsense_for_flashback_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(fb.FlashbackError, match=f"^{message}") as caught:
        fb.Flashback(quick_host("lwf-mc"), **changes)
    assert "\n" not in str(caught.value)


def test_numbers_for_flashback_are_taken_as_a_configuration_takes_them() -> None:
    settings = fb.Flashback(quick_host("lwf-mc"), alpha=1, epochs=1, alpha_schedule="rising").settings
    assert (type(settings.alpha), settings.epochs, settings.alpha_schedule) == (float, 1, "rising")
    config = FlashbackConfig(epochs=1, alpha=0.25)
    assert fb.Flashback(quick_host("lwf-mc"), config, start=0.5).settings == replace(config, enabled=True, start=0.5)


def test_a_configuration_takes_plain_names_as_a_host_does() -> None:
    plain = fb.configure("icarl", epochs=3, memory_size=77, seed=4)
    assert plain == fb.configure("icarl", seed=4, settings={"training.epochs": 3, "host.memory_size": 77})
    with pytest.raises(fb.FlashbackError, match="unknown setting 'epoch'; did you mean 'epochs'"):
        fb.configure("icarl", epoch=3)
    with pytest.raises(fb.FlashbackError, match=r"'gamma' may be training\.gamma or host\.gamma"):
        fb.configure("oewc", gamma=0.5)


@pytest.mark.parametrize("host", ["oewc", "xder"])
def test_a_name_that_host_and_training_have_is_not_guessed(host: str) -> None:
    with pytest.raises(fb.FlashbackError, match=r"'gamma' may be training\.gamma or host\.gamma; .*\{.training\.gamma"):
        fb.build_host(host, tiny_benchmark(), "cpu", gamma=0.77)
    config = fb.configure(host, "tiny", settings={"training.gamma": 0.77, "training.epochs": 2})
    built = fb.build_host(config, tiny_benchmark(), "cpu")
    assert built.config.training.gamma == 0.77
    assert built.settings.gamma != 0.77


def test_which_names_are_not_plain() -> None:
    training = {field.name for field in fields(TrainingConfig)}
    shared = {(name, key.name) for name in HOSTS for key in fields(HOSTS[name].Settings) if key.name in training}
    assert shared == {("oewc", "gamma"), ("pnc", "gamma"), ("xder", "gamma")}


def test_a_run_needs_a_configuration() -> None:
    with pytest.raises(fb.FlashbackError, match=r"fb\.configure\(host, benchmark\)"):
        fb.run("icarl")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fb.build_host("icarl", "split-fashion-mini"), "not str; load it with fb.load_benchmark"),
        (lambda: fb.build_host(3, tiny_benchmark()), "the name of a host or what fb.configure returns, not int"),
        (lambda: fb.train("icarl"), "not str; build one with fb.build_host"),
        (lambda: fb.train(quick_host("finetune"), "split-fashion-mini"), "not str; load it with fb.load_benchmark"),
        (lambda: fb.Flashback(quick_flashback("lwf-mc")), "wraps a Host, not Flashback"),
        (lambda: fb.Flashback("lwf-mc"), "wraps a Host, not str"),
    ],
)
def test_other_things_are_refused_with_one_sentence(call: Callable[[], object], message: str) -> None:
    with pytest.raises(fb.FlashbackError, match=message):
        call()


def test_a_result_says_what_it_holds() -> None:
    result = fb.train(quick_host("finetune"))
    with pytest.raises(fb.FlashbackError, match=r"a result has class_incremental and task_incremental, not 'linear'"):
        result["linear"]


# ---------------------------------------------------------------- nothing a configuration says is dropped


def test_settings_beside_a_configuration_are_refused() -> None:
    with pytest.raises(fb.FlashbackError, match=r"give epochs, memry to fb\.configure"):
        fb.build_host(quick_config("icarl"), tiny_benchmark(), epochs=3, memry=5)
    assert fb.build_host("lwf-mc", tiny_benchmark(), "cpu", epochs=3).config.training.epochs == 3


def test_flashback_is_not_dropped() -> None:
    host = fb.build_host(quick_config("lwf-mc", flashback=True, flashback__alpha=0.3), tiny_benchmark(), "cpu")
    with pytest.raises(fb.FlashbackError, match=r"train fb\.Flashback\(host\), or give the configuration to fb\.run"):
        fb.train(host)
    assert not host.trained
    assert fb.Flashback(host).settings.alpha == 0.3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "other"}, "benchmark.name is 'other' in the configuration but 'tiny'"),
        ({"sizes": [4, 3]}, r"benchmark.sizes is \[4, 3\] in the configuration but \[2, 3, 2\]"),
        ({"sizes": [2, 3, 2], "tasks": 2}, r"benchmark.sizes is \[2, 3\] in the configuration but \[2, 3, 2\]"),
        ({"tasks": 2}, "benchmark.tasks is 2 in the configuration but 3"),
        ({"order": [6, 5, 4, 3, 2, 1, 0]}, r"benchmark.order is \(6, 5, .* but \(0, 1,"),
        ({"order": 1993}, "benchmark.order is"),
        ({"order": "seed"}, "benchmark.order is"),
    ],
)
def test_a_benchmark_that_contradicts_the_configuration_is_refused(settings: dict[str, Any], message: str) -> None:
    config = quick_config("finetune", **{f"benchmark__{key}": value for key, value in settings.items()})
    with pytest.raises(fb.FlashbackError, match=message):
        fb.build_host(config, tiny_benchmark((2, 3, 2)), "cpu")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"name": "data/tiny.npz"},
        {"sizes": [2, 3, 2], "order": "identity", "tasks": 3},
        {"sizes": [2, 3, 2, 4], "tasks": 3},
        {"order": [0, 1, 2, 3, 4, 5, 6]},
    ],
)
def test_a_benchmark_that_is_what_the_configuration_says_is_taken(settings: dict[str, Any]) -> None:
    config = quick_config("finetune", **{f"benchmark__{key}": value for key, value in settings.items()})
    assert fb.build_host(config, tiny_benchmark((2, 3, 2)), "cpu").config is config


@pytest.mark.parametrize("settings", [{"flashback.alpha": 3.0}, {"flashback": {"alpha": 3.0}}])
def test_settings_of_flashback_need_flashback(settings: dict[str, Any]) -> None:
    with pytest.raises(fb.FlashbackError, match=r"flashback\.alpha has no effect without flashback; .* flashback=True"):
        fb.configure("icarl", settings=settings)
    assert fb.configure("icarl", flashback=True, settings=settings).flashback.alpha == 3.0
    assert fb.configure("icarl", settings={**settings, "flashback.enabled": True}).flashback.alpha == 3.0
    host_arm = fb.configure("icarl", flashback=False, settings=settings)
    assert not host_arm.flashback.enabled
    assert not fb.configure("icarl").flashback.enabled


def test_a_mistyped_setting_is_named_before_it_is_found_idle() -> None:
    with pytest.raises(fb.FlashbackError, match=r"unknown key 'flashback\.alpah'; did you mean 'flashback\.alpha'"):
        fb.configure("icarl", settings={"flashback.alpah": 3.0})


# ---------------------------------------------------------------- progress


def expected_lines(result: fb.TrainingResult) -> list[str]:
    rows = result["class_incremental"]["matrix"]
    means = [sum(row[: k + 1]) / (k + 1) for k, row in enumerate(rows)]
    return [f"task {k + 1} of {len(rows)}: average accuracy {mean:.1f} %" for k, mean in enumerate(means)]


def test_a_line_is_printed_for_every_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = fb.train(quick_host("finetune"), progress=True)
    assert capsys.readouterr().out.splitlines() == expected_lines(result)
    settings = {"training.epochs": 1, "training.batch_size": 500, "benchmark.tasks": 2}
    for out in (None, tmp_path / "run"):
        result = fb.run(fb.configure("finetune", settings=settings), device="cpu", out=out, progress=True)
        assert capsys.readouterr().out.splitlines() == expected_lines(result)


def test_nothing_is_printed_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    fb.train(quick_host("finetune"))
    assert capsys.readouterr().out == ""


# ---------------------------------------------------------------- what a notebook shows


def test_a_benchmark_and_a_result_take_one_line() -> None:
    benchmark = tiny_benchmark((2, 3))
    images = sum(len(task.train) for task in benchmark.tasks)
    shape = "×".join(map(str, benchmark.image_shape))
    assert repr(benchmark) == f"Benchmark({benchmark.name}: 2 tasks, 5 classes, {images} images of {shape})"
    result = fb.train(fb.build_host(quick_config("icarl", host__memory_size=10), benchmark, "cpu"))
    both = (f"{name} {result[name]['average_accuracy']:.2f} %" for name in ("class_incremental", "task_incremental"))
    classifier = result.as_dict()["classifier"]
    assert repr(result) == f"TrainingResult(average accuracy: {', '.join(both)}; {classifier} classifier)"


def test_validation_images_are_no_test_images(tmp_path: Path) -> None:
    """Of a configuration and a benchmark, both say the same or neither does anything."""
    plain, held_out = (fb.load_benchmark("split-fashion-mini", validation=share) for share in (0.0, 0.2))
    config = fb.configure("lwf-mc", settings={"benchmark.validation": 0.2})
    with pytest.raises(fb.FlashbackError, match=r"benchmark\.validation is 0\.2 in the configuration but 0\.0 in the"):
        fb.build_host(config, plain)
    with pytest.raises(fb.FlashbackError, match=r"benchmark\.validation is 0\.0 in the configuration but 0\.2 in the"):
        fb.build_host(fb.configure("lwf-mc"), held_out)
    host = fb.build_host("lwf-mc", held_out)
    assert host.config.benchmark.validation == 0.2
    others = (plain, fb.load_benchmark("split-fashion-mini", validation=0.2, seed=1))
    for other in others:
        with pytest.raises(fb.FlashbackError, match="built for another benchmark"):
            fb.train(host, other)


def test_a_stop_is_no_ordinary_exception() -> None:
    from flashback.training import Interrupted

    assert issubclass(Interrupted, KeyboardInterrupt)  # a loop over runs that catches exceptions does not go on
    assert not issubclass(Interrupted, Exception)
    assert str(Interrupted()) == "stopped and saved; the same call continues from here"
