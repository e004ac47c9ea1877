"""Metrics on matrices small enough to work out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flashback.errors import FlashbackError
from flashback.metrics import (
    average_accuracy,
    average_incremental_accuracy,
    backward_transfer,
    class_accuracies,
    forgetting,
    forward_transfer,
    last_accuracy,
    mean_new_task_accuracy,
    new_task_accuracy,
    stability_plasticity_ratio,
    summarise,
)
from flashback.metrics.accuracy import average_accuracies, without_history

# Task 0 improves after it was learned, falls, and task 1 is best at the very end: all three kinds of forgetting differ.
MATRIX = [
    [80.0, None, None, None],
    [90.0, 60.0, None, None],
    [70.0, 50.0, 90.0, None],
    [50.0, 65.0, 80.0, 40.0],
]
SIZES = [500, 100, 100, 300]
ZERO_SHOT = [10.0, 95.0, 7.0]  # tasks 1, 2, 3
UNTRAINED = [50.0, 4.0, 5.0, 6.0]  # tasks 0, 1, 2, 3

square = st.integers(1, 6).flatmap(
    lambda n: hnp.arrays(np.float64, (n, n), elements=st.floats(0, 100, allow_subnormal=False))
)


def test_averages_by_task() -> None:
    assert average_accuracies(MATRIX) == pytest.approx([80, 75, 70, 58.75])
    assert average_accuracy(MATRIX) == pytest.approx((50 + 65 + 80 + 40) / 4)
    assert average_incremental_accuracy(MATRIX) == pytest.approx((80 + 75 + 70 + 58.75) / 4)


def test_averages_by_image() -> None:
    steps = [80, (90 * 5 + 60) / 6, (70 * 5 + 50 + 90) / 7, (50 * 5 + 65 + 80 + 40 * 3) / 10]
    assert average_accuracies(MATRIX, SIZES) == pytest.approx(steps)
    assert last_accuracy(MATRIX, SIZES) == pytest.approx(51.5)
    assert average_incremental_accuracy(MATRIX, SIZES) == pytest.approx(sum(steps) / 4)


@given(square)
def test_with_equal_tasks_both_averages_agree(matrix: np.ndarray) -> None:
    sizes = [100] * len(matrix)
    assert average_incremental_accuracy(matrix) == pytest.approx(average_incremental_accuracy(matrix, sizes))


def test_three_kinds_of_forgetting() -> None:
    assert forgetting(MATRIX) == pytest.approx(((90 - 50) + (60 - 65) + (90 - 80)) / 3)
    assert forgetting(MATRIX, "paper") == pytest.approx(((80 - 50) + (60 - 65) + (90 - 80)) / 3)
    assert forgetting(MATRIX, "mammoth") == pytest.approx(((90 - 50) + (65 - 65) + (90 - 80)) / 3)
    assert forgetting(MATRIX, "mammoth", ZERO_SHOT) == pytest.approx(((90 - 50) + (65 - 65) + (95 - 80)) / 3)
    with pytest.raises(FlashbackError, match="did you mean 'mammoth'"):
        forgetting(MATRIX, "mamoth")  # type: ignore[arg-type]


@given(square.filter(lambda matrix: len(matrix) > 1))
def test_relations_between_kinds_of_forgetting(matrix: np.ndarray) -> None:
    paper, chaudhry, mammoth = (forgetting(matrix, variant) for variant in ("paper", "chaudhry", "mammoth"))
    assert paper == pytest.approx(-backward_transfer(matrix), abs=1e-9)
    assert chaudhry >= paper - 1e-9
    assert mammoth >= max(chaudhry, 0) - 1e-9
    falling = np.sort(matrix, axis=0)[::-1]  # accuracy on a task only falls: the three are one
    values = [forgetting(falling, variant) for variant in ("paper", "chaudhry", "mammoth")]
    assert values == pytest.approx([values[0]] * 3, abs=1e-9)


def test_mammoth_forgetting_against_padded_rows() -> None:
    padded = np.zeros((4, 4))
    for k, row in enumerate(MATRIX):
        padded[k, : k + 1] = row[: k + 1]
        if k < 3:
            padded[k, k + 1] = ZERO_SHOT[k]
    expected = np.mean([padded[:, j].max() - padded[-1, j] for j in range(3)])
    assert forgetting(MATRIX, "mammoth", ZERO_SHOT) == pytest.approx(expected)


def test_transfer() -> None:
    assert backward_transfer(MATRIX) == pytest.approx((-30 + 5 - 10) / 3)
    assert forward_transfer(ZERO_SHOT, UNTRAINED) == pytest.approx(((10 - 4) + (95 - 5) + (7 - 6)) / 3)
    assert forward_transfer(ZERO_SHOT, UNTRAINED[:3]) is None
    assert forward_transfer(None, UNTRAINED) is None
    assert forward_transfer(ZERO_SHOT, None) is None
    assert forward_transfer([10.0, None, 7.0], UNTRAINED) is None
    assert forward_transfer([], UNTRAINED) is None


def test_plasticity() -> None:
    assert new_task_accuracy(MATRIX) == 40
    assert mean_new_task_accuracy(MATRIX) == pytest.approx((80 + 60 + 90 + 40) / 4)
    assert stability_plasticity_ratio(MATRIX) == pytest.approx(100 * 15 / 40)
    assert stability_plasticity_ratio(MATRIX, "paper") == pytest.approx(100 * (35 / 3) / 40)
    assert stability_plasticity_ratio([[50.0], [20.0, 0.0]]) is None


@pytest.mark.parametrize("learned", [20.0, 60.0])
def test_of_negative_forgetting_there_is_no_ratio(learned: float) -> None:
    """It would be lower, hence better, where the last task was learned worse."""
    gained = [[40.0], [50.0, learned]]
    assert forgetting(gained) == -10
    assert stability_plasticity_ratio(gained) is None
    assert summarise(gained, [1, 1])["stability_plasticity_ratio"] is None
    assert stability_plasticity_ratio([[40.0], [40.0, learned]]) == 0


def test_what_sums_leave_of_zero_is_no_gain() -> None:
    matrix = [[0.3, None, None], [0.3, 0.1, None], [0.1 + 0.2, 0.1, 50.0]]
    assert -1e-15 < forgetting(matrix) < 0
    assert stability_plasticity_ratio(matrix) == 0


def test_summary_has_every_metric() -> None:
    assert summarise(MATRIX, SIZES, ZERO_SHOT, UNTRAINED) == pytest.approx(
        {
            "average_accuracy": 58.75,
            "average_incremental_accuracy": 283.75 / 4,
            "average_incremental_accuracy_images": (80 + 85 + 70 + 51.5) / 4,
            "last_accuracy_images": 51.5,
            "forgetting": 15.0,
            "forgetting_paper": 35 / 3,
            "forgetting_mammoth": 55 / 3,
            "backward_transfer": -35 / 3,
            "forward_transfer": 97 / 3,
            "stability_plasticity_ratio": 37.5,
            "new_task_accuracy": 40.0,
            "mean_new_task_accuracy": 67.5,
        }
    )


def test_one_task_has_nothing_to_forget() -> None:
    summary = summarise([[75.0]], [10], [], [50.0])
    missing = {name for name, value in summary.items() if value is None}
    assert missing == {
        "forgetting",
        "forgetting_paper",
        "forgetting_mammoth",
        "backward_transfer",
        "forward_transfer",
        "stability_plasticity_ratio",
    }
    assert {value for value in summary.values() if value is not None} == {75.0}


def test_a_run_in_progress_counts_what_is_done() -> None:
    begun = summarise(MATRIX[:2], SIZES, ZERO_SHOT, UNTRAINED)
    assert begun["average_accuracy"] == pytest.approx(75)
    assert begun["forgetting"] == pytest.approx(-10)
    assert begun["forward_transfer"] == pytest.approx(10 - 4)
    assert summarise(MATRIX, SIZES, ZERO_SHOT[:2], UNTRAINED)["forward_transfer"] is None


def test_what_stands_above_the_diagonal_is_ignored() -> None:
    ragged = [[row for row in line if row is not None] for line in MATRIX]
    filled = [[value if value is not None else 99.0 for value in line] for line in MATRIX]
    array = np.array(MATRIX, dtype=float)
    for other in (ragged, filled, array):
        assert summarise(other, SIZES, ZERO_SHOT, UNTRAINED) == summarise(MATRIX, SIZES, ZERO_SHOT, UNTRAINED)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [([], "at least one row"), ([[1.0], [2.0]], "row 1"), ([[1.0], [None, 2.0]], "row 1"), ([[np.nan]], "row 0")],
)
def test_incomplete_matrices_are_refused(matrix: list[list[float]], message: str) -> None:
    with pytest.raises(FlashbackError, match=message):
        average_accuracy(matrix)


@pytest.mark.parametrize("sizes", [[1, 2, 3], [1, 2, 3, 0]])
def test_incomplete_sizes_are_refused(sizes: list[int]) -> None:
    with pytest.raises(FlashbackError, match="4 tasks needs as many positive weights"):
        last_accuracy(MATRIX, sizes)


def test_a_model_trained_on_all_tasks_at_once_has_metrics_of_the_last_row_only() -> None:
    metrics = summarise([[0.0], [50.0, 80.0]], [1, 3])
    known = {name: value for name, value in without_history(metrics).items() if value is not None}
    assert known == {"average_accuracy": 65.0, "last_accuracy_images": 72.5, "new_task_accuracy": 80.0}


def test_class_accuracies_by_hand() -> None:
    assert class_accuracies([[3, 1, 0], [0, 0, 0], [2, 2, 1]]) == [75.0, None, 20.0]


def test_class_accuracies_against_a_loop_over_images() -> None:
    draw = np.random.default_rng(0)
    labels, predicted = draw.integers(0, 5, 200), draw.integers(0, 5, 200)
    confusion = np.zeros((5, 5), int)
    for label, prediction in zip(labels, predicted, strict=True):
        confusion[label, prediction] += 1
    expected = [100 * np.mean(predicted[labels == label] == label) for label in range(5)]
    assert class_accuracies(confusion) == pytest.approx(expected)


@pytest.mark.parametrize("confusion", [[[1, 2]], [1, 2], [[1, -1], [0, 1]], []])
def test_what_is_no_confusion_matrix_is_refused(confusion: list[list[int]]) -> None:
    with pytest.raises(FlashbackError, match="a confusion matrix is square"):
        class_accuracies(confusion)
