from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_runs import SETTINGS, made_config, made_matrix, write_comparison, write_run, write_similarity
from PIL import Image

from flashback.reports import read_report, write_plots
from flashback.reports.plots import folder_name, grids, plot_grid, plot_methods


def test_every_chart_is_written_as_png_and_pdf(tmp_path: Path) -> None:
    write_comparison(tmp_path / "runs", seeds=2)
    write_similarity(tmp_path / "runs")
    plots = tmp_path / "plots"
    written = write_plots(read_report([tmp_path / "runs"]), plots)
    settings = ("class-incremental", "task-incremental")
    own = [f"{kind}-{setting}" for kind in ("accuracy", "matrices", "balance") for setting in settings]
    names = [f"answers-{setting}" for setting in settings]
    names += [f"icarl-on-split-cifar100/{name}" for name in (*own, "losses", "budget")]
    names += ["cka-icarl-seed-123/cka"]
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
    drawn = [line for line in axes.lines if len(line.get_xdata())]
    assert len(drawn) == 6
    for pairing, arms in zip(report.pairings, (drawn[:2], drawn[2:4], drawn[4:]), strict=True):
        ends = [line.get_ydata()[-1] for line in arms]
        row = pairing.row("class_incremental")
        assert ends == pytest.approx([row.mean["host"], row.mean["flashback"]])
        assert arms[0].get_color() == arms[1].get_color()
    names = [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()]
    assert names[0] == "icarl"
    assert all(name.startswith("lwf-mc") for name in names[1:3])
    assert plot_methods(report, "another", "class_incremental") is None
    written = write_plots(report, tmp_path / "plots")
    assert tmp_path / "plots" / "methods-split-cifar100-class-incremental.png" in written


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


def test_a_chart_is_laid_out_once_for_all_its_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    done = {"layouts": 0, "drawings": 0}
    execute, draw = ConstrainedLayoutEngine.execute, Figure.draw

    def count(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            done[what] += 1
            return function(*arguments)

        return counted

    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", count("layouts", execute))
    monkeypatch.setattr(Figure, "draw", count("drawings", draw))
    write_comparison(tmp_path / "runs", seeds=2)
    written = write_plots(read_report([tmp_path / "runs"]), tmp_path / "plots")
    assert done["drawings"] == len(written)
    assert (
        done["layouts"] == len([path for path in written if path.stem.startswith(("matrices", "losses", "budget"))]) / 2
    )


def test_wide_titles_and_labels_are_not_cut_off(tmp_path: Path) -> None:
    """A picture as wide as its paper has nothing at its edges."""
    write_comparison(tmp_path / "runs", "a method with a name " * 3, seeds=2)
    for path in write_plots(read_report([tmp_path / "runs"]), tmp_path / "plots"):
        if path.suffix == ".png":
            with Image.open(path) as image:
                grey = image.convert("L")
            edges = [(0, 0, grey.width, 4), (0, grey.height - 4, grey.width, grey.height)]
            edges += [(0, 0, 4, grey.height), (grey.width - 4, 0, grey.width, grey.height)]
            assert all(grey.crop(edge).getextrema() == (255, 255) for edge in edges), path.name


def test_no_name_is_given_twice() -> None:
    taken: set[str] = set()
    assert [folder_name(text, taken) for text in ("a b", "A/B", "a-b", "…")] == ["a-b", "a-b-2", "a-b-3", "plots"]


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
        own = [method.measured(SETTINGS[0])[0] for method in methods if method.arms == [arm]]
        assert sorted(y) == pytest.approx(sorted(value for value in own if value is not None))
    names = {path.name for path in write_plots(report, tmp_path / "plots")}
    assert "host.memory-size-split-cifar100-class-incremental.pdf" in names
    write_comparison(tmp_path / "more", seeds=1, host__memory_size=200, training__lr=0.9)
    assert grids(read_report([tmp_path])) == {}
