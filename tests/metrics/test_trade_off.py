"""The trade-off of old and new tasks, and the height of one curve above another."""

from __future__ import annotations

import numpy as np
import pytest

from flashback.metrics import TradeOff, dominated, gap, height, trade_off

MATRIX = [[90.0, None, None], [60.0, 80.0, None], [50.0, 70.0, 60.0]]


def curve(*points: tuple[float, float]) -> list[TradeOff]:
    return [TradeOff(*point) for point in points]


def test_old_and_new_are_measured_after_the_same_tasks() -> None:
    assert trade_off(MATRIX) == TradeOff(new=(80 + 60) / 2, old=(60 + (50 + 70) / 2) / 2)
    assert trade_off([[90.0]]) is None


def test_a_curve_is_the_line_through_its_points() -> None:
    line = curve((10, 50), (20, 40), (40, 0))
    assert height(line, [10, 15, 20, 30, 40]).tolist() == [50, 45, 40, 20, 0]
    assert np.isnan(height(line, [9.9, 40.1])).all()
    assert height(line[::-1], [15, 30]).tolist() == [45, 20]


def test_where_a_curve_folds_back_its_highest_point_counts() -> None:
    folded = curve((10, 50), (30, 50), (20, 10))
    assert height(folded, [15, 25]).tolist() == [50, 50]
    assert height(curve((10, 20), (10, 30)), 10) == 30
    assert height(curve((10, 20)), [10, 11])[0] == 20


def test_the_gap_is_the_mean_height_over_the_common_range() -> None:
    host = curve((10, 50), (30, 30))
    found = gap(host, curve((20, 44), (50, 14)))
    assert found is not None
    assert (found.low, found.high, found.share) == (20, 30, 0.5)
    assert found.height == pytest.approx(4)  # 44 against 40, 34 against 30
    assert found.area == pytest.approx(40)
    below = gap(curve((20, 44), (50, 14)), host)
    assert below is not None
    assert below.height == pytest.approx(-4)
    assert below.share == pytest.approx(1 / 3)


def test_the_gap_of_bent_curves_is_their_area() -> None:
    found = gap(curve((0, 0), (10, 0)), curve((0, 0), (5, 10), (10, 0)))
    assert found is not None
    assert found.area == pytest.approx(50, rel=1e-4)


def test_curves_without_a_common_range_have_no_gap() -> None:
    host = curve((10, 50), (30, 30))
    assert gap(host, curve((31, 30), (40, 20))) is None
    assert gap(host, curve((30, 30), (40, 20))) is None  # a single point in common
    assert gap(host, []) is None


def test_a_point_is_dominated_by_one_that_is_better() -> None:
    best, worse, other, equal = curve((20, 40), (20, 39), (30, 10), (20, 40))
    assert dominated([best, worse, other, equal, None]) == [False, True, False, False, False]
