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


def test_the_height_is_the_most_that_is_remembered_at_this_new_task_accuracy_or_a_higher_one() -> None:
    line = curve((10, 50), (20, 40), (40, 0))
    assert height(line, [10, 15, 20, 30, 40]).tolist() == [50, 45, 40, 20, 0]
    assert height(curve((5, 10), *line), 7) == 50  # the second point learns better and remembers more
    assert np.isnan(height(line, [9.9, 40.1])).all()
    assert height(line[::-1], [15, 30]).tolist() == [45, 20]
    assert height(curve((10, 20)), 10) == 20
    assert height(curve((10, 20), (10, 30)), 10) == 30


def test_parts_that_are_worse_on_both_have_no_effect() -> None:
    good = curve((10, 50), (30, 30))
    for broken in (curve((2, 20), *good), curve(*good, (15, 10)), curve(*good, (20, 32))):
        assert height(broken, [10, 12, 20, 30]).tolist() == height(good, [10, 12, 20, 30]).tolist()
        assert gap(good, broken) == pytest.approx((0, 0, 10, 30))


def test_the_height_agrees_with_a_dense_walk_along_the_line() -> None:
    draw = np.random.default_rng(3)
    for _ in range(20):
        points = draw.uniform(0, 100, (5, 2))
        steps = np.linspace(0, 4, 40_001)
        walk = np.array([np.interp(steps, range(5), points[:, axis]) for axis in (0, 1)])
        for x in draw.uniform(points[:, 0].min(), points[:, 0].max(), 5):
            expected = walk[1][walk[0] >= x].max()
            assert height(curve(*map(tuple, points)), x) == pytest.approx(expected, abs=0.02)


def test_the_gap_is_the_mean_height_over_what_both_reach() -> None:
    host = curve((10, 50), (30, 30))
    difference = gap(host, curve((20, 44), (50, 14)))
    assert difference is not None
    assert (difference.low, difference.high) == (20, 30)
    assert difference.height == pytest.approx(4)  # 44 against 40, 34 against 30
    assert difference.area == pytest.approx(40)
    back = gap(curve((20, 44), (50, 14)), host)
    assert back is not None
    assert back.height == pytest.approx(-4)


def test_left_of_both_peaks_nothing_is_compared() -> None:
    difference = gap(curve((0, 5), (20, 50), (30, 30)), curve((0, 5), (10, 50), (40, 20)))
    assert difference is not None
    assert (difference.low, difference.high) == (10, 30)
    one = gap(curve((0, 5), (20, 50)), curve((0, 5), (22, 53)))  # one point is best on both
    assert one == pytest.approx((3, 0, 20, 20))


def test_the_gap_of_bent_curves_is_their_area() -> None:
    difference = gap(curve((0, 10), (10, 0)), curve((0, 10), (5, 10), (10, 0)))
    assert difference is not None
    assert difference.area == pytest.approx(25, rel=1e-4)


def test_curves_that_reach_nothing_in_common_have_no_gap() -> None:
    host = curve((10, 50), (30, 30))
    assert gap(host, curve((31, 30), (40, 20))) is None
    assert gap(host, curve((1, 90), (9, 80))) is None
    assert gap(host, []) is None


def test_a_point_is_dominated_by_one_that_is_better() -> None:
    best, worse, other, equal = curve((20, 40), (20, 39), (30, 10), (20, 40))
    assert dominated([best, worse, other, equal, None]) == [False, True, False, False, False]
