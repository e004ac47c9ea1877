"""Tables and the plot say what the figures are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_figures import made_bench

from flashback.speed import Bench, markdown, read_bench, sheets, write_tables
from flashback.speed.plot import plot_speeds
from flashback.speed.sheets import Sheet

MEASURED = sorted((Path(__file__).parents[2] / "speed").glob("*.json"))


def sheet(bench: Bench, title: str) -> Sheet:
    return next(sheet for sheet in sheets(bench) if sheet.title.startswith(title))


def cells(bench: Bench, title: str) -> list[dict[str, str]]:
    own = sheet(bench, title)
    return [dict(zip(own.columns, row, strict=True)) for row in own.rows]


def test_steps_stand_in_rows_by_host_batch_and_arm() -> None:
    rows = cells(made_bench(), "Training step")
    assert [(row["host"], row["batch"]) for row in rows] == [
        ("finetune", "32"),
        ("icarl", "32"),
        ("icarl + flashback", "32"),
        ("icarl", "128"),
        ("icarl + flashback", "128"),
    ]
    finetune, alone, both = rows[:3]
    assert (finetune["eager"], finetune["captured"], finetune["cost, eager"]) == ("3,000", "-", "-")
    assert (alone["eager"], alone["captured"], alone["fast"]) == ("2,000", "12,000", "15,000")
    assert (both["captured"], both["peak MiB"]) == ("9,600", "768")
    assert [both[f"cost, {mode}"] for mode in ("eager", "captured", "fast")] == ["1.25"] * 3


def test_peak_memory_compares_the_arms_in_one_mode() -> None:
    bench = made_bench()
    peaks = {("eager", False): 900, ("captured", False): 500, ("fast", False): 950, ("captured", True): 600}
    bench.speeds = [
        replace(speed, peak_bytes=peaks[speed.mode, speed.flashback] * 2**20)
        for speed in bench.speeds
        if speed.host == "icarl" and speed.batch_size == 32 and (speed.mode, speed.flashback) in peaks
    ]
    assert [row["peak MiB"] for row in cells(bench, "Training step")] == ["500", "600"]
    bench.speeds = [speed for speed in bench.speeds if speed.mode == "eager"]
    assert [row["peak MiB"] for row in cells(bench, "Training step")] == ["900"]


def test_cost_is_only_told_where_both_arms_have_the_mode() -> None:
    bench = made_bench()
    bench.speeds = [s for s in bench.speeds if s.flashback or s.mode == "eager"]
    row = next(row for row in cells(bench, "Training step") if row["host"] == "icarl + flashback")
    assert row["cost, eager"] == "1.25"
    assert "cost, fast" not in row


def test_whole_runs_and_their_tasks() -> None:
    bench = made_bench()
    run = cells(bench, "Whole runs")[0]
    assert (run["seconds"], run["images/s"], run["in steps"], run["outside"]) == ("5.0", "12,000", "16,000", "25.0 %")
    rows = {row[0]: row[1:] for row in sheet(bench, "Tasks of the whole run of icarl + flashback").rows}
    assert rows["seconds"] == ["2.00", "2.50"]
    assert rows["compilations"] == ["3", "0"]
    assert rows["peak MiB"] == ["512", "512"]


def test_packed_runs_are_compared_with_the_same_run_alone() -> None:
    short, long = cells(made_bench(), "Whole runs at a time")
    assert (short["images/s"], short["over one"], short["MPS"], short["all training"]) == (
        "24,000",
        "2.00",
        "yes",
        "26,000",
    )
    assert (short["portion"], long["portion"]) == ("50 %", "100 %")
    assert (long["over one"], long["MPS"], long["all training"]) == ("-", "no", "-")  # none of 60 epochs alone


def test_parts_and_knowledge() -> None:
    bench = made_bench()
    assert sheet(bench, "Parts").rows == [["fisher", "0.2500 s"], ["trainer over a bare loop", "1.020"]]
    assert sheet(bench, "Knowledge").rows == [["icarl", "2", "5,000", "4,000"]]


def test_what_is_not_known_has_no_column_row_or_note() -> None:
    bench = made_bench()
    known = sheet(bench, "Training step")
    assert "peak MiB" in known.columns
    assert "Peak: captured where that was measured" in known.note
    bench.speeds = [replace(speed, peak_bytes=0) for speed in bench.speeds if not speed.flashback]
    bench.runs = [replace(run, per_task=[replace(task, peak_bytes=0) for task in run.per_task]) for run in bench.runs]
    steps = sheet(bench, "Training step")
    assert "peak MiB" not in steps.columns
    assert steps.note == ""
    assert [row[0] for row in sheet(bench, "Tasks of").rows] == [
        "seconds",
        "of these in steps",
        "images",
        "compilations",
    ]


def test_markdown_has_every_table_and_every_failure() -> None:
    bench = made_bench()
    bench.failures = {"der, batch 32, fast": "out of memory"}
    text = markdown(bench)
    assert text.startswith("# Speed on NVIDIA Abacus\n")
    assert "bf16; torch 2.11.0" in text
    assert "| icarl + flashback | 32 | 1,600 | 9,600 | 12,000 | 1.25 | 1.25 | 1.25 | 768 |" in text
    assert all(f"## {sheet.title}" in text for sheet in sheets(bench))
    assert "- der, batch 32, fast: out of memory" in text


def test_an_empty_bench_has_no_tables(tmp_path: Path) -> None:
    bench = made_bench()
    empty = Bench(bench.device, bench.date, bench.precision, bench.versions, bench.size)
    assert sheets(empty) == []
    write_tables(empty, tmp_path / "bench")
    assert [path.name for path in tmp_path.iterdir()] == ["bench.md"]


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    from PIL import Image

    write_tables(made_bench(), tmp_path / "bench")
    with Image.open(tmp_path / "bench.png") as image:
        image.load()
        assert image.format == "PNG"
        width, height = image.size
        assert 800 < width < 4000
        assert 300 < height < 4000
        assert len(image.convert("RGB").getcolors(2**24) or []) > 20


def test_the_plot_has_a_panel_for_each_batch_and_a_bar_for_each_host_and_mode() -> None:
    bench = made_bench()
    bench.speeds[0] = replace(bench.speeds[0], images_per_second=10.0)
    figure = plot_speeds(bench)
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes] == ["batch 32", "batch 128"]
    bars = [patch.get_width() for patch in figure.axes[0].patches]
    assert sorted(bars) == [10.0, 3000.0, 12000.0, 15000.0]
    assert sorted(text.get_text() for text in figure.axes[0].texts) == ["10", "12,000", "15,000", "3,000"]
    assert figure.axes[0].get_xlim()[0] == 0  # bars tell by their length
    diamonds = [line.get_xdata()[0] for line in figure.axes[0].lines]
    assert sorted(diamonds) == [1600.0, 9600.0, 12000.0]


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.stem)
def test_the_kept_tables_are_those_of_the_figures(path: Path) -> None:
    bench = read_bench(path)
    assert bench.speeds
    assert path.with_suffix(".md").read_text(encoding="utf-8") == markdown(bench)
    assert path.with_suffix(".png").exists()
