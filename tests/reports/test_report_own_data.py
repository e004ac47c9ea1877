"""Runs on data of one's own belong together by what they learned from, and orders of the seed by the seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_runs import SETTINGS, made_config, made_matrix, write_run

from flashback.reports import html_page, read_report
from flashback.studies.tuning import STUDY

CI = SETTINGS[0]
SPELLINGS = ("patterns.npz", "./patterns.npz", "/data/patterns.npz", "../here/patterns.npz")


def write(folder: Path, benchmark: str, seed: int, flashback: bool, run: Any = None, **more: Any) -> None:
    config = made_config("icarl", benchmark, seed=seed, flashback__enabled=flashback, **more)
    matrices = {setting: made_matrix(3, 2 * seed + flashback, 3.0 * flashback) for setting in SETTINGS}
    name = f"{len(list(folder.glob('*')))}-{seed}-{flashback}"
    write_run(folder / name, config, matrices, **(run or {}))


def test_a_file_is_one_benchmark_however_its_path_was_written(tmp_path: Path) -> None:
    for seed, (one, other) in enumerate(zip(SPELLINGS, reversed(SPELLINGS), strict=True)):
        write(tmp_path, one, seed, flashback=False)
        write(tmp_path, other, seed, flashback=True)
    report = read_report(tmp_path)
    (pairing,) = report.pairings
    assert pairing.row(CI).test.pairs == len(SPELLINGS)
    assert pairing.comparison.differing_settings == []
    assert report.benchmarks == [SPELLINGS[0]]
    assert "patterns" in html_page(report)


def test_files_of_one_name_and_other_content_stay_apart(tmp_path: Path) -> None:
    for path, checksum in (("a/data.npz", "a" * 64), ("b/data.npz", "b" * 64), ("data.npz", "a" * 64)):
        write(tmp_path, path, len(list(tmp_path.iterdir())), False, {"data_checksum": checksum})
    report = read_report(tmp_path)
    assert [pairing.seeds for pairing in report.pairings] == [[0, 2], [1]]
    assert report.benchmarks == ["a/data.npz", "b/data.npz"]
    assert len({pairing.name for pairing in report.pairings}) == 2


def test_an_order_of_the_seed_is_one_comparison(tmp_path: Path) -> None:
    for seed in range(3):
        for flashback in (False, True):
            drawn = {"class_order": [(seed + k) % 20 for k in range(20)]}
            write(tmp_path, "split-cifar100", seed, flashback, drawn, benchmark__order="seed")
    (pairing,) = read_report(tmp_path).pairings
    assert pairing.row(CI).test.pairs == 3
    assert "order seed" in pairing.name


def test_other_orders_still_stay_apart(tmp_path: Path) -> None:
    for seed in range(2):
        write(tmp_path, "split-cifar100", seed, False, {"class_order": [seed]})
    assert len(read_report(tmp_path).pairings) == 2


@pytest.mark.parametrize("results", [True, False])
def test_the_folder_of_a_tuning_is_no_run(tmp_path: Path, results: bool) -> None:
    """It holds the configuration of its first choice, beside its study; its choices are runs like any other."""
    write(tmp_path / "tuned", "split-cifar100", 0, flashback=True, benchmark__validation=0.1)
    (run,) = (tmp_path / "tuned").iterdir()
    for name in ("config.yaml", *(["recipe.yaml"] if results else [])):
        (tmp_path / "tuned" / name).write_bytes((run / "config.yaml").read_bytes())
    assert read_report(tmp_path).skipped == {"tuned": "not finished: results.json is not there"}
    (tmp_path / "tuned" / STUDY).touch()
    report = read_report(tmp_path)
    assert report.skipped == {}
    assert [run.name for run in report.runs] == [f"tuned/{run.name}"]
