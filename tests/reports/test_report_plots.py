from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import SETTINGS, made_config, made_matrix, write_comparison, write_run, write_similarity
from PIL import Image

from flashback.reports import read_report, write_plots
from flashback.reports.plots import file_name


def test_every_chart_is_written_as_png_and_pdf(tmp_path: Path) -> None:
    write_comparison(tmp_path / "runs", seeds=2)
    write_similarity(tmp_path / "runs")
    written = write_plots(read_report([tmp_path / "runs"]), tmp_path / "plots")
    stems = {path.stem for path in written}
    settings = ("class-incremental", "task-incremental")
    assert stems == {
        *(f"answers-{setting}" for setting in settings),
        *(f"icarl-on-split-cifar100-{kind}-{s}" for kind in ("accuracy", "matrices", "balance") for s in settings),
        "icarl-on-split-cifar100-losses", "icarl-on-split-cifar100-budget", "runs-cka",
    }  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == sorted(path.name for path in written)
    for path in written:
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert min(image.size) > 150
                assert len(set(image.convert("L").resize((40, 40)).tobytes())) > 5, "not an empty picture"
        else:
            assert path.read_bytes().startswith(b"%PDF")


@pytest.mark.filterwarnings("error")
def test_names_are_not_mathematics_and_not_paths(tmp_path: Path) -> None:
    matrices = {setting: made_matrix(1) for setting in SETTINGS}
    write_run(tmp_path / "runs" / "a", made_config("../$\\frac{x$"), matrices)
    (tmp_path / "runs" / "a" / "log.jsonl").unlink()
    written = write_plots(read_report([tmp_path / "runs"]), tmp_path / "plots")
    assert {path.parent for path in written} == {tmp_path / "plots"}
    kinds = ("accuracy-class-incremental", "accuracy-task-incremental", "budget")
    kinds += ("matrices-class-incremental", "matrices-task-incremental")
    assert {path.stem for path in written} == {f"frac-x-on-split-cifar100-{kind}" for kind in kinds}


def test_no_name_is_given_twice() -> None:
    taken: set[str] = set()
    assert [file_name(text, taken) for text in ("a b", "A/B", "a-b", "…")] == ["a-b", "a-b-2", "a-b-3", "plot"]
