from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from made_runs import SETTINGS, made_config, made_matrix, write_comparison, write_run, write_similarity

from flashback.metrics import summarise
from flashback.metrics.accuracy import METRICS
from flashback.reports import html_page, markdown_tables, read_report
from flashback.reports.page import CARDS
from flashback.reports.pairings import Report
from flashback.reports.words import SETTING_TITLES, TITLES, direction

EVIL = "<script>alert(1)</script>\"'&{{data}}</script><img src=x onerror=alert(2)>"


class Page(HTMLParser):
    """What a browser would make of a page: its elements, the rows of its tables, its visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[tuple[str | None, dict[str, str | None], list[str]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self._group: str | None = None
        self._inside: str = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self._inside = tag
        if tag == "tbody":
            self._group = dict(attributes).get("data-of")
        elif tag == "tr":
            self.rows.append((self._group, dict(attributes), []))
        elif tag in ("td", "th"):
            self.rows[-1][2].append("")
        elif tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside in ("td", "th"):
            self.rows[-1][2][-1] += data
        if self._inside not in ("script", "style"):
            self.text.append(data)

    def row(self, setting: str, metric: str) -> list[str]:
        return next(
            cells for group, given, cells in self.rows if (group, given.get("data-metric")) == (setting, metric)
        )

    @property
    def data(self) -> Any:
        return json.loads(self.scripts[0])

    def says(self, words: str) -> bool:
        return words in " ".join("".join(self.text).split())


def page_of(folder: Path) -> Page:
    return Page(html_page(read_report([folder])))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    folder = tmp_path_factory.mktemp("runs")
    write_comparison(folder / "icarl", seeds=3)
    write_comparison(folder / "xder", "xder", seeds=2, gain=-1)
    write_run(folder / "finetune", made_config("finetune"), {setting: made_matrix(4) for setting in SETTINGS})
    write_similarity(folder / "icarl")
    (folder / "broken").mkdir()
    (folder / "broken" / "run.json").write_text("{")
    return page_of(folder)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("metric", METRICS)
def test_the_table_holds_what_the_metrics_say(setting: str, metric: str, tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=2)
    values = []
    for arm in ("host", "flashback"):
        for seed in (0, 1):
            results = json.loads((tmp_path / arm / f"seed-{seed}" / "results.json").read_text())[setting]
            found = summarise(results["matrix"], [1] * 4, results["zero_shot"], results["untrained"])[metric]
            assert found is not None
            values.append(found)
    host, flashback = (values[0] + values[1]) / 2, (values[2] + values[3]) / 2
    cells = page_of(tmp_path).row(setting, metric)
    assert cells[0] == "icarl"
    assert cells[1].split(" ")[:-1] == TITLES[metric][0].split(" ")
    assert cells[2].startswith(f"{round(host, 9):.2f} ± {abs(values[0] - values[1]) / 2**0.5:.2f}")
    assert cells[3].startswith(f"{round(flashback, 9):.2f} ± ")
    assert float(cells[4]) == pytest.approx(flashback - host, abs=0.0051)
    assert cells[7] == "2"


def test_the_page_gives_the_answers(page: Page) -> None:
    for words in (
        "11 finished runs on split-cifar100: 2 comparisons, 1 single arm",
        "equal budget",
        "3 pairs",
        "1 single arm, with nothing to compare: finetune",
        "finetune: host only",
    ):
        assert page.says(words)
    assert page.says("Too few pairs") or page.says("fewer than 5 pairs, so read it with care")
    assert [given["data-setting"] for tag, given in page.tags if given.get("role") == "tab"] == list(SETTINGS)
    assert all(page.says(title) for title in SETTING_TITLES.values())


def test_whole_runs_and_many_pairs_come_first(tmp_path: Path) -> None:
    write_comparison(tmp_path / "a", "a-short-method", seeds=4, benchmark__tasks=3)
    write_comparison(tmp_path / "b", "b-method", seeds=1)
    write_comparison(tmp_path / "c", "c-method", seeds=3)
    write_comparison(tmp_path / "d", "d-method", seeds=3)
    write_run(tmp_path / "e", made_config("alone"), {setting: made_matrix(4) for setting in SETTINGS})
    report = read_report([tmp_path])
    names = ["c-method", "d-method", "b-method", "alone", "a-short-method (3 tasks)"]
    assert [pairing.name for pairing in report.pairings] == names
    options = re.findall(r'<option value="\d+">(.*?)</option>', html_page(report))
    assert options == names
    assert [run.host for run in report.runs] == sorted(run.host for run in report.runs), "whatever is shown first"


def test_of_many_answers_the_first_are_shown_and_the_others_folded(tmp_path: Path) -> None:
    for k in range(CARDS + 3):
        write_comparison(tmp_path / f"c{k}", f"method-{k}", seeds=1)
    for k in range(4):
        matrices = {setting: made_matrix(4) for setting in SETTINGS}
        write_run(tmp_path / f"s{k}", made_config("lone", training__lr=k + 1.0), matrices)
    text = html_page(read_report([tmp_path]))
    answers = text[text.index('id="answers"') : text.index('id="results"')]
    shown, folded, singles = answers.split("<details>")
    assert [part.count("<li") for part in (shown, folded, singles)] == [CARDS, 3, 4]
    assert f"<summary>Show all {CARDS + 3} comparisons</summary>" in folded
    assert "<summary>4 single arms, with nothing to compare: lone</summary>" in singles
    leads = re.findall(r'data-pairing="(\d+)"', answers)
    assert sorted(map(int, leads)) == list(range(CARDS + 7)), "each leads to its charts"


def test_methods_without_flashback_are_looked_over_where_there_is_nothing_else(tmp_path: Path) -> None:
    for k, host in enumerate(("lone", "other")):
        write_run(tmp_path / host, made_config(host), {setting: made_matrix(4, shift=k) for setting in SETTINGS})
    text = html_page(read_report([tmp_path]))
    page = Page(text)
    assert "<h1>How do the methods compare?</h1>" in text
    assert "flashback help" not in text
    assert [section for section in ("answers", "results", "statistics") if f'id="{section}"' in text] == []
    mine = [(group, cells[:3]) for group, _, cells in page.rows if cells[0] in ("lone", "other") and cells[1] == "1"]
    means = {setting: [cells[2] for group, cells in mine if group == setting] for setting in SETTINGS}
    assert [cells[0] for _, cells in mine] == ["other", "lone"] * 2  # best first
    for setting in SETTINGS:
        assert float(means[setting][0]) == pytest.approx(float(means[setting][1]) + 1, abs=0.011)
    assert 'class="n sure">' in text


def test_a_comparison_alone_has_no_overview_of_methods(tmp_path: Path) -> None:
    write_comparison(tmp_path / "a", seeds=1)
    assert 'id="methods"' not in html_page(read_report([tmp_path]))
    write_comparison(tmp_path / "b", "lucir", seeds=1)
    assert 'id="methods"' in html_page(read_report([tmp_path]))


def test_an_answer_says_what_its_tab_and_badges_do_not(tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=3)
    report = read_report([tmp_path])
    (pairing,) = report.pairings
    text = html_page(report)
    answers = text[text.index('class="card answer"') : text.index('id="results"')]
    for setting in SETTINGS:
        head = f'<span class="setting-head">{SETTING_TITLES[setting]}: </span>'
        assert f'<p data-of="{setting}">{head}{html.escape(pairing.verdict(setting))}</p>' in answers
        assert pairing.answer(setting).endswith(pairing.verdict(setting))
    assert answers.count("equal budget") == 1


def test_arms_that_differ_in_more_than_flashback_say_so_in_their_answer(tmp_path: Path) -> None:
    for arm, rate in (("host", 0.3), ("flashback", 0.1)):
        config = made_config("lwf-mc", recipe="as-published", training__lr=rate, flashback__enabled=arm == "flashback")
        write_run(tmp_path / arm, config, {setting: made_matrix(4) for setting in SETTINGS})
    page = page_of(tmp_path)
    assert page.says("settings of the host differ")
    assert page.says("The arms also differ in training.lr.")


def test_names_have_their_benchmark_where_there_are_several(tmp_path: Path) -> None:
    write_comparison(tmp_path / "one", seeds=1)
    assert page_of(tmp_path).row(SETTINGS[0], "forgetting")[0] == "icarl"
    write_comparison(tmp_path / "two", "icarl", "split-fashion-mini", seeds=1)
    page = page_of(tmp_path)
    assert page.says("4 finished runs on split-cifar100, split-fashion-mini: 2 comparisons")
    names = {cells[0] for _, given, cells in page.rows if given.get("data-metric")}
    assert names == {"icarl on split-cifar100", "icarl on split-fashion-mini"}


def test_similarity_has_a_section_of_its_own_whichever_method_is_shown(page: Page, tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=1)
    assert not any(given.get("id") == "similarity" for _, given in page_of(tmp_path).tags)
    places = [given.get("id") or given.get("data-draw") or "" for _, given in page.tags]
    assert places.index("details") < places.index("losses") < places.index("similarity") < places.index("similarity 0")
    assert page.says("Representations of icarl, seed 123")


def test_no_setting_is_hidden_but_by_the_script(page: Page) -> None:
    (body,) = [given for tag, given in page.tags if tag == "body"]
    assert "data-setting" not in body
    assert "document.body.dataset.setting = state.setting" in page.scripts[1]
    groups = [given.get("data-of") or given.get("class") for tag, given in page.tags if tag in ("tbody", "ul", "h4")]
    for place, group in enumerate(groups):
        if group in SETTINGS:
            assert groups[place - 1] == "setting-head", "each has its heading"
    assert groups.count("setting-head") == sum(group in SETTINGS for group in groups) >= 8


def test_statistics_say_which_test_they_are(page: Page) -> None:
    for words in (
        "Paired t-test by seed, within a method",
        "2 of 2 comparisons with fewer than 5 pairs",
        "The paper's test over methods",
        "one per method and setting",
        "The paper's test over the tasks of a run",
        "one per task",
    ):
        assert page.says(words)


@pytest.mark.parametrize(
    ("seeds", "said"), [(1, ""), (3, "Of 2 tests at the 5 % level, 0.1 would be significant by chance alone.")]
)
def test_what_chance_alone_would_find_is_of_tests_that_were_done(tmp_path: Path, seeds: int, said: str) -> None:
    write_comparison(tmp_path, seeds=seeds)
    write_comparison(tmp_path / "xder", "xder", seeds=1)
    page = page_of(tmp_path)
    assert page.says("Paired t-test by seed, within a method")
    assert page.says(said)
    assert page.says("by chance alone") == bool(said)


@pytest.mark.parametrize("shift", [-0.003, 0.005, 0.125])
def test_a_chart_has_the_numbers_of_the_table(tmp_path: Path, shift: float) -> None:
    for seed in range(2):
        for arm, more in (("host", 0.0), ("flashback", shift + seed / 1000)):
            config = made_config(seed=seed, flashback__enabled=arm == "flashback")
            flat = [[50 + more] * (k + 1) for k in range(3)]
            write_run(tmp_path / arm / str(seed), config, dict.fromkeys(SETTINGS, flat))
    page = page_of(tmp_path)
    answer, cells = page.data["pairings"][0]["answer"][SETTINGS[0]], page.row(SETTINGS[0], "average_accuracy")
    assert answer["values"][0] == pytest.approx(shift + 0.0005)
    assert answer["difference"] == cells[4]
    assert answer["label"] == f"difference {cells[4]}, 95 % interval {cells[5]}"


def test_printed_values_stand_beside_ours(page: Page) -> None:
    for words in (
        "49.82 (quoted)",
        "59.14 (quoted), 57.57 (own run)",
        "printed +0.45",
        "printed t = 4.34",
        "The paper prints t = 4.34",
    ):
        assert page.says(words)


@pytest.mark.parametrize("form", [html_page, markdown_tables])
def test_what_the_paper_quotes_of_others_stands_below_its_values(form: Callable[[Report], str], tmp_path: Path) -> None:
    write_comparison(tmp_path, "foster", "cifar100-b0-10", seeds=1)
    said = form(read_report([tmp_path]))
    assert "Quoted in the same tables, not run here" in said
    assert "57.76 (quoted) in Table 4" in said
    write_comparison(tmp_path / "other", "oewc", "split-cifar100", seeds=1)
    other = form(read_report([tmp_path / "other"]))
    assert "not run here" not in other
    assert "one binary loss for each class" in other  # what to know of the printed 15.79


def test_the_printed_test_over_tasks_stands_beside_that_of_its_host(tmp_path: Path) -> None:
    write_comparison(tmp_path / "icarl", "icarl")
    assert not page_of(tmp_path).says("t = 3.9, p = 0.001")
    write_comparison(tmp_path / "oewc", "oewc")
    assert page_of(tmp_path).says("oewc, class-incremental: The paper prints t = 3.9, p = 0.001 (Section 6.4.2)")


def test_a_benchmark_the_paper_does_not_know_gets_no_such_section(tmp_path: Path) -> None:
    write_comparison(tmp_path, benchmark="split-fashion-mini")
    page = page_of(tmp_path)
    assert not any(given.get("id") == "the-paper" for _, given in page.tags)


def test_what_was_left_out_is_named(page: Page) -> None:
    assert page.says("broken: config.yaml is missing or unreadable")


def test_the_budget_is_shown_as_measured(page: Page) -> None:
    rows = [cells for _, _, cells in page.rows if cells[:3] == ["icarl", "with flashback", "equal budget"]]
    assert rows == [["icarl", "with flashback", "equal budget", "640", "20,000", "12", "4,000", "3,000"]]


def test_an_arm_alone_has_no_budget_to_be_equal(page: Page) -> None:
    (cells,) = [cells for _, _, cells in page.rows if cells[:2] == ["finetune", "host"] and len(cells) == 8]
    assert cells[2] == "–"
    assert not page.says("budget unknown")


def test_charts_have_their_data_once(page: Page) -> None:
    icarl, _, finetune = page.data["pairings"]
    assert icarl["seeds"] == {"host": 3, "flashback": 3}
    assert finetune["seeds"] == {"host": 1}
    view = icarl["views"][SETTINGS[0]]
    assert [len(row) for row in view["matrix"]["host"]] == [1, 2, 3, 4]
    assert view["curve"]["flashback"]["mean"][-1] == pytest.approx(sum(view["matrix"]["flashback"][-1]) / 4, abs=0.02)
    assert [stage for _, stage, _, _ in icarl["losses"]["flashback"]["segments"]][:3] == ["learn", "phase 1", "phase 2"]
    assert set(icarl["losses"]["flashback"]["terms"]) == {"task", "stability", "plasticity"}
    assert page.data["similarities"][0]["layers"][0] == "stage4.0.conv1"


def test_settings_are_whole_and_their_difference_is_marked(page: Page) -> None:
    rows = {key: values for key, *values in page.data["pairings"][0]["config"]}
    assert rows["flashback.enabled"] == ["false", "true"]
    assert rows["training.milestones"] == ["[0.7, 0.9]"]
    assert rows["seed"] == ["[0, 1, 2]"]
    assert {key.split(".")[0] for key, values in rows.items() if len(values) > 1} == {"flashback"}
    assert rows["flashback.alpha"][0] == "–"  # it has no effect without flashback
    assert float(rows["flashback.alpha"][1]) > 0


# ---------------------------------------------------------------- safe, and alone


def test_text_from_files_stays_text(tmp_path: Path) -> None:
    facts = {"device": EVIL, "class_order": [EVIL], "commit": EVIL}
    write_comparison(tmp_path / "runs", EVIL, seeds=2, training__schedule=EVIL, recipe=EVIL, run=facts)
    write_run(tmp_path / "other", made_config(EVIL, EVIL), {setting: made_matrix(4) for setting in SETTINGS})
    log = [{"event": "epoch", "task": 0, "stage": EVIL, "epoch": 0, "epochs": 1, "losses": {EVIL: 1.0}}]
    write_run(tmp_path / "log", made_config("icarl"), {setting: made_matrix(4) for setting in SETTINGS}, log=log)
    seeds = {"host": 0, "flashback": 0}
    similarity = {"host": EVIL, "seeds": seeds, "layers": [EVIL], "old": {"host": [0.5]}, "new": {}}
    (tmp_path / "runs" / "cka.json").write_text(json.dumps(similarity))
    text = html_page(read_report([tmp_path]))
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert [tag for tag, _ in page.tags].count("img") == 0
    assert not any(name.startswith("on") for _, given in page.tags for name in given)
    assert page.says(" ".join(f"{EVIL} on split-cifar100".split()))
    assert dict(map(lambda row: row[:2], page.data["pairings"][0]["config"]))["training.schedule"] == EVIL
    assert page.data["similarities"][0]["layers"] == [EVIL]
    assert EVIL not in text


def test_the_page_asks_nobody_for_anything(page: Page, tmp_path: Path) -> None:
    write_comparison(tmp_path)
    text = html_page(read_report([tmp_path]))
    assert "http://" not in text
    assert "https://" not in text
    assert not re.search(r"@import|url\(|\bfetch\(|XMLHttpRequest|\bimport\(", text)
    for _, given in page.tags:
        assert given.get("src") is None
        assert (given.get("href") or "#").startswith(("#", "data:"))


def test_the_policy_of_the_page_allows_its_own_script_and_style_alone(page: Page, tmp_path: Path) -> None:
    write_comparison(tmp_path)
    text = html_page(read_report([tmp_path]))
    policy = next(given["content"] for tag, given in page.tags if given.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "default-src 'none'" in policy
    for kind, content in (
        ("style", re.search(r"<style>(.*?)</style>", text, re.S)),
        ("script", re.search(r"<script>(.*?)</script>", text, re.S)),
    ):
        assert content is not None
        digest = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert not any("style" in given for _, given in page.tags)


def test_the_same_runs_give_the_same_page(tmp_path: Path) -> None:
    write_comparison(tmp_path)
    assert html_page(read_report([tmp_path])) == html_page(read_report([tmp_path]))


# ---------------------------------------------------------------- many runs


def test_two_hundred_runs_answer_soon_on_a_page_of_few_megabytes(tmp_path: Path) -> None:
    """As many comparisons as they can make, which is the most there is to show."""
    for k in range(100):
        write_comparison(
            tmp_path / str(k), seeds=1, tasks=10, training__lr=k, training__epochs=60, flashback__epochs=10
        )
    began = time.process_time()  # other processes may share the machine
    report = read_report([tmp_path])
    text = html_page(report)
    spent = time.process_time() - began
    assert len(report.runs) == 200
    assert len(report.pairings) == 100
    assert spent < 60  # some 3 on an idle machine
    assert len(text.encode()) < 5_000_000


@pytest.mark.parametrize(("difference", "told"), [(0.004, ""), (-0.004, ""), (0.0, ""), (None, ""), (0.01, "better")])
def test_a_difference_that_is_written_as_zero_has_no_arrow(difference: float | None, told: str) -> None:
    assert direction("average_accuracy", difference) == told
    assert direction("forgetting", difference) == {"better": "worse"}.get(told, "")
