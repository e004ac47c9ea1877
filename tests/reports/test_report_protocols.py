"""Methods are ranked among those that learned and were tested on the same, and never with others."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from made_runs import SETTINGS, made_config, made_matrix, write_run

from flashback.cli import main
from flashback.reports import html_page, latex_tables, markdown_tables, read_report, write_plots
from flashback.reports.against import obstacles
from flashback.reports.pairings import Report
from flashback.reports.plots import grids, plot_methods

CI = SETTINGS[0]
OWN = "patterns.npz"


def write(folder: Path, host: str, benchmark: str = OWN, shift: float = 0.0, run: Any = None, **changes: Any) -> None:
    """One run; a method with a higher `shift` is better in every metric of accuracy."""
    matrices = {setting: made_matrix(2, shift=shift) for setting in SETTINGS}
    config = made_config(host, benchmark, **{f"benchmark__{key}": value for key, value in changes.items()})
    write_run(folder / f"{len(list(folder.glob('*')))}", config, matrices, **(run or {}))


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """The best of all are on easier protocols than the two hosts that can be held against each other."""
    runs = tmp_path / "runs"
    write(runs, "one", sizes=[5, 1])
    write(runs, "two", sizes=[5, 1], shift=1)
    write(runs, "three", sizes=[1] * 6, shift=2)
    write(runs, "four", sizes=[2, 2, 2], order=3, shift=3, run={"class_order": [3, 0, 1]})
    write(runs, "one", sizes=[5, 1], tasks=2, shift=4)
    write(runs, "one", sizes=[5, 1], validation=0.1, shift=5)
    return runs


HEADS = {
    "patterns (order 3, sizes [2, 2, 2])": ["four (benchmark.order 3, benchmark.sizes [2, 2, 2])"],
    "patterns (sizes [5, 1])": ["two (benchmark.sizes [5, 1])", "one (benchmark.sizes [5, 1])"],
    "patterns (sizes [1, 1, 1, 1, 1, 1])": ["three (benchmark.sizes [1, 1, 1, 1, 1, 1])"],
    "patterns (sizes [5, 1], first 2 tasks)": ["one (2 tasks, benchmark.sizes [5, 1])"],
    "patterns (sizes [5, 1], validation 0.1)": ["one (validation 0.1, benchmark.sizes [5, 1])"],
}


def test_markdown_has_a_table_for_every_protocol(mixed: Path) -> None:
    text = re.sub(r"\\([\[\]])", r"\1", markdown_tables(read_report(mixed))).split("## Task")[0]
    found = {}
    for part in text.split("All methods on ")[1:]:
        head, rows = part.split(", best first:\n")
        found[head] = re.findall(r"^\| (\w+ \(.*?\)) \|", rows, re.MULTILINE)
    assert found == HEADS


def test_latex_marks_the_best_of_a_protocol_alone(mixed: Path) -> None:
    text = latex_tables(read_report(mixed, metrics=["AA"])).split(r"\end{table}")[0]
    assert "the best of each metric in bold within each block." in text
    blocks = text.split(r"\midrule")[1:]
    assert [re.findall(r"\\multicolumn\{3\}\{l\}\{\\emph\{(.*)\}\} ", block) for block in blocks] == [
        [h] for h in HEADS
    ]
    bold = [line.split(" & ")[0].strip() for line in text.splitlines() if "textbf" in line]
    assert bold == ["two (benchmark.sizes [5, 1])"]  # those alone in their block have no rivals


def test_the_page_has_a_table_for_every_protocol(mixed: Path) -> None:
    text = html_page(read_report(mixed, metrics=["AA"]))
    section = text.split('<section id="methods">')[1].split("</section>")[0]
    assert re.findall("<h3>Methods on (.*?)</h3>", section) == list(HEADS)
    for part, names in zip(section.split("<h3>")[1:], HEADS.values(), strict=True):
        assert re.findall('<tr><th scope="row">(.*?)</th>', part) == names * 2  # in both settings
    bold = re.findall('<tr><th scope="row">([^<]*)</th><td class="n">1</td><td class="n sure">', section)
    assert bold == ["two (benchmark.sizes [5, 1])"] * 2
    ids = re.findall(' id="([^"]*)"', text)
    assert len(ids) == len(set(ids))


def shown_in_terminal(runs: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The methods of the first setting."""
    with pytest.raises(SystemExit) as ended:
        main(["report", str(runs)])
    assert not ended.value.code
    return capsys.readouterr().out.split("task-incremental, best first")[0]


def test_the_terminal_has_a_block_for_every_protocol(
    mixed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")  # no name is broken
    table = shown_in_terminal(mixed, capsys)
    lines = [line.strip() for line in table.splitlines() if line.startswith("  ") and line.strip()][1:]
    expected = [line for head, names in HEADS.items() for line in (f"on {head}", *names)]
    assert [re.sub(r"   .*", "", line) for line in lines] == expected


def test_of_very_many_methods_the_terminal_shows_the_best_of_every_protocol(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for k in range(42):
        write(tmp_path, f"host{k:02}", shift=k / 10)
    write(tmp_path, "last", tasks=2)
    table = shown_in_terminal(tmp_path, capsys)
    assert table.count("  host") == 20
    assert "  host41" in table
    assert "  last" in table
    assert "; 22 more in the report" in table


def test_charts_show_methods_of_one_protocol(mixed: Path, tmp_path: Path) -> None:
    report = read_report(mixed)
    drawn = {head: plot_methods(report, head, CI) for head in HEADS}
    (head,) = [head for head, figure in drawn.items() if figure is not None]
    assert head == "patterns (sizes [5, 1])"
    figure = drawn[head]
    assert figure is not None
    assert figure.axes[0].get_title() == head
    assert {text.get_text() for text in figure.legends[0].get_texts()} >= {"one", "two"}
    names = {path.name for path in write_plots(report, tmp_path / "plots")}
    assert [name for name in sorted(names) if name.startswith("methods")] == [
        f"methods-patterns-sizes-5-1-{setting}-incremental.{suffix}"
        for setting in ("class", "task")
        for suffix in ("pdf", "png")
    ]


def test_a_number_that_was_varied_is_drawn_by_protocol(tmp_path: Path) -> None:
    for host, sizes in (("one", [5, 1]), ("two", [1, 5])):
        for memory in (100, 200):
            config = made_config(host, OWN, benchmark__sizes=sizes, host__memory_size=memory)
            write_run(tmp_path / f"{host}-{memory}", config, {setting: made_matrix(2) for setting in SETTINGS})
    heads = [f"patterns (sizes {sizes})" for sizes in ("[1, 5]", "[5, 1]")]
    assert sorted(grids(read_report(tmp_path))) == [(head, "host.memory_size") for head in heads]


def test_a_shorter_run_is_no_rival_on_a_shipped_benchmark(tmp_path: Path) -> None:
    write(tmp_path, "icarl", "split-fashion-mini")
    write(tmp_path, "lwf-mc", "split-fashion-mini", shift=1)
    write(tmp_path, "icarl", "split-fashion-mini", tasks=2, shift=2)
    report = read_report(tmp_path)
    assert list(report.protocols.values()) == ["split-fashion-mini", "split-fashion-mini (first 2 tasks)"]
    assert [one.name for one in report.ranked(CI)] == ["lwf-mc", "icarl", "icarl (2 tasks)"]


def test_images_and_orders_that_no_setting_tells_apart_have_their_own_tables(tmp_path: Path) -> None:
    write(tmp_path, "one")
    write(tmp_path, "two", run={"data_checksum": "0123456789"})
    write(tmp_path, "three", "split-cifar100")
    write(tmp_path, "four", "split-cifar100", run={"class_order": [1, 0]})
    assert set(read_report(tmp_path).protocols.values()) == {
        "patterns (data made)",
        "patterns (data 01234567)",
        "split-cifar100 (class order [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, …)",
        "split-cifar100 (class order [1, 0])",
    }


def test_methods_of_one_protocol_need_no_words_about_it(tmp_path: Path) -> None:
    for shift, host in enumerate(("one", "two", "three")):
        write(tmp_path, host, sizes=[5, 1], order=3, shift=shift)
    report = read_report(tmp_path)
    assert [one.name for one in report.ranked(CI)] == ["three", "two", "one"]
    assert "\nAll methods, best first:\n" in markdown_tables(report)
    assert "in bold.}" in latex_tables(report)
    assert "multicolumn" not in latex_tables(report)
    assert "Methods on" not in html_page(report)


def test_what_is_ranked_together_is_what_can_be_tested_against_each_other(mixed: Path) -> None:
    write(mixed, "five", sizes=[5, 1], run={"data_checksum": "other"})
    report: Report = read_report(mixed)
    pairs = list(combinations(report.methods, 2))
    assert [one.protocol == two.protocol for one, two in pairs] == [not obstacles(one, two) for one, two in pairs]
