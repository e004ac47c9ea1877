"""A frontier: summarised over seeds, tested by seed, written and read again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from made_runs import made_frontier, write_frontier

from flashback.errors import FlashbackError
from flashback.metrics import TradeOff
from flashback.results import read_runs
from flashback.results.frontier import distinct_headings, read_frontier


def test_a_form_above_the_curve_is_found_with_its_height() -> None:
    """The form lies 2 points above the host's curve, 1.5 to 2.5 by seed, and another lies on it."""
    better, same = made_frontier(lifts={"better": 2.0, "same": 0.0}).advantages()
    assert better.test.difference == pytest.approx(2.0, abs=1e-6)
    assert list(better.heights.values()) == pytest.approx([1.5, 2.0, 2.5], abs=1e-6)
    assert better.test.p is not None
    assert better.p_adjusted == pytest.approx(2 * better.test.p)
    assert "better lies significantly above the host's own curve (+2.00 points" in better.sentence
    assert same.test.difference == pytest.approx(0.0, abs=1e-6)
    assert "same is not significantly above or below the host's own curve" in same.sentence


def test_every_point_has_its_height_above_the_hosts_curve() -> None:
    frontier = made_frontier(lifts={"better": 2.0})
    host_curve, better = frontier.points()["host alone"], frontier.points()["better"]
    assert all(point.above is None for point in host_curve)
    inner = better[1]
    assert inner.above is not None
    assert inner.above.difference == pytest.approx(2.0, abs=1e-6)
    assert inner.above.low is not None
    assert (inner.outside, better[-1].outside) == ([], [0, 1, 2])  # the form learns new tasks better than any weight
    assert better[-1].above is not None
    assert better[-1].above.difference is None
    assert all(point.dominated for point in host_curve)
    assert not any(point.dominated for point in better)


def test_without_a_common_range_there_is_no_test() -> None:
    (apart,) = made_frontier(lifts={"apart": 0.0}, shift=60.0).advantages()
    assert apart.test.p is None
    assert apart.heights == {0: None, 1: None, 2: None}
    assert "apart: no answer" in apart.sentence
    assert "(of the seeds: 0, 1, 2)" in apart.sentence


def test_a_missing_run_leaves_a_point_without_a_mean() -> None:
    frontier = made_frontier(lifts={"better": 2.0})
    frontier.curves[1].points["class_incremental"][2][0] = None
    point, *others = frontier.points()["better"]
    assert (point.new, point.dominated) == (None, False)
    assert all(other.new is not None for other in others)
    assert frontier.points("task_incremental")["better"][0].new is not None


@pytest.mark.parametrize("curve", [0, 1])
def test_a_seed_with_a_missing_run_on_either_curve_counts_for_neither(curve: int) -> None:
    frontier = made_frontier(lifts={"better": 2.0})
    frontier.curves[curve].points["class_incremental"][2][1] = None
    (better,) = frontier.advantages()
    assert better.heights == pytest.approx({0: 1.5, 1: 2.0}, abs=1e-6)
    assert (better.test.pairs, better.left_out) == (2, [2])
    assert better.sentence.endswith("1 of 3 seeds is left out, because runs of it failed or are missing.")
    first, second, last = frontier.points()["better"]
    for point in (first, second):
        assert point.above is not None
        assert point.above.pairs == 2
        assert point.above.difference == pytest.approx(1.75, abs=1e-6)
    assert last.outside == [0, 1]
    (untouched,) = frontier.advantages("task_incremental")
    assert untouched.test.pairs == 3
    assert "left out" not in untouched.sentence


def test_a_missing_run_of_the_host_does_not_reverse_the_verdict() -> None:
    """Without its middle point, which bulges by 6 points, the host's curve would pass below the form."""
    frontier = made_frontier(lifts={"worse": 2.0})
    bulging = frontier.host_curve.points["class_incremental"]
    for seed, points in bulging.items():
        points[1] = TradeOff(25 + 0.3 * seed, 81 - 0.3 * seed)
    bulging[2][1] = None
    (worse,) = frontier.advantages()
    assert worse.test.difference is not None
    assert worse.test.difference < -0.5


def test_with_one_complete_seed_there_is_no_test() -> None:
    frontier = made_frontier(lifts={"better": 2.0})
    for seed, curve in ((0, 0), (2, 1)):
        frontier.curves[curve].points["class_incremental"][seed][0] = None
    (better,) = frontier.advantages()
    assert better.test.p is None
    assert better.sentence.endswith(
        "too few seeds for a test. 2 of 3 seeds are left out, because runs of them failed or are missing."
    )


def test_without_a_test_the_answer_says_why_and_takes_no_side() -> None:
    frontier = made_frontier(lifts={"worse": -2.0})
    one = replace(frontier, seeds=frontier.seeds[:1])
    (worse,) = one.advantages()
    assert "above" not in worse.sentence
    assert worse.sentence.endswith("too few seeds for a test.")


def test_a_form_without_a_test_counts_for_the_correction() -> None:
    """Whether a form has a p depends on its results, so the number of tests must not."""
    frontier = made_frontier(lifts={"better": 2.0, "failed": 0.0})
    for by_seed in frontier.curves[2].points.values():
        for points in by_seed.values():
            points[:] = [None] * len(points)
    better, failed = frontier.advantages()
    assert better.test.p is not None
    assert better.p_adjusted == pytest.approx(2 * better.test.p)
    assert failed.p_adjusted is None
    assert failed.sentence == (
        "failed: no answer, because in every seed a run of it, or of the host alone, failed or is missing; "
        "run it again or choose other weights."
    )


def test_a_curve_on_the_hosts_own_is_said_to_be_there() -> None:
    (same,) = replace(made_frontier(lifts={"same": 0.0}), seeds=[1]).advantages()
    assert same.sentence.startswith("same lies on average on the host's own curve, between ")


def test_a_frontier_is_read_as_it_was_written(tmp_path: Path) -> None:
    frontier = write_frontier(tmp_path)
    read = read_frontier(tmp_path)
    assert read == frontier
    assert read.as_dict() == frontier.as_dict()
    assert read_runs(tmp_path).frontiers == [read_frontier(tmp_path, tmp_path.name)]


def test_the_failures_of_a_frontier_are_read(tmp_path: Path) -> None:
    failures = {"icarl/stability 1/host/seed-2": "out of memory"}
    frontier = replace(made_frontier(), failures=failures)
    (tmp_path / "frontier.json").write_text(json.dumps(frontier.as_dict()))
    assert read_frontier(tmp_path).failures == failures


def test_equal_headings_get_the_folder_and_other_headings_stay() -> None:
    short, long = (replace(made_frontier(), name=name) for name in ("two-epochs", "four-epochs"))
    other = made_frontier(host="lucir")
    improved = replace(long, recipe="improved")
    titles = [frontier.title for frontier in distinct_headings([short, long, other])]
    assert titles == [
        "icarl on split-cifar100 (folder two-epochs)", "icarl on split-cifar100 (folder four-epochs)",
        "lucir on split-cifar100",
    ]  # fmt: skip
    assert "recipe improved" in distinct_headings([short, improved])[1].title
    assert distinct_headings([short]) == [short]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content.pop("seeds"), "not complete"),
        (lambda content: content.update(curves=[]), "no curve"),
        (lambda content: content.update(failures=[]), "not complete"),
        (lambda content: content["weights"].pop(), "another number of points"),
        (lambda content: content["curves"][0]["points"]["class_incremental"]["0"].__setitem__(0, [1, 200]), "0 to 100"),
        (lambda content: content["curves"][0]["points"]["class_incremental"].pop("0"), "not complete"),
    ],
)
def test_a_damaged_frontier_is_left_out_with_the_reason(tmp_path: Path, change: object, words: str) -> None:
    write_frontier(tmp_path)
    path = tmp_path / "frontier.json"
    content = json.loads(path.read_text())
    change(content)  # type: ignore[operator]
    path.write_text(json.dumps(content))
    with pytest.raises(FlashbackError, match=words):
        read_frontier(tmp_path)
    result = read_runs(tmp_path)
    assert not result.frontiers
    assert words in result.skipped[f"{tmp_path.name}/frontier.json"]
    path.write_text("[")
    assert "JSON" in read_runs(tmp_path).skipped[f"{tmp_path.name}/frontier.json"]
