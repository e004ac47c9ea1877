"""The numbers of the charts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_runs import SETTINGS, made_config, made_matrix, write_comparison, write_run

from flashback.metrics import forgetting
from flashback.metrics.accuracy import average_accuracies
from flashback.reports.series import (
    Segment,
    accuracy_band,
    aligned_confusions,
    balance,
    loss_curves,
    mean_confusion,
    mean_matrix,
    square,
    thin,
)
from flashback.results import Epoch, Method, Run, read_runs


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    write_comparison(tmp_path, seeds=3, tasks=5)
    return [run for run in read_runs(tmp_path).runs if run.arm == "flashback"]


def test_a_band_spans_all_seeds(runs: list[Run]) -> None:
    band = accuracy_band(runs, SETTINGS[0])
    for k in range(5):
        column = [average_accuracies(run.matrix(SETTINGS[0]))[k] for run in runs]
        assert [band[name][k] for name in ("mean", "low", "high")] == pytest.approx(
            [sum(column) / 3, min(column), max(column)]
        )


def test_the_mean_matrix_is_a_triangle(runs: list[Run]) -> None:
    matrix = mean_matrix(runs, SETTINGS[1])
    for k in range(5):
        for j in range(5):
            if j > k:
                assert np.isnan(matrix[k, j])
            else:
                assert matrix[k, j] == pytest.approx(sum(run.matrix(SETTINGS[1])[k][j] for run in runs) / 3)


def test_forgetting_by_task_averages_to_forgetting(runs: list[Run]) -> None:
    learned, forgotten = balance(runs, SETTINGS[0])
    matrices = [run.matrix(SETTINGS[0]) for run in runs]
    assert forgotten.mean() == pytest.approx(np.mean([forgetting(matrix) for matrix in matrices]))
    assert learned[2] == pytest.approx(np.mean([matrix[2][2] for matrix in matrices]))
    assert len(learned) == len(forgotten) == 4


def epochs(task: int, stage: str, values: list[float], name: str = "task") -> list[Epoch]:
    return [Epoch(task, stage, k, len(values), {name: value}) for k, value in enumerate(values)]


def test_losses_stand_at_their_epoch_and_are_averaged_over_seeds() -> None:
    first = epochs(0, "learn", [4.0, 2.0]) + epochs(1, "phase 1", [3.0]) + epochs(1, "phase 2", [1.0, 0.5])
    second = (
        epochs(0, "learn", [2.0, 2.0]) + epochs(1, "phase 1", [1.0]) + epochs(1, "phase 2", [1.0, 0.5], "plasticity")
    )
    curves = loss_curves([first, second], points=100)
    assert curves is not None
    assert curves.segments == [Segment(0, "learn", 0, 2), Segment(1, "phase 1", 2, 3), Segment(1, "phase 2", 3, 5)]
    assert curves.x.tolist() == [1, 2, 3, 4, 5]
    assert curves.terms["task"].tolist() == [3, 2, 2, 1, 0.5]
    assert np.isnan(curves.terms["plasticity"][:3]).all()
    assert curves.terms["plasticity"][3:].tolist() == [1, 0.5]


def test_long_losses_are_thinned_within_stages() -> None:
    run = [epoch for task in range(5) for epoch in epochs(task, "learn", [float(task)] * 1000)]
    curves = loss_curves([run], points=50)
    assert curves is not None
    assert len(curves.x) == 50
    assert curves.terms["task"].tolist() == sorted(curves.terms["task"].tolist())
    assert set(curves.terms["task"]) == {0, 1, 2, 3, 4}, "no point mixes two tasks"


def test_no_losses_no_curve() -> None:
    assert loss_curves([[], []], points=10) is None


@pytest.mark.parametrize(("count", "most", "expected"), [(3, 5, [0, 1, 2]), (1, 4, [0]), (9, 3, [0, 4, 8])])
def test_thinning_keeps_the_ends(count: int, most: int, expected: list[int]) -> None:
    assert thin(count, most) == expected


def test_a_matrix_is_made_square() -> None:
    assert np.array_equal(square([[1.0], [2.0, 3.0]]), np.array([[1.0, np.nan], [2.0, 3.0]]), equal_nan=True)


def write_classes(folder: Path, seed: int, order: list[int], counts: list[list[float]]) -> None:
    matrices = {setting: made_matrix(2) for setting in SETTINGS}
    config = made_config(seed=seed, benchmark__order="seed")
    facts = {"class_order": order, "data": {"class_names": [("ant", "bee")[label] for label in order]}}
    write_run(folder / str(seed), config, matrices, confusion=counts, **facts)


def test_confusion_is_averaged_by_class_in_percent_of_the_true_class(tmp_path: Path) -> None:
    write_classes(tmp_path, 0, [0, 1], [[8, 2], [5, 15]])
    write_classes(tmp_path, 1, [1, 0], [[10, 0], [4, 6]])  # the other order: bee is the first class
    result = mean_confusion(read_runs(tmp_path).runs)
    assert result is not None
    names, matrix = result
    assert names == ["ant", "bee"]
    assert matrix.tolist() == [[70, 30], [12.5, 87.5]]


def test_a_class_that_one_arm_has_not_learned_has_no_confusion_there(tmp_path: Path) -> None:
    write_classes(tmp_path, 0, [0], [[8]])
    write_classes(tmp_path, 1, [1, 0], [[10, 0], [4, 6]])
    first, second = sorted(read_runs(tmp_path).runs, key=lambda run: run.seed)
    two = [Method(first.config, {0: first}), Method({**second.config, "flashback": {"enabled": True}}, {1: second})]
    names, matrices = aligned_confusions(two)
    assert names == ["ant", "bee"]
    nan = np.nan
    assert np.array_equal(matrices["host"], np.array([[100, nan], [nan, nan]]), equal_nan=True)
    assert matrices["flashback"].tolist() == [[60, 40], [0, 100]]


def test_without_confusion_in_every_run_there_is_none(tmp_path: Path) -> None:
    write_classes(tmp_path, 0, [0, 1], [[8, 2], [5, 15]])
    write_run(tmp_path / "b", made_config(seed=1), {setting: made_matrix(2) for setting in SETTINGS})
    assert mean_confusion(read_runs(tmp_path).runs) is None
