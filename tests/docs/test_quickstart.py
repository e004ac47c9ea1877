"""examples/quickstart.py runs, on fewer images, and is the example of the README."""

from __future__ import annotations

import ast
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import flashback as fb
from flashback.benchmarks import Benchmark, Images

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "quickstart.py"
README = EXAMPLE.parent.parent / "README.md"


def thinned(images: Images) -> Images:
    return Images(images.x[::10], images.y[::10])


def test_it_runs_and_prints_both_settings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    load = fb.load_benchmark

    def load_less(*arguments: Any) -> Benchmark:
        whole = load(*arguments)
        tasks = [replace(task, train=thinned(task.train), test=thinned(task.test)) for task in whole.tasks]
        return replace(whole, tasks=tuple(tasks))

    monkeypatch.setattr(fb, "load_benchmark", load_less)
    names = runpy.run_path(str(EXAMPLE))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["class_incremental", "task_incremental"]
    for setting, line in zip(("class_incremental", "task_incremental"), lines, strict=True):
        accuracy = names["result"][setting]["average_accuracy"]
        assert f"{accuracy:.1f} %" in line
    assert names["result"]["task_incremental"]["average_accuracy"] > 55  # two classes a task: chance is 50
    assert names["result"].history.bytes["plastic"] > 0


def test_it_is_short_and_the_same_in_the_readme() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    statements = [node for node in ast.parse(text).body if not isinstance(node, ast.Expr)]
    lines = sum((node.end_lineno or 0) - node.lineno + 1 for node in statements)
    assert lines < 10
    code = text.partition('"""\n\n')[2]
    assert code in README.read_text(encoding="utf-8")


def test_settings_are_given_by_plain_names() -> None:
    benchmark = fb.load_benchmark("split-fashion-mini", tasks=2)
    host = fb.build_host("icarl", benchmark, memory_size=40, epochs=3, lr=0.2, seed=5)
    config = host.config
    assert (config.host.memory_size, config.training.epochs, config.training.lr, config.seed) == (40, 3, 0.2, 5)
    with pytest.raises(fb.FlashbackError, match="unknown setting 'memorysize'; did you mean 'memory_size'"):
        fb.build_host("icarl", benchmark, memorysize=40)
    with pytest.raises(fb.FlashbackError, match="unknown host 'icral'"):
        fb.build_host("icral", benchmark)
    with pytest.raises(fb.FlashbackError, match=r"host\.memory_size is 3"):
        fb.build_host("icarl", benchmark, memory_size=3)
