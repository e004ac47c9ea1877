from __future__ import annotations

import json
import os
from collections.abc import Callable
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

from flashback.errors import FlashbackError
from flashback.metrics import summarise
from flashback.reports import html_page, read_report
from flashback.reports.reading import EPOCHS_KEPT, find
from flashback.studies.comparison import read_finished

MATRICES = {setting: made_matrix(3) for setting in SETTINGS}


def edit(path: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_every_run_below_the_folders_is_read_once(tmp_path: Path) -> None:
    write_comparison(tmp_path / "a" / "deep", seeds=2)
    write_run(tmp_path / "b", made_config(seed=9), MATRICES)
    assert {run.name for run in find([tmp_path]).runs} == {
        "a/deep/host/seed-0", "a/deep/host/seed-1", "a/deep/flashback/seed-0", "a/deep/flashback/seed-1", "b",
    }  # fmt: skip
    assert len(find([tmp_path, tmp_path / "b", tmp_path / "a"]).runs) == 5


def test_a_folder_that_is_itself_a_run(tmp_path: Path) -> None:
    write_run(tmp_path / "mine", made_config(seed=3), MATRICES)
    (run,) = find([tmp_path / "mine"]).runs
    assert (run.name, run.seed, run.arm, run.host, run.tasks) == ("mine", 3, "host", "icarl", 3)


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FlashbackError, match="is not a folder"):
        find([tmp_path / "nowhere"])


def test_metrics_follow_from_the_matrix_whatever_is_written_beside_it(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", made_config(), MATRICES)
    edit(folder / "results.json", lambda results: results[SETTINGS[0]].update(average_accuracy=99.0, forgetting=-3))
    (run,) = find([tmp_path]).runs
    expected = summarise(MATRICES[SETTINGS[0]], [1] * 3, [10.0] * 2, [8.0] * 3)
    for metric in ("average_accuracy", "forgetting", "forward_transfer", "stability_plasticity_ratio"):
        assert run.record.results[SETTINGS[0]][metric] == expected[metric]


def test_what_a_record_leaves_open_stays_open(tmp_path: Path) -> None:
    """Joint training has no history: its matrix would give a forgetting of a model that was not trained yet."""
    folder = write_run(tmp_path / "run", made_config(), MATRICES)
    edit(folder / "results.json", lambda results: results[SETTINGS[0]].update(forgetting=None))
    (run,) = find([tmp_path]).runs
    assert run.record.results[SETTINGS[0]]["forgetting"] is None
    assert run.record.results[SETTINGS[0]]["average_accuracy"] is not None
    assert run.record.results[SETTINGS[1]]["forgetting"] is not None


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


def results(change: Callable[[Any], None]) -> Callable[[Path], None]:
    return lambda folder: edit(folder / "results.json", change)


def run_json(change: Callable[[Any], None]) -> Callable[[Path], None]:
    return lambda folder: edit(folder / "run.json", change)


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
    "no matrix": (results(lambda r: r["class_incremental"].pop("matrix")), "no class_incremental matrix"),
    "no second setting": (results(lambda r: r.pop("task_incremental")), "no task_incremental results"),
    "empty matrix": (results(lambda r: r["task_incremental"].update(matrix=[])), "no task_incremental matrix"),
    "ragged matrix": (results(lambda r: r["class_incremental"]["matrix"][2].pop()), "not a triangle of percentages"),
    "words in the matrix": (
        results(lambda r: r["class_incremental"]["matrix"][1].__setitem__(0, "80")),
        "not a triangle of percentages",
    ),
    "impossible accuracy": (
        results(lambda r: r["class_incremental"]["matrix"][1].__setitem__(0, 101.0)),
        "not a triangle of percentages",
    ),
    "not a number": (
        results(lambda r: r["class_incremental"]["matrix"][1].__setitem__(0, float("nan"))),
        "not a triangle of percentages",
    ),
    "wrong zero shot": (results(lambda r: r["class_incremental"].update(zero_shot="much")), "not a list"),
    "no steps": (run_json(lambda r: r.pop("steps")), "how many steps"),
    "no seconds": (run_json(lambda r: r.update(seconds=None)), "how many seconds"),
    "no bytes": (run_json(lambda r: r.update(knowledge_bytes=[4000])), "bytes of knowledge"),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_what_is_broken_is_named_and_left_out(breakage: str, tmp_path: Path) -> None:
    spoil, reason = BREAKAGES[breakage]
    write_run(tmp_path / "good", made_config(), MATRICES)
    spoil(write_run(tmp_path / "bad", made_config(seed=1), MATRICES))
    found = find([tmp_path])
    assert [run.name for run in found.runs] == ["good"]
    assert list(found.skipped) == ["bad"]
    assert reason in found.skipped["bad"]
    assert str(tmp_path) not in found.skipped["bad"]


@pytest.mark.parametrize("breakage", [
    "no matrix", "no second setting", "empty matrix", "ragged matrix", "words in the matrix", "impossible accuracy",
    "not a number", "wrong zero shot", "no steps", "no seconds", "no bytes",
])  # fmt: skip
def test_a_comparison_refuses_what_a_report_leaves_out(breakage: str, tmp_path: Path) -> None:
    spoil, reason = BREAKAGES[breakage]
    folder = write_run(tmp_path / "run", made_config(), MATRICES)
    assert read_finished(folder).results == find([tmp_path]).runs[0].record.results
    spoil(folder)
    with pytest.raises(FlashbackError, match=f"run is not a whole record: .*{reason}.*; remove the folder"):
        read_finished(folder)


@pytest.mark.parametrize(("quantity", "value"), [("steps", -1), ("images", 1e300), ("seconds", True)])
def test_impossible_costs_are_refused_alike(quantity: str, value: float, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", made_config(), MATRICES, **{quantity: value})
    said = f"run.json does not say how many {quantity} the run took"
    assert find([tmp_path]).skipped == {"run": said}
    with pytest.raises(FlashbackError, match=said):
        read_finished(folder)


def test_folders_that_never_were_runs_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("nothing here")
    folder = write_run(tmp_path / "run", made_config(), MATRICES)
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "config.yaml").write_text("not: a run")
    found = find([tmp_path])
    assert len(found.runs) == 1
    assert not found.skipped


JUNK = st.sampled_from([None, -1, True, 1e300, "x", [], {}, [[]], {"a": 1}, [None], float("inf"), 10**400])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_junk_in_a_record_is_fatal(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Somewhere in a record stands something else: the run is read or left out, and the page is still made."""
    root = tmp_path_factory.mktemp("junk")
    write_run(root / "good", made_config(), MATRICES)
    folder = write_run(root / "bad", made_config(seed=1), MATRICES)
    name = data.draw(st.sampled_from(["config.yaml", "run.json", "results.json"]))
    content: Any = made_config(seed=1) if name == "config.yaml" else json.loads((folder / name).read_text())
    inner, key = content, data.draw(st.sampled_from(sorted(content)))
    while isinstance(inner[key], (dict, list)) and inner[key] and data.draw(st.booleans()):
        inner = inner[key]
        key = data.draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
    inner[key] = data.draw(JUNK)
    (folder / name).write_text(json.dumps(content))
    report = read_report([root])
    assert "good" in {run.name for run in report.runs}
    assert {"good", "bad"} == {run.name for run in report.runs} | set(report.skipped)
    assert "</html>" in html_page(report)


# ---------------------------------------------------------------- logs


def test_losses_are_read_from_the_log_and_torn_lines_are_passed_over(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", made_config(), MATRICES, log=made_log(2, 3, flashback=False))
    with (folder / "log.jsonl").open("a") as file:
        file.write('{"event": "epoch", "task": 2, "losses": {"task": 1.0}}\n')  # says not which epoch
        file.write(
            '{"event": "epoch", "task": 2, "stage": "learn", "epoch": 0, "epochs": 3, "losses": {"task": NaN}}\n'
        )
        file.write('{"event": "epoch", "task": 2, "stage": "learn", "epoch": 0, "losses": {"ta')
    (run,) = find([tmp_path]).runs
    assert [(epoch.task, epoch.number) for epoch in run.epochs] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert run.epochs[1].losses == {"task": 0.75}
    assert set(run.epochs[4].losses) == {"task", "stability"}


def test_a_run_without_a_log_is_a_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", made_config(), MATRICES)
    (folder / "log.jsonl").unlink()
    assert find([tmp_path]).runs[0].epochs == []


def test_of_a_long_log_every_stage_is_kept_and_few_epochs(tmp_path: Path) -> None:
    write_run(tmp_path / "run", made_config(), MATRICES, log=made_log(30, 100, flashback=True, first=2))
    (run,) = find([tmp_path]).runs
    assert EPOCHS_KEPT <= len(run.epochs) <= EPOCHS_KEPT + 60
    assert {(epoch.task, epoch.stage) for epoch in run.epochs} == {
        (0, "learn"), *((task, phase) for task in range(1, 30) for phase in ("phase 1", "phase 2")),
    }  # fmt: skip


# ---------------------------------------------------------------- what lies beside runs


def test_similarities_are_read(tmp_path: Path) -> None:
    write_similarity(tmp_path)
    (similarity,) = find([tmp_path]).similarities
    assert similarity.layers[0] == "stage4.0.conv1"
    assert similarity.values["old"]["flashback"] == [0.66, 0.61, 0.58, 0.51]
    assert similarity.title == "icarl, seed 123"


def test_a_similarity_of_two_seeds_says_so(tmp_path: Path) -> None:
    write_similarity(tmp_path, "oewc", seeds=(1, 2))
    assert find([tmp_path]).similarities[0].title == "oewc, seeds 1 and 2"


OF = '{"host": "icarl", "seeds": {"host": 1, "flashback": 1}, '


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is not readable as JSON"),
        ("[]", "names no layers"),
        ('{"layers": ["a"], "old": {"host": [0.1]}, "new": {}}', "does not say of which host and seeds it is"),
        ('{"host": "icarl", "seeds": {"host": 1}, "layers": ["a"]}', "does not say of which host and seeds it is"),
        (OF + '"layers": ["a"]}', "holds no values for old images"),
        (OF + '"layers": ["a"], "old": {"host": [0.1, 0.2]}, "new": {}}', "does not hold one similarity for each"),
        (OF + '"layers": ["a"], "old": {"host": ["x"]}, "new": {}}', "does not hold one similarity for each"),
        (OF + '"layers": [], "old": {}, "new": {}}', "holds no values"),
    ],
)
def test_broken_similarities_are_named(content: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "cka.json").write_text(content)
    found = find([tmp_path])
    assert not found.similarities
    assert list(found.skipped) == ["inner/cka.json"]
    assert found.skipped["inner/cka.json"].startswith(reason)


def test_further_classifiers_are_kept_beside_the_own_one(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", made_config(), MATRICES)
    other = {setting: made_matrix(3, shift=-20) for setting in SETTINGS}

    def add(results: Any) -> None:
        results["classifiers"]["nearest mean"] = made_results(other)["classifiers"]["linear"]

    edit(folder / "results.json", add)
    (run,) = find([tmp_path]).runs
    assert list(run.others) == ["nearest mean"]
    expected = summarise(other[SETTINGS[1]], [1] * 3)["average_accuracy"]
    assert run.others["nearest mean"].results[SETTINGS[1]]["average_accuracy"] == expected


def test_a_pipe_in_place_of_a_log_is_not_waited_for(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", made_config(), MATRICES)
    (run / "log.jsonl").unlink(missing_ok=True)
    os.mkfifo(run / "log.jsonl")
    (found,) = find([tmp_path]).runs
    assert found.epochs == []
