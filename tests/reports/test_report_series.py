from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_runs import SETTINGS, write_comparison

from flashback.metrics import average_accuracies, forgetting
from flashback.records import RunRecord
from flashback.reports import read_report
from flashback.reports.reading import Epoch
from flashback.reports.series import Segment, accuracy_band, balance, loss_curves, mean_matrix, thin


@pytest.fixture
def records(tmp_path: Path) -> list[RunRecord]:
    write_comparison(tmp_path, seeds=3, tasks=5)
    return [run.record for run in read_report([tmp_path]).pairings[0].of("flashback")]


def test_a_band_spans_all_seeds(records: list[RunRecord]) -> None:
    band = accuracy_band(records, SETTINGS[0])
    for k in range(5):
        column = [average_accuracies(record.results[SETTINGS[0]]["matrix"])[k] for record in records]
        assert (band.mean[k], band.low[k], band.high[k]) == pytest.approx((sum(column) / 3, min(column), max(column)))


def test_the_mean_matrix_is_a_triangle(records: list[RunRecord]) -> None:
    matrix = mean_matrix(records, SETTINGS[1])
    for k in range(5):
        for j in range(5):
            if j > k:
                assert np.isnan(matrix[k, j])
            else:
                assert matrix[k, j] == pytest.approx(sum(r.results[SETTINGS[1]]["matrix"][k][j] for r in records) / 3)


def test_forgetting_by_task_averages_to_forgetting(records: list[RunRecord]) -> None:
    learned, forgotten = balance(records, SETTINGS[0])
    matrices = [record.results[SETTINGS[0]]["matrix"] for record in records]
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
