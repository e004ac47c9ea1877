"""The charts as files."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import (
    SETTINGS,
    made_config,
    made_frontier,
    made_matrix,
    write_comparison,
    write_frontier,
    write_run,
    write_similarity,
)
from PIL import Image

from flashback.reports import read_report, write_plots
from flashback.reports.plots import (
    folder_name,
    grids,
    plot_answers,
    plot_confusion,
    plot_frontier,
    plot_grid,
    plot_matrices,
    plot_methods,
)


@pytest.mark.slow
def test_every_chart_is_written_as_png_and_pdf(tmp_path: Path) -> None:
    write_comparison(tmp_path / "runs", seeds=2)
    write_similarity(tmp_path / "runs")
    write_frontier(tmp_path / "runs")
    plots = tmp_path / "plots"
    written = write_plots(read_report([tmp_path / "runs"]), plots)
    settings = ("class-incremental", "task-incremental")
    chart_names = [f"{kind}-{setting}" for kind in ("accuracy", "matrices", "balance") for setting in settings]
    names = [f"answers-{setting}" for setting in settings]
    names += [f"icarl-on-split-cifar100/{name}" for name in (*chart_names, "losses", "budget")]
    names += ["cka-icarl-seed-123/cka", "frontier-icarl-on-split-cifar100/frontier"]
    files = {path.relative_to(plots).as_posix() for path in written}
    assert files == {f"{name}.{suffix}" for name in names for suffix in ("png", "pdf")}
    assert {path for path in plots.rglob("*") if path.is_file()} == set(written)
    for path in written:
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert min(image.size) > 150
                assert len(set(image.convert("L").resize((40, 40)).tobytes())) > 5, "not an empty picture"
        else:
            assert path.read_bytes().startswith(b"%PDF")


def test_all_methods_of_a_benchmark_are_in_one_chart(tmp_path: Path) -> None:
    write_comparison(tmp_path / "runs" / "a", "icarl", seeds=2)
    write_comparison(tmp_path / "runs" / "b", "lwf-mc", seeds=2)
    write_comparison(tmp_path / "runs" / "c", "lwf-mc", seeds=2, training__lr=0.5)
    report = read_report([tmp_path / "runs"])
    figure = plot_methods(report, "split-cifar100", "class_incremental")
    assert figure is not None
    (axes,) = figure.axes
    lines = [line for line in axes.lines if len(line.get_xdata())]
    assert len(lines) == 6
    for pairing, arms in zip(report.pairings, (lines[:2], lines[2:4], lines[4:]), strict=True):
        ends = [line.get_ydata()[-1] for line in arms]
        row = pairing.row("class_incremental")
        assert ends == pytest.approx([row.left.mean, row.right.mean])
        assert arms[0].get_color() == arms[1].get_color()
    names = [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()]
    assert names[0] == "icarl"
    assert all(name.startswith("lwf-mc") for name in names[1:3])
    assert plot_methods(report, "another", "class_incremental") is None


@pytest.mark.filterwarnings("error")
def test_names_are_not_mathematics_and_not_paths(tmp_path: Path) -> None:
    matrices = {setting: made_matrix(1) for setting in SETTINGS}
    write_run(tmp_path / "runs" / "a", made_config("../$\\frac{x$"), matrices)
    (tmp_path / "runs" / "a" / "log.jsonl").unlink()
    written = write_plots(read_report([tmp_path / "runs"]), tmp_path / "plots")
    assert {path.parent for path in written} == {tmp_path / "plots" / "frac-x-on-split-cifar100"}
    kinds = ("accuracy-class-incremental", "accuracy-task-incremental")  # a budget is of two arms
    kinds += ("matrices-class-incremental", "matrices-task-incremental")
    assert {path.stem for path in written} == set(kinds)


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_long_names_leave_room_for_the_charts_and_their_kind(tmp_path: Path) -> None:
    """Two settings of flashback with a name far longer than a folder's or a title's."""
    for alpha in (0.1, 0.2):
        write_comparison(tmp_path / "runs" / str(alpha), "step and wait, " * 20, seeds=2, flashback__alpha=alpha)
    report = read_report([tmp_path / "runs"])
    assert min(len(pairing.name) for pairing in report.pairings) > 300
    written = write_plots(report, tmp_path / "plots")
    folders = {path.parent for path in written} - {tmp_path / "plots"}
    assert len(folders) == 2
    assert max(len(folder.name) for folder in folders) < 130
    for folder in folders:
        assert (folder / "accuracy-class-incremental.png").exists()
        assert (folder / "losses.pdf").exists()
    with Image.open(tmp_path / "plots" / "answers-class-incremental.png") as image:
        assert max(image.size) < 3000


def test_no_name_is_given_twice() -> None:
    names: set[str] = set()
    assert [folder_name(text, names) for text in ("a b", "A/B", "a-b", "…")] == ["a-b", "a-b-2", "a-b-3", "plots"]


def test_accuracy_is_drawn_against_the_one_number_that_was_varied(tmp_path: Path) -> None:
    for memory in (100, 400):
        write_comparison(tmp_path / str(memory), seeds=2, host__memory_size=memory)
    report = read_report([tmp_path])
    ((where, methods),) = grids(report).items()
    assert where == ("split-cifar100", "host.memory_size")
    (axes,) = plot_grid(methods, "host.memory_size", SETTINGS[0]).axes
    for arm, container in zip(("host", "flashback"), axes.containers, strict=True):
        x, y = container.lines[0].get_data()
        assert list(x) == [100, 400]
        means = [method.sample(setting=SETTINGS[0]).mean for method in methods if method.arm == arm]
        assert sorted(y) == pytest.approx(sorted(value for value in means if value is not None))
    write_comparison(tmp_path / "more", seeds=1, host__memory_size=200, training__lr=0.9)
    assert grids(read_report([tmp_path])) == {}


def test_an_interval_far_wider_than_differences_leaves_the_frame(tmp_path: Path) -> None:
    for arm, seed, shift in (("host", 0, 0), ("host", 1, 0), ("flashback", 0, 10), ("flashback", 1, -10)):
        config = made_config(seed=seed, flashback__enabled=arm == "flashback")
        matrices = {setting: made_matrix(3, seed, shift) for setting in SETTINGS}
        write_run(tmp_path / f"{arm}-{seed}", config, matrices)
    figure = plot_answers(read_report(tmp_path), SETTINGS[0])
    assert figure is not None
    (axes,) = figure.axes
    test = read_report(tmp_path).pairings[0].row(SETTINGS[0]).test
    low, high = axes.get_xlim()
    assert test.low is not None
    assert test.low < low < test.difference < high
    assert list(axes.lines[-1].get_xdata()) == [test.low, test.difference, test.high]


def test_confusion_is_drawn_where_it_is_recorded(tmp_path: Path) -> None:
    matrices = {setting: made_matrix(2) for setting in SETTINGS}
    write_run(tmp_path / "a", made_config(), matrices, confusion=[[8, 2], [5, 15]])
    figure = plot_confusion(read_report(tmp_path).pairings[0])
    assert figure is not None
    assert figure.axes[0].images[0].get_array().tolist() == [[80, 20], [25, 75]]
    write_run(tmp_path / "b", made_config("lucir"), matrices)
    assert plot_confusion(read_report(tmp_path / "b").pairings[0]) is None


def test_confusion_of_both_arms_is_drawn_in_one_class_order(tmp_path: Path) -> None:
    matrices = {setting: made_matrix(2) for setting in SETTINGS}
    records = (("host", [0, 1], [[8, 2], [5, 15]]), ("flashback", [1, 0], [[10, 0], [4, 6]]))
    for seed, (arm, order, counts) in enumerate(records):
        config = made_config(seed=seed, benchmark__order="seed", flashback__enabled=arm == "flashback")
        facts = {"class_order": order, "data": {"class_names": [("ant", "bee")[label] for label in order]}}
        write_run(tmp_path / arm, config, matrices, confusion=counts, **facts)
    (pairing,) = read_report(tmp_path).comparisons
    figure = plot_confusion(pairing)
    assert figure is not None
    panels = [axes for axes in figure.axes if axes.images]
    assert [[label.get_text() for label in axes.get_yticklabels()] for axes in panels] == [["ant", "bee"]] * 2
    assert [axes.images[0].get_array().tolist() for axes in panels] == [[[80, 20], [25, 75]], [[60, 40], [0, 100]]]


def test_the_difference_of_matrices_is_of_common_seeds(tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=2, tasks=3)
    single = {setting: made_matrix(3, 9, -40) for setting in SETTINGS}
    write_run(tmp_path / "odd", made_config(seed=7), single)
    pairing = read_report(tmp_path).pairings[0]
    difference = plot_matrices(pairing, SETTINGS[0]).axes[2].images[0].get_array()
    assert difference[-1].mean() == pytest.approx(pairing.row().test.difference)
    write_run(tmp_path / "none", made_config("lucir"), single)
    write_run(tmp_path / "common", made_config("lucir", seed=1, flashback__enabled=True), single)
    apart = next(pairing for pairing in read_report(tmp_path).pairings if pairing.host == "lucir")
    assert len(plot_matrices(apart, SETTINGS[0]).axes) == 4  # two panels, each with its scale of colours


def test_a_frontier_marks_dominated_points_and_names_the_weights(tmp_path: Path) -> None:
    figure = plot_frontier(made_frontier())
    left, right = figure.axes
    outline, host_line, _, _, form, *_ = left.lines
    assert (outline.get_xdata()[0], outline.get_xdata()[-1]) == pytest.approx((20.3, 30.3))
    assert host_line.get_xdata().tolist() == pytest.approx([20.3, 25.3, 30.3])
    assert form.get_ydata()[0] == pytest.approx(100 - 22.3 + 2)
    dominated = [line for line in left.lines if line.get_linestyle() == "None" and len(line.get_xdata())]
    assert [len(line.get_xdata()) for line in dominated] == [3]
    assert [text.get_text() for text in left.texts] == ["3", "1", "0.3"]
    labels = [text.get_text().replace("\n", " ") for text in right.get_legend().get_texts()]
    assert labels[:2] == ["host alone", "free-primary, +2.00 (+0.76 to +3.24)"]
