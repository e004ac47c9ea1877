"""A report as a reader meets it: on a wide screen and on a phone, with mouse, finger and keys, by day and by night."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_runs import SETTINGS, made_config, made_matrix, write_comparison, write_frontier, write_run, write_similarity
from PIL import Image

from flashback.reports import read_report, write_report

By = pytest.importorskip("selenium.webdriver.common.by").By
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
ActionChains = pytest.importorskip("selenium.webdriver.common.action_chains").ActionChains
Select = pytest.importorskip("selenium.webdriver.support.ui").Select

EVIL = "<script>window.harm = 1</script><img src=x onerror='window.harm = 2'>"
PAPER = Path(__file__).parents[2] / "reproduction" / "paper-values.yaml"
WIDTHS = {"desktop": 1280, "phone": 390}
Look = Callable[..., None]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    runs = folder / "runs"
    write_comparison(runs / "icarl", seeds=5, tasks=10)
    write_comparison(runs / "lucir", "lucir", "cifar100-b50-2", seeds=3, tasks=26, gain=-2, sizes=[50, *[2] * 25])
    matrices = {setting: made_matrix(10) for setting in SETTINGS}
    write_run(runs / "evil", made_config(EVIL, recipe=EVIL), matrices, confusion=[[8, 2], [5, 15]])
    write_similarity(runs / "icarl")
    write_frontier(runs / "icarl")
    (runs / "half").mkdir()
    (runs / "half" / "config.yaml").write_text("host: x")
    return write_report(read_report([runs]), folder / "report.html")[0]


def requests(browser: Any) -> list[str]:
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


def take_picture(browser: Any, path: Path) -> None:
    """The whole page, not only what fits the window."""
    width, height = browser.execute_script("scrollTo(0, 0); return [innerWidth, document.documentElement.scrollHeight]")
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    options = {"format": "png", "captureBeyondViewport": True, "clip": clip}
    path.write_bytes(base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", options)["data"]))


def visible_cells(browser: Any, column: int) -> list[str]:
    script = """return [...document.querySelectorAll('#results-table tbody tr')].filter(row => row.offsetParent)
                .map(row => row.cells[arguments[0]].textContent)"""
    cells: list[str] = browser.execute_script(script, column)
    return cells


def tip(browser: Any) -> str:
    text: str = browser.execute_script("const t = document.getElementById('tip'); return t.hidden ? '' : t.textContent")
    return text


def plot(browser: Any, kind: str) -> Any:
    element = browser.find_element(By.CSS_SELECTOR, f"[data-draw='{kind}'] svg[tabindex]")
    show(browser, element)
    return element


def show(browser: Any, element: Any) -> None:
    """Scroll to an element, and wait until the page has noticed."""
    script = """arguments[0].scrollIntoView({block: 'center', behavior: 'instant'});
                requestAnimationFrame(() => requestAnimationFrame(() => arguments[1]()))"""
    browser.execute_async_script(script, element)


# ---------------------------------------------------------------- the whole page


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("device", WIDTHS)
def test_the_page_opens_without_errors_requests_or_sideways_scrolling(
    device: str, dark: bool, report: Path, browser: Any, look: Look, screenshots: Path
) -> None:
    look(report, WIDTHS[device], dark=dark, touch=device == "phone")
    for tab in browser.find_elements(By.CSS_SELECTOR, "[role=tab]")[::-1]:
        browser.execute_script("arguments[0].click()", tab)
        for option in range(3):
            Select(browser.find_element(By.ID, "pairing")).select_by_index(option)
            size = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
            assert size[0] <= size[1]
    Select(browser.find_element(By.ID, "pairing")).select_by_index(1)
    take_picture(browser, screenshots / f"report-{device}-{'dark' if dark else 'light'}.png")
    assert browser.get_log("browser") == []
    assert {url.split(":")[0] for url in requests(browser)} <= {"file", "data"}
    assert browser.execute_script("return window.harm") is None
    assert EVIL in browser.find_element(By.ID, "answers").text


def test_without_scripts_all_settings_are_shown_each_with_a_heading(report: Path, browser: Any, look: Look) -> None:
    heads = """return [...document.querySelectorAll('.setting-head')].filter(head => head.offsetParent)
               .map(head => head.textContent.trim())"""
    look(report)
    with_scripts = visible_cells(browser, 0)
    assert browser.execute_script(heads) == []
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        look(report)
        visible = browser.execute_script(
            """return [...document.querySelectorAll('tbody[data-of], [data-of]')].map(part => !!part.offsetParent)"""
        )
        assert visible
        assert all(visible)
        headings = browser.execute_script(heads)
        assert {"Class-incremental", "Task-incremental"} < set(headings)
        assert headings.count("Class-incremental") == headings.count("Task-incremental") >= 4
        assert len(visible_cells(browser, 0)) > 2 * len(with_scripts)
        assert not browser.find_element(By.CSS_SELECTOR, "[role=tablist]").is_displayed()
        size = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
        assert size[0] <= size[1]
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_stands_out_from_its_ground(dark: bool, report: Path, browser: Any, look: Look) -> None:
    """WCAG 2: 4.5 to 1 for text, 3 to 1 for the lines and marks of charts."""
    look(report, dark=dark)

    def luminance(name: str) -> float:
        digits = browser.execute_script(
            "return getComputedStyle(document.documentElement).getPropertyValue(arguments[0]).trim()", f"--{name}"
        )
        parts = [int(digits[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    def contrast(one: str, other: str) -> float:
        low, high = sorted([luminance(one), luminance(other)])
        return (high + 0.05) / (low + 0.05)

    for text in ("ink", "soft", "focus"):
        assert min(contrast(text, ground) for ground in ("paper", "card", "mark")) >= 4.5
    for mark in ("host", "flashback", *(f"t{k}" for k in range(6))):
        assert contrast(mark, "card") >= 3


# ---------------------------------------------------------------- tabs and tables


def test_tabs_answer_to_mouse_and_keys(report: Path, browser: Any, look: Look) -> None:
    look(report)
    first, second = browser.find_elements(By.CSS_SELECTOR, "[role=tab]")
    before, answers = visible_cells(browser, 2), browser.find_element(By.ID, "answers").text
    second.click()
    assert [tab.get_attribute("aria-selected") for tab in (first, second)] == ["false", "true"]
    assert visible_cells(browser, 2) != before
    assert browser.find_element(By.ID, "answers").text != answers
    second.send_keys(Keys.ARROW_RIGHT)
    assert [tab.get_attribute("aria-selected") for tab in (first, second)] == ["true", "false"]
    assert browser.switch_to.active_element == first
    assert visible_cells(browser, 2) == before


def test_tabs_answer_to_a_finger(report: Path, browser: Any, look: Look) -> None:
    look(report, 390, touch=True)
    second = browser.find_elements(By.CSS_SELECTOR, "[role=tab]")[1]
    tap(browser, second)
    assert second.get_attribute("aria-selected") == "true"


@pytest.mark.parametrize("with_keys", [False, True], ids=["mouse", "keys"])
def test_the_table_sorts(with_keys: bool, report: Path, browser: Any, look: Look) -> None:
    look(report)
    Select(browser.find_element(By.ID, "metric")).select_by_value("average_accuracy")
    assert len(visible_cells(browser, 4)) == 3
    head = browser.find_elements(By.CSS_SELECTOR, "#results-table th[scope=col]")[4]
    button = head.find_element(By.TAG_NAME, "button")

    def press() -> list[str]:
        if with_keys:
            button.send_keys(Keys.ENTER)
        else:
            button.click()
        return visible_cells(browser, 4)

    downwards, upwards = press(), press()
    assert head.get_attribute("aria-sort") == "ascending"
    assert float(downwards[0]) > 0 > float(downwards[1])
    assert downwards[2] == upwards[2] == "–", "what is missing comes last"
    assert upwards[:2] == downwards[1::-1]


def test_words_sort_by_the_alphabet(report: Path, browser: Any, look: Look) -> None:
    look(report)
    Select(browser.find_element(By.ID, "metric")).select_by_value("forgetting")
    browser.find_element(By.CSS_SELECTOR, "#results-table th[scope=col] button").click()
    names = visible_cells(browser, 0)
    assert names == sorted(names, key=str.lower)


def test_settings_show_their_difference_or_all_of_them(report: Path, browser: Any, look: Look) -> None:
    look(report)
    Select(browser.find_element(By.ID, "pairing")).select_by_visible_text("icarl on split-cifar100")
    rows = "[data-draw=config] tbody tr"
    differing = [row.text for row in browser.find_elements(By.CSS_SELECTOR, rows)]
    assert differing[0] == "flashback.enabled false true"
    assert all(row.startswith("flashback.") for row in differing)
    assert any(row.startswith("flashback.alpha – ") for row in differing)
    browser.find_element(By.ID, "differences").click()
    assert len(browser.find_elements(By.CSS_SELECTOR, rows)) > len(differing) + 10


# ---------------------------------------------------------------- charts


ELSEWHERE = {"frontier 0": (-250, -80)}  # from the middle of a chart, where another point is nearest
KINDS = ("curve", "balance", "matrices", "losses", "similarity 0", "frontier 0")


@pytest.mark.parametrize("kind", KINDS)
def test_charts_answer_to_the_mouse(kind: str, report: Path, browser: Any, look: Look) -> None:
    look(report)
    Select(browser.find_element(By.ID, "pairing")).select_by_visible_text("icarl on split-cifar100")
    chart = plot(browser, kind)
    ActionChains(browser).move_to_element(chart).perform()
    middle = tip(browser)
    assert any(digit in middle for digit in "0123456789")
    ActionChains(browser).move_to_element_with_offset(chart, *ELSEWHERE.get(kind, (-100, 40))).perform()
    assert tip(browser) != middle
    ActionChains(browser).move_to_element(browser.find_element(By.CSS_SELECTOR, ".bar")).perform()
    assert tip(browser) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_charts_answer_to_keys(kind: str, report: Path, browser: Any, look: Look) -> None:
    look(report)
    Select(browser.find_element(By.ID, "pairing")).select_by_visible_text("icarl on split-cifar100")
    chart = plot(browser, kind)
    chart.send_keys(Keys.HOME)
    seen = [tip(browser)]
    for key in (Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.END):
        chart.send_keys(key)
        seen.append(tip(browser))
    assert len(set(seen)) == 4
    chart.send_keys(Keys.ESCAPE)
    assert tip(browser) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_charts_answer_to_a_finger(kind: str, report: Path, browser: Any, look: Look) -> None:
    look(report, 390, touch=True)
    Select(browser.find_element(By.ID, "pairing")).select_by_visible_text("icarl on split-cifar100")
    tap(browser, plot(browser, kind))
    assert tip(browser) != ""
    box = browser.execute_script(
        "const r = document.getElementById('tip').getBoundingClientRect(); return [r.left, r.right]"
    )
    assert box[0] >= 0
    assert box[1] <= 390


def test_charts_say_what_the_runs_say(report: Path, browser: Any, look: Look) -> None:
    look(report)
    Select(browser.find_element(By.ID, "pairing")).select_by_visible_text("icarl on split-cifar100")
    pairing = next(p for p in read_report([report.parent / "runs"]).pairings if p.name == "icarl on split-cifar100")
    plot(browser, "curve").send_keys(Keys.END)
    row = pairing.row(SETTINGS[0])
    assert tip(browser).splitlines()[0] == "after task 10"
    assert f"host {row.left.mean:.2f}" in tip(browser)
    assert f"with flashback {row.right.mean:.2f}" in tip(browser)
    plot(browser, "losses").send_keys(Keys.HOME)
    assert tip(browser).splitlines() == ["task 1, learn, epoch 1 of 6", "task 1.5"]


def test_an_answer_leads_to_its_charts(report: Path, browser: Any, look: Look) -> None:
    look(report)
    before = plot(browser, "curve").get_attribute("innerHTML")
    browser.execute_script("scrollTo(0, 0)")
    browser.find_element(By.CSS_SELECTOR, "#answers summary").click()  # the arm that stands alone is in the fold
    browser.find_element(By.CSS_SELECTOR, "#answers details [data-pairing]").click()
    assert browser.find_element(By.ID, "pairing").get_attribute("value") == "2"
    assert plot(browser, "curve").get_attribute("innerHTML") != before


# ---------------------------------------------------------------- many methods


@pytest.fixture(scope="module")
def long_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many methods, of which the paper prints two with long values, and one arm alone."""
    folder = tmp_path_factory.mktemp("long")
    runs = folder / "runs"
    for host in ("icarl", "xder"):
        write_comparison(runs / host, host, seeds=3, tasks=10)
    for k in range(9):
        write_comparison(runs / f"short-{k}", "der++", seeds=1, benchmark__tasks=4, training__lr=0.1 * k)
    write_run(runs / "alone", made_config("joint"), {setting: made_matrix(10) for setting in SETTINGS})
    return write_report(read_report([runs], references=PAPER), folder / "report.html")[0]


def top(browser: Any, name: str) -> float:
    script = "return document.getElementById(arguments[0]).getBoundingClientRect().top + scrollY"
    place: float = browser.execute_script(script, name)
    return place


def test_on_a_phone_the_results_are_near_however_many_methods(
    long_report: Path, browser: Any, look: Look, screenshots: Path
) -> None:
    look(long_report, 390, 844, touch=True)
    assert top(browser, "results") - top(browser, "answers") < 3 * 844
    take_picture(browser, screenshots / "long-phone.png")
    folds = browser.find_elements(By.CSS_SELECTOR, "#answers details")
    before = top(browser, "results")
    browser.execute_script("arguments[0].open = true", folds[0])
    assert top(browser, "results") > before + 800
    strips = browser.find_elements(By.CSS_SELECTOR, "#answers details .strip svg")
    assert [strip.is_displayed() for strip in strips] == [True] * 5


def test_a_page_on_methods_alone_draws_and_sorts(tmp_path: Path, browser: Any, look: Look, screenshots: Path) -> None:
    """Without comparisons there is no table of results, and the script does without it."""
    for k, host in enumerate(("finetune", "icarl", "lucir")):
        for seed in range(2):
            matrices = {setting: made_matrix(3, seed, shift=k) for setting in SETTINGS}
            write_run(tmp_path / f"{host}-{seed}", made_config(host, seed=seed), matrices)
    write_report(read_report([tmp_path], against="icarl"), tmp_path / "methods.html")
    look(tmp_path / "methods.html", 1400)
    assert browser.find_elements(By.CSS_SELECTOR, "[data-draw=curve] svg")
    browser.find_element(By.CSS_SELECTOR, "#methods-table th[scope=col] button").click()
    script = """return [...document.querySelectorAll('#methods-table tbody tr')].filter(row => row.offsetParent)
                .map(row => row.cells[0].textContent)"""
    assert browser.execute_script(script) == ["finetune", "icarl", "lucir"]
    wide = "return [...document.querySelectorAll('.scroll')].filter(s => s.scrollWidth > s.clientWidth).length"
    assert browser.execute_script(wide) == 0
    take_picture(browser, screenshots / "methods.png")


@pytest.mark.parametrize("width", [1400, 1700])
def test_no_table_of_a_wide_screen_hides_a_column(width: int, long_report: Path, browser: Any, look: Look) -> None:
    look(long_report, width)
    browser.execute_script("for (const fold of document.querySelectorAll('details')) fold.open = true")
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('.scroll')].map(s => [s.ariaLabel, s.scrollWidth, s.clientWidth])"
    )
    assert {name for name, _, _ in sizes} >= {"Results", "Budget", "Published values"}
    assert [name for name, inner, outer in sizes if inner > outer] == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_table_that_is_too_wide_has_a_shadow_where_it_goes_on(
    dark: bool, long_report: Path, browser: Any, look: Look
) -> None:
    look(long_report, 390, 844, dark=dark, touch=True)
    table = browser.find_element(By.CSS_SELECTOR, "#published-values .scroll")
    show(browser, table)

    def edges() -> list[int]:
        """A pixel at the left and one at the right, below the heading's words."""
        box = browser.execute_script(
            "const r = arguments[0].getBoundingClientRect(); return [r.left, r.right, r.top + 4]", table
        )
        options = {"format": "png", "captureBeyondViewport": False}
        picture = base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", options)["data"])
        with Image.open(io.BytesIO(picture)) as image:
            grey = image.convert("L")
        return [grey.getpixel((round(x), round(box[2] + 30))) for x in (box[0] + 3, box[1] - 3)]

    left, right = edges()
    assert abs(left - right) > 20, "at first it goes on to the right alone"
    browser.execute_script("arguments[0].scrollLeft = 1e6", table)
    show(browser, table)
    assert edges() == pytest.approx([right, left], abs=5)


def tap(browser: Any, element: Any) -> None:
    show(browser, element)
    x, y = browser.execute_script(
        "const r = arguments[0].getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2]", element
    )
    touch = [{"x": x, "y": y}]
    browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": touch})
    browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
