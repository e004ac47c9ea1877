"""The report as one HTML page."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from made_runs import SETTINGS, made_config, made_matrix, write_comparison, write_frontier, write_run, write_similarity

from flashback.reports import read_report, write_report
from flashback.reports.page import html_page, payload

SHOWN_CARDS = 6

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


def test_sections_are_there_where_there_is_something_to_show(page: Page, tmp_path: Path) -> None:
    def sections(page: Page) -> list[str]:
        return [str(attributes["id"]) for tag, attributes in page.tags if tag == "section"]

    assert sections(page) == ["answers", "results", "methods", "details", "similarity", "budget", "statistics", "runs"]
    matrices = {setting: made_matrix(2) for setting in SETTINGS}
    write_run(tmp_path / "a", made_config(), matrices, confusion=[[8, 2], [5, 15]])
    assert sections(page_of(tmp_path)) == ["methods", "details", "classes", "budget", "runs"]
    confusion = page_of(tmp_path).data["pairings"][0]["confusion"]
    assert confusion == {"host": {"classes": ["class 0", "class 1"], "matrix": [[80, 20], [25, 75]]}}


def test_ids_are_unique_and_links_lead_to_them(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [str(attributes["href"])[1:] for tag, attributes in page.tags if tag == "a"]
    assert links
    assert set(links) <= set(ids)


def test_every_comparison_has_an_answer_and_a_strip_for_its_interval(page: Page) -> None:
    report_names = [row[2][0] for row in page.rows if row[0] == SETTINGS[0]]
    assert {"icarl", "xder"} <= set(report_names)
    assert [attributes["data-strip"] for _, attributes in page.tags if "data-strip" in attributes] == ["0", "1"]
    assert page.says("broken: run.json") or page.says("broken: config.yaml")


def test_many_answers_are_folded(tmp_path: Path) -> None:
    for k in range(SHOWN_CARDS + 2):
        write_comparison(tmp_path / str(k), seeds=1, tasks=2, training__lr=1.0 + k)
    text = html_page(read_report([tmp_path]))
    answers = text.split('<section id="answers">')[1].split("</section>")[0]
    assert answers.split("<details>")[0].count('class="card answer"') == SHOWN_CARDS
    assert answers.count('class="card answer"') == SHOWN_CARDS + 2


@pytest.mark.parametrize("shift", [-0.003, 0.005, 0.125])
def test_a_chart_has_the_numbers_of_the_table(tmp_path: Path, shift: float) -> None:
    for arm in (False, True):
        matrices = {setting: [[50.0 + shift * arm]] for setting in SETTINGS}
        write_run(tmp_path / str(arm), made_config(flashback__enabled=arm), matrices)
    page = page_of(tmp_path)
    cells = next(cells for group, _, cells in page.rows if group == SETTINGS[0] and cells[1].startswith("AA"))
    assert page.data["pairings"][0]["answer"][SETTINGS[0]]["difference"] == cells[4]


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


def test_differences_in_charts_are_of_common_seeds(tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=2)
    write_run(tmp_path / "odd", made_config(seed=7), {setting: made_matrix(4, 9, -40) for setting in SETTINGS})
    report = read_report(tmp_path)
    for setting, view in payload(report)["pairings"][0]["views"].items():
        expected = pytest.approx(report.pairings[0].row(setting).test.difference, abs=0.02)
        assert view["difference"]["curve"][-1] == expected
        assert sum(view["difference"]["matrix"][-1]) / 4 == expected
        assert view["curve"]["flashback"]["mean"][-1] - view["curve"]["host"]["mean"][-1] != expected
    write_run(tmp_path / "alone", made_config("lucir"), {setting: made_matrix(2) for setting in SETTINGS})
    assert "difference" not in payload(read_report(tmp_path / "alone"))["pairings"][0]["views"][SETTINGS[0]]


def test_settings_are_whole_and_their_difference_is_marked(page: Page) -> None:
    rows = {key: values for key, *values in page.data["pairings"][0]["config"]}
    assert rows["flashback.enabled"] == ["false", "true"]
    assert rows["training.milestones"] == ["[0.7, 0.9]"]
    assert rows["seed"] == ["[0, 1, 2]"]
    assert {key.split(".")[0] for key, values in rows.items() if len(values) > 1} == {"flashback"}
    assert rows["flashback.alpha"][0] == "–"  # it does nothing without flashback
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
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
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
    for _, attributes in page.tags:
        assert attributes.get("src") is None
        assert (attributes.get("href") or "#").startswith(("#", "data:"))


def test_the_policy_of_the_page_allows_its_own_script_and_style_alone(page: Page, tmp_path: Path) -> None:
    write_comparison(tmp_path)
    text = html_page(read_report([tmp_path]))
    policy = next(
        attributes["content"]
        for tag, attributes in page.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
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
    assert not any("style" in attributes for _, attributes in page.tags)


def test_the_same_runs_give_the_same_page(tmp_path: Path) -> None:
    write_comparison(tmp_path)
    assert html_page(read_report([tmp_path])) == html_page(read_report([tmp_path]))


# ---------------------------------------------------------------- many runs


@pytest.mark.slow
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


def test_a_frontier_has_its_answers_its_points_and_a_chart(tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=2)
    frontier = write_frontier(tmp_path)
    text = html_page(read_report([tmp_path]))
    page = Page(text)
    (advantage,) = frontier.advantages("class_incremental")
    assert any(advantage.sentence in part for part in page.text)
    rows = [cells for group, _, cells in page.rows if group == "class_incremental" and cells[0] == "free-primary"]
    assert [cells[1] for cells in rows if len(cells) == 7] == ["3", "1", "0.3"]
    assert ("div", {"class": "plot", "data-draw": "frontier 0"}) in page.tags
    (host_curve, form) = json.loads(page.scripts[0])["frontiers"][0]["class_incremental"].values()
    assert [point["weight"] for point in host_curve["points"]] == [3, 1, 0.3]
    assert form["points"][0]["new"] == [pytest.approx(22.3), pytest.approx(0.3)]
    assert (form["outline"][0], form["outline"][-1]) == ([22.3, 79.7], [32.3, 69.7])
    markdown = write_report(read_report([tmp_path]), tmp_path / "report.md", "md")[0].read_text()
    assert (
        "## Frontier of icarl on split\\-cifar100" in markdown or "## Frontier of icarl on split-cifar100" in markdown
    )
