"""What somebody meets who calls the library from Python: defaults, paths, refusals, and what a notebook shows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import flashback as fb
from flashback.records import RunFolder, read_record
from flashback.reports import read_report
from flashback.speed import read_bench
from helpers import quick_config, tiny_benchmark

# ---------------------------------------------------------------- devices


def test_a_host_is_built_where_a_run_would_train_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def select(name: str = "auto") -> torch.device:
        asked.append(name)
        return torch.device("cpu")

    monkeypatch.setattr(sys.modules["flashback.training.run"], "select_device", select)
    host = fb.build_host(quick_config("finetune"), tiny_benchmark())
    fb.build_host(quick_config("finetune"), tiny_benchmark(), "cuda")
    fb.build_host(quick_config("finetune"), tiny_benchmark(), torch.device("cpu"))
    assert asked == ["auto", "cuda"]
    assert host.device == torch.device("cpu")


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(fb.FlashbackError, match="auto, cpu or cuda, not 'gpu'"):
        fb.build_host(quick_config("finetune"), tiny_benchmark(), "gpu")


# ---------------------------------------------------------------- paths


def test_paths_may_be_strings(tmp_path: Path) -> None:
    folder, bench = str(tmp_path / "run"), str(tmp_path / "bench.json")
    RunFolder.open(Path(folder), {"host": {"name": "finetune"}}).write_run({"steps": 1})
    RunFolder(Path(folder)).write_results({"matrix": []})
    assert read_record(folder) == read_record(Path(folder))
    assert read_report(folder).skipped == read_report([folder]).skipped == read_report([Path(folder)]).skipped
    Path(bench).write_text("{}")
    with pytest.raises(fb.FlashbackError, match="holds no figures"):
        read_bench(bench)


# ---------------------------------------------------------------- refusals


def test_a_mistyped_setting_of_flashback_is_named() -> None:
    host = fb.build_host(quick_config("lwf-mc"), tiny_benchmark(), "cpu")
    with pytest.raises(fb.FlashbackError, match=r"unknown setting of flashback 'alpah'; did you mean 'alpha'\?"):
        fb.Flashback(host, alpah=1)


def test_a_run_needs_a_configuration() -> None:
    with pytest.raises(fb.FlashbackError, match=r"fb\.configure\(host, benchmark\)"):
        fb.run("icarl")  # type: ignore[arg-type]


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
