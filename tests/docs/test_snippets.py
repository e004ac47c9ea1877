"""Run every command and every Python snippet of the documentation, in the order of its page.

Extra options keep the runs short: few tasks, epochs and images. The quick start is in the fast suite.
"""

from __future__ import annotations

import logging
import os
from ast import literal_eval
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from doc_pages import PAGES, ROOT, Block, blocks, calls

import flashback as fb
from flashback import bench
from flashback.benchmarks import BENCHMARKS, Benchmark, Images, load_benchmark
from flashback.cli import main
from flashback.cli.commands import app
from flashback.cli.listing import LISTS
from flashback.config import parse_assignment
from flashback.hosts import HOSTS
from flashback.recipes import configure
from flashback.studies.jobs import RunContext
from flashback.studies.sweeps import plan, read_sweep, shipped_sweeps
from flashback.training import building

ELSEWHERE = {
    "learning.md": "tests/docs/test_learning_page.py",
    "your-own-host.md": "tests/docs/test_own_host.py",
}
FAST = {"start.md"}
QUICK = {"benchmark.tasks": 2, "training.epochs": 2, "training.batch_size": 32, "flashback.epochs": 1}
SETTINGS = [word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")]
SHORTER = {
    "run": SETTINGS,
    "compare": [*SETTINGS, "--jobs", "1"],
    "sweep": ["--jobs", "1"],
    "tune": [*SETTINGS[:-2], "--trials", "2"],  # it chooses E1 itself
}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
each_page_run = pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=() if page.name in FAST else pytest.mark.slow) for page in PAGES],
    ids=lambda page: page.stem,
)


def thinned(images: Images) -> Images:
    return Images(images.x[::50], images.y[::50])


@cache
def shipped_images(options: str) -> Benchmark:
    """Two tasks of few images; the options are keywords as Python writes them."""
    whole = load_benchmark("split-fashion-mini", **literal_eval(options))
    tasks = [replace(task, train=thinned(task.train), test=thinned(task.test)) for task in whole.tasks[:2]]
    return replace(whole, tasks=tuple(tasks))


def load_less(name: str, **options: Any) -> Benchmark:
    if name != "split-fashion-mini":
        return load_benchmark(name, **options)
    return shipped_images(repr({**options, "data": None}))


@pytest.fixture
def small_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fb, "load_benchmark", load_less)
    monkeypatch.setattr(building, "load_benchmark", load_less)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(bench, "ON_CPU", replace(bench.ON_CPU, per_class=5, seconds=0.01))


# ---------------------------------------------------------------- run


@each_page_run
def test_every_snippet_of_a_page_runs(page: Path, small_world: None, capsys: pytest.CaptureFixture[str]) -> None:
    if page.name in ELSEWHERE:
        assert page.name in (ROOT / ELSEWHERE[page.name]).read_text(encoding="utf-8")
        return
    names: dict[str, Any] = {}
    for block in blocks(page):
        if block.not_run:
            continue
        if block.title is not None:
            save(block)
        elif block.language == "python":
            exec(compile(block.text, page.name, "exec"), names)
        for words in calls(block, "flashback"):
            run_command(words, capsys)
    logging.getLogger("optuna").handlers.clear()


def save(block: Block) -> None:
    """Write a file that the page shows; a sweep gets the quick settings in its file, as it has no option for them."""
    text = block.text
    document = yaml.safe_load(text) if block.language == "yaml" else None
    if document and "hosts" in document:
        text = yaml.safe_dump(document | {"settings": document.get("settings", {}) | QUICK})
    Path(str(block.title)).write_text(text)


def is_outline(words: list[str]) -> bool:
    """Tell a synopsis such as `[--out FILE]` from a command."""
    return any(word.startswith("[") for word in words)


def run_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    if is_outline(words):
        return
    if words[0] == "resume":
        (Path(words[1]) / "results.json").unlink()  # as if the run had been stopped just before its end
    more = SHORTER.get(words[0], [])
    if words[0] == "run" and "--flashback" not in words:
        more = SETTINGS[:-2]
    if words[0] == "compare" and "--seed-list" not in words:
        more = [*more, "--seeds", "1"]
    if words == ["bench"]:
        more = ["icarl", *more]  # not every host
    with pytest.raises(SystemExit) as end:
        main([*words, *more])
    captured = capsys.readouterr()
    assert end.value.code == 0, f"flashback {' '.join(words)}\n{captured.out}\n{captured.err}"


# ---------------------------------------------------------------- parsed


@each_page
def test_every_command_exists(page: Path) -> None:
    """Names, options and settings exist, also in commands that need data or a device that is not here."""
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    for block in blocks(page):
        for words in calls(block, "make"):
            assert f"\n{words[0]}:" in targets, f"make {words[0]}"
        for words in calls(block, "flashback"):
            check(words)
        if block.language == "yaml":
            yaml.safe_load(block.text)
        if block.language == "python":
            compile(block.text, page.name, "exec")


def check(words: list[str]) -> None:
    command = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    if is_outline(words):
        named = {word.strip("[]") for word in words if word.strip("[]").startswith("--")}
        assert named <= {option for parameter in command.params for option in parameter.opts}
        return
    options = command.make_context(words[0], words[1:]).params
    settings = dict(map(parse_assignment, options.get("settings") or []))
    if words[0] in ("run", "compare", "tune") and not options["host"].endswith(".yaml") and not options["host_file"]:
        recipe = options["recipe"] or "controlled"
        benchmark = options["benchmark"] or "split-fashion-mini"
        assert benchmark in BENCHMARKS or "benchmark.sizes" in settings
        configure(
            options["host"],
            benchmark,
            flashback=options["flashback"] if words[0] == "run" else HOSTS[options["host"]].has_knowledge,
            recipe="controlled" if recipe.endswith(".yaml") else recipe,
            settings=settings,
        )
    if words[0] == "sweep" and options["file"] in shipped_sweeps():
        assert plan(read_sweep(options["file"]), Path("out"), RunContext(None, "cpu", None))
    if words[0] == "list":
        assert options["what"] is None or options["what"] in LISTS
    for host in options.get("hosts") or []:
        assert host in HOSTS


@pytest.mark.parametrize(
    "line",
    ["run icarl --flashbak", "compare icarl --seed 3", "run icarl --set training.epoch=3", "run icral", "tune"],
)
def test_unknown_names_are_noticed(line: str) -> None:
    with pytest.raises(Exception, match=r"[Nn]o such option|unknown|Missing"):
        check(line.split())


def test_blocks_are_found() -> None:
    listed = [block for page in PAGES for block in blocks(page)]
    assert sum(len(calls(block, "flashback")) for block in listed) > 30
    assert sum(block.language == "python" for block in listed) > 8
    assert any(block.not_run for block in listed)
