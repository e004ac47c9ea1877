"""Reading run folders: every finished run once, everything else left out with a reason."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_runs import (
    SETTINGS,
    made_config,
    made_log,
    made_matrix,
    made_results,
    write_comparison,
    write_run,
    write_similarity,
)

import flashback as fb
from flashback.errors import FlashbackError
from flashback.metrics import summarise
from flashback.metrics.accuracy import METRICS, OVER_IMAGES
from flashback.reports import read_report
from flashback.reports.page import html_page
from flashback.results import group_methods, pair_arms, read_runs
from flashback.studies.comparison import read_finished

CI, TI = SETTINGS
PLAIN = ("icarl", "icarl with flashback")
MATRICES = {setting: made_matrix(3) for setting in SETTINGS}


def edit(path: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_every_run_below_the_folders_is_read_once(tmp_path: Path) -> None:
    write_comparison(tmp_path / "a" / "deep", seeds=2)
    write_run(tmp_path / "b", made_config(seed=9), MATRICES)
    assert {run.name for run in read_runs(tmp_path).runs} == {
        "a/deep/host/seed-0", "a/deep/host/seed-1", "a/deep/flashback/seed-0", "a/deep/flashback/seed-1", "b",
    }  # fmt: skip
    assert len(read_runs([tmp_path, tmp_path / "b", tmp_path / "a"]).runs) == 5


def test_a_folder_that_is_itself_a_run(tmp_path: Path) -> None:
    write_run(tmp_path / "mine", made_config(seed=3), MATRICES)
    (run,) = read_runs(str(tmp_path / "mine")).runs
    assert (run.name, run.seed, run.arm, run.host, run.tasks) == ("mine", 3, "host", "icarl", 3)


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FlashbackError, match="is not a folder"):
        read_runs(tmp_path / "nowhere")


def test_metrics_follow_from_the_matrix_whatever_the_record_says(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", made_config(), MATRICES)
    edit(folder / "results.json", lambda results: results[CI].update(average_accuracy=99.0, forgetting=-3))
    (run,) = read_runs(tmp_path).runs
    expected = summarise(MATRICES[CI], [100] * 3, [10.0] * 2, [8.0] * 3)
    assert run.metrics(CI) == pytest.approx(expected)
    assert run.metric("forgetting") == run.metrics()["forgetting"]
    assert run.matrix(TI) == MATRICES[TI]


def test_a_metric_without_value_stays_without(tmp_path: Path) -> None:
    """The matrix of joint training would give a forgetting of a model that was not trained yet."""
    folder = write_run(tmp_path / "run", made_config(), MATRICES)
    edit(folder / "results.json", lambda results: results[CI].update(forgetting=None))
    (run,) = read_runs(tmp_path).runs
    assert run.metric("forgetting", CI) is None
    assert run.metric("average_accuracy", CI) is not None
    assert run.metric("forgetting", TI) is not None


@pytest.mark.parametrize(
    ("facts", "over_images"),
    [
        ({"task_sizes": [2, 2], "data": {"test_images": [20, 20]}}, False),
        ({"task_sizes": [2, 2]}, False),
        ({"task_sizes": [3, 2]}, True),
        ({"task_sizes": [2, 2], "data": {"test_images": [200, 20]}}, True),  # as many classes, fewer images
        ({"task_sizes": {"first": 2}}, False),
        ({"task_sizes": "22", "data": None}, False),
    ],
)
def test_averages_over_images_count_where_tasks_differ_in_size(
    facts: dict[str, Any], over_images: bool, tmp_path: Path
) -> None:
    write_run(tmp_path / "run", made_config(), MATRICES, **facts)
    (run,) = read_runs(tmp_path).runs
    assert run.metric_names == [*METRICS, *(OVER_IMAGES if over_images else ())]


# ---------------------------------------------------------------- broken records


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


def results(change: Callable[[Any], None]) -> Callable[[Path], None]:
    return lambda folder: edit(folder / "results.json", change)


def run_json(change: Callable[[Any], None]) -> Callable[[Path], None]:
    return lambda folder: edit(folder / "run.json", change)


def cell(value: Any) -> Callable[[Path], None]:
    return results(lambda r: r[CI]["matrix"][1].__setitem__(0, value))


BREAKAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "unfinished": (remove("results.json"), "not finished"),
    "no configuration": (remove("config.yaml"), "config.yaml is missing"),
    "no run": (remove("run.json"), "run.json is missing"),
    "half written": (write("results.json", '{"class_incr'), "not valid JSON"),
    "no mapping": (write("results.json", "[1, 2]"), "does not hold a mapping"),
    "not YAML": (write("config.yaml", "a: [1"), "not valid YAML"),
    "not text": (lambda folder: (folder / "run.json").write_bytes(b"\xff\xfe\x00") and None, "unreadable"),
    "foreign": (write("config.yaml", "version: 3\n"), "no host.name"),
    "seed of another kind": (write("config.yaml", json.dumps(made_config(seed="0"))), "no seed"),
    "no matrix": (results(lambda r: r[CI].pop("matrix")), "no class_incremental matrix"),
    "no second setting": (results(lambda r: r.pop(TI)), "no task_incremental results"),
    "empty matrix": (results(lambda r: r[TI].update(matrix=[])), "no task_incremental matrix"),
    "ragged matrix": (results(lambda r: r[CI]["matrix"][2].pop()), "not a triangle of percentages"),
    "words in the matrix": (cell("80"), "not a triangle of percentages"),
    "impossible accuracy": (cell(101.0), "not a triangle of percentages"),
    "not a number": (cell(float("nan")), "not a triangle of percentages"),
    "wrong zero shot": (results(lambda r: r[CI].update(zero_shot="much")), "not a list"),
    "no steps": (run_json(lambda r: r.pop("steps")), "the steps of the run"),
    "negative steps": (run_json(lambda r: r.update(steps=-1)), "the steps of the run"),
    "endless images": (run_json(lambda r: r.update(images=1e300)), "the images of the run"),
    "no seconds": (run_json(lambda r: r.update(seconds=None)), "the seconds of the run"),
    "no bytes": (run_json(lambda r: r.update(knowledge_bytes=[4000])), "bytes of knowledge"),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_broken_record_is_left_out_with_the_reason(breakage: str, tmp_path: Path) -> None:
    spoil, reason = BREAKAGES[breakage]
    write_run(tmp_path / "good", made_config(), MATRICES)
    bad = write_run(tmp_path / "bad", made_config(seed=1), MATRICES)
    spoil(bad)
    result = read_runs(tmp_path)
    assert [run.name for run in result.runs] == ["good"]
    assert list(result.skipped) == ["bad"]
    assert reason in result.skipped["bad"]
    assert str(tmp_path) not in result.skipped["bad"]
    with pytest.raises(FlashbackError, match=f"{reason}.*; remove the folder"):
        read_finished(bad)


def test_folders_without_runs_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("nothing here")
    folder = write_run(tmp_path / "run", made_config(), MATRICES)
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "config.yaml").write_text("not: a run")
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "config.yaml").write_text("of: a study")
    (tmp_path / "tuned" / "study.db").write_text("")
    result = read_runs(tmp_path)
    assert len(result.runs) == 1
    assert not result.skipped


JUNK = st.sampled_from([None, -1, True, 1e300, "x", [], {}, [[]], {"a": 1}, [None], float("inf"), 10**400])


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_no_junk_in_a_record_is_fatal(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The run is read or left out, and the page is still written."""
    root = tmp_path_factory.mktemp("junk")
    write_run(root / "good", made_config(), MATRICES)
    folder = write_run(root / "bad", made_config(seed=1), MATRICES, confusion=[[1, 2], [3, 4]])
    name = data.draw(st.sampled_from(["config.yaml", "run.json", "results.json"]))
    content: Any = made_config(seed=1) if name == "config.yaml" else json.loads((folder / name).read_text())
    inner, key = content, data.draw(st.sampled_from(sorted(content)))
    while isinstance(inner[key], (dict, list)) and inner[key] and data.draw(st.booleans()):
        inner = inner[key]
        key = data.draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
    inner[key] = data.draw(JUNK)
    (folder / name).write_text(json.dumps(content))
    report = read_report([root])
    assert {"good", "bad"} == {run.name for run in report.runs} | set(report.skipped)
    assert "</html>" in html_page(report)


# ---------------------------------------------------------------- logs


def test_losses_are_read_from_the_log_and_damaged_lines_are_passed_over(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", made_config(), MATRICES, log=made_log(2, 3, flashback=False))
    with (folder / "log.jsonl").open("a") as file:
        file.write(
            '{"event": "epoch", "task": 1, "stage": "learn", "epoch": 1, "epochs": "many", "losses": {"a": 1}}\n'
        )
        file.write('{"event": "epoch", "losses": {"task"')
    (run,) = read_runs(tmp_path).runs
    assert [(epoch.task, epoch.number) for epoch in run.epochs] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert run.epochs[4].losses == {"task": 0.75, "stability": 0.22}


def test_a_run_without_a_log_is_a_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", made_config(), MATRICES)
    (folder / "log.jsonl").unlink()
    os.mkfifo(folder / "log.jsonl")  # and a pipe is not waited for
    (run,) = read_runs(tmp_path).runs
    assert run.epochs == []


# ---------------------------------------------------------------- classifiers, classes, similarity


def test_other_classifiers_are_kept_beside_the_method_s_own(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", made_config(), MATRICES)
    other = made_results({setting: made_matrix(3, seed=5) for setting in SETTINGS})["classifiers"]["linear"]
    edit(folder / "results.json", lambda results: results["classifiers"].update(nearest=other))
    (run,) = read_runs(tmp_path).runs
    assert list(run.results) == ["linear", "nearest"]
    assert run.classifier == "linear"
    assert run.metric(classifier="nearest") == pytest.approx(other[CI]["average_accuracy"])
    assert run.metric() != run.metric(classifier="nearest")


def test_a_run_names_its_classes_in_the_order_of_learning(tmp_path: Path) -> None:
    order = [9, 0, 5, 2, 1, 3, 4, 6, 7, 8]
    short = {"training.epochs": 1, "benchmark.order": order, "benchmark.sizes": [2] * 5, "benchmark.tasks": 1}
    config = fb.configure("finetune", settings=short)
    result = fb.run(config, out=tmp_path / "run")
    (run,) = read_runs(tmp_path).runs
    assert run.class_names[:3] == ["ankle boot", "t-shirt", "sandal"]
    assert run.class_names == list(result.class_names)


def test_confusion_and_class_names_are_read_in_the_order_of_learning(tmp_path: Path) -> None:
    data = {"class_names": ["cat", "ant", "bee"]}
    write_run(tmp_path / "a", made_config(), MATRICES, confusion=[[9, 1], [4, 6]], class_order=[2, 0, 1], data=data)
    write_run(tmp_path / "b", made_config(seed=1), MATRICES, confusion=[[9, 1], [4]], class_order=[2, 0])
    first, second = read_runs(tmp_path).runs
    assert first.class_names == ["cat", "ant", "bee"]
    assert first.confusion() == [[9, 1], [4, 6]]
    assert second.class_names == ["class 2", "class 0"]
    assert second.confusion() is None


def test_similarities_are_read(tmp_path: Path) -> None:
    write_similarity(tmp_path, "oewc", seeds=(1, 2))
    (similarity,) = read_runs(tmp_path).similarities
    assert similarity.title == "oewc, seeds 1 and 2"
    assert similarity.values["new"]["flashback"][0] == pytest.approx(0.76)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[", "JSON"),
        ("{}", "not complete"),
        ('{"layers": ["a"], "old": {}, "new": {}}', "not complete"),
        (
            '{"host": "x", "seeds": {"host": 0, "flashback": 0}, "layers": ["a"], "old": {"host": [2]}, "new": {}}',
            "one similarity",
        ),
        ('{"host": "x", "seeds": {"host": 0, "flashback": 0}, "layers": [], "old": {}, "new": {}}', "one similarity"),
    ],
)
def test_broken_similarities_are_left_out(content: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "cka.json").write_text(content)
    result = read_runs(tmp_path)
    assert not result.similarities
    assert reason in next(iter(result.skipped.values()))


# ---------------------------------------------------------------- repetitions, spellings, labels


def test_a_run_made_twice_counts_once(tmp_path: Path) -> None:
    write_comparison(tmp_path / "a", seeds=2)
    write_run(tmp_path / "b", made_config(seed=1), MATRICES | {CI: made_matrix(4), TI: made_matrix(4)})
    result = read_runs(tmp_path)
    assert result.skipped == {"b": "repeats a/host/seed-1: the same configuration and seed"}
    assert len(result.runs) == 4


def test_a_file_is_one_benchmark_however_its_path_is_written(tmp_path: Path) -> None:
    write_comparison(tmp_path / "a", seeds=1, benchmark="data/mine.npz", run={"data_checksum": "1"})
    write_run(tmp_path / "b", made_config(seed=7, benchmark__name="/elsewhere/mine.npz"), MATRICES, data_checksum="1")
    write_run(tmp_path / "c", made_config(seed=8, benchmark__name="mine.npz"), MATRICES, data_checksum="2")
    names = {run.name: run.benchmark for run in read_runs(tmp_path).runs}
    assert names["b"] == names["a/host/seed-0"] != names["c"]


def test_labels_name_methods_and_need_a_folder_with_runs(tmp_path: Path) -> None:
    write_comparison(tmp_path / "mine", seeds=1, host__net="resnet32")
    write_comparison(tmp_path / "plain", seeds=1)
    runs = read_runs(tmp_path, labels={"our net": tmp_path / "mine"}).runs
    names = {method.name for method in group_methods(runs)}
    assert names == {"our net", "our net with flashback", *PLAIN}
    with pytest.raises(FlashbackError, match="no run lies below"):
        read_runs(tmp_path, labels={"x": tmp_path / "nowhere"})


def test_runs_with_different_labels_are_different_methods_each_with_its_own_pair(tmp_path: Path) -> None:
    """Both folders hold the same configuration: seeds 0 and 1 below `a`, 1 and 2 below `b`."""
    for folder, seeds in (("a", (0, 1)), ("b", (1, 2))):
        for seed, enabled in product(seeds, (False, True)):
            config = made_config(seed=seed, flashback__enabled=enabled)
            write_run(tmp_path / folder / str(enabled) / str(seed), config, MATRICES)
    a, b = tmp_path / "a", tmp_path / "b"
    for labels in ({"one": a, "two": b}, {"one": a}, {"two": b}):
        result = read_runs(tmp_path, labels=labels)
        assert not result.skipped
        methods = group_methods(result.runs)
        first, second = ("one" if "one" in labels else "icarl"), ("two" if "two" in labels else "icarl")
        assert {method.name: method.seeds for method in methods} == {
            first: [0, 1], f"{first} with flashback": [0, 1],
            second: [1, 2], f"{second} with flashback": [1, 2],
        }  # fmt: skip
        assert {pair.name: pair.common_seeds for pair in pair_arms(methods)} == {first: [0, 1], second: [1, 2]}
    assert len(read_runs(tmp_path).runs) == 6


def test_a_run_made_twice_under_one_label_counts_once(tmp_path: Path) -> None:
    for folder in ("mine/a", "mine/b", "other"):
        write_run(tmp_path / folder, made_config(), MATRICES)
    result = read_runs(tmp_path, labels={"our net": tmp_path / "mine"})
    assert result.skipped == {"mine/b": "repeats mine/a: the same configuration and seed"}
    assert [run.label for run in result.runs] == ["our net", ""]
