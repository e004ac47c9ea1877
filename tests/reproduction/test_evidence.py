"""The evidence pages: numbers come from the records, and the hand-written conclusions agree with them."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from evidence import PAGES, PLACEHOLDER, fill, page_values, template
from evidence_figure import LEFT, RIGHT, draw
from evidence_values import (
    COMPARISONS,
    FORMS,
    HOSTS,
    ROOT,
    SETTINGS,
    TESTED,
    Evidence,
    number,
    read_evidence,
)
from flashback.records import dotted

RESULTS = ROOT / "results"
FORMS_BY_MEMORY = [(form, size) for form in ("printed", "free") for size in (200, 500)]
PARAMETERS = ("afec", "caf", "ewc", "mas", "oewc", "pnc", "si")
NAMES = re.compile(
    r"CIFAR-100?|ResNet-18|H200|bf16|fp32|Tables? \d+|phase [12]|95%|seed (123|246)|p below 0\.05|"
    r"AA with [\d.]+|value of 1"
)


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return read_evidence()


@pytest.fixture(scope="module")
def values(evidence: Evidence) -> dict[str, str]:
    return page_values(evidence)


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_are_up_to_date(page: str, values: dict[str, str]) -> None:
    committed = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert committed == fill(template(page), values), f"docs/{page} is out of date; run `make evidence`"


@pytest.mark.parametrize("page", PAGES)
def test_no_number_is_typed_by_hand(page: str) -> None:
    text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", PLACEHOLDER.sub("", template(page)), flags=re.DOTALL)
    assert re.findall(r".*\d.*", NAMES.sub("", text)) == []


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(KeyError, match="icarl"):
        fill("{icarl.clas.aa}", {})
    assert fill("{a/b.c} {table:x}", {"a/b.c": "1", "table:x": "| |"}) == "1 | |"


def test_numbers_have_a_real_minus_sign_and_no_negative_zero() -> None:
    forms = (number(-1.5), number(-0.001), number(0.001, "+.2f"), number(1234.5, ",.0f"), number(None))
    assert forms == ("−1.50", "0.00", "+0.00", "1,234", "–")


def accuracies(arm: str) -> list[float]:
    folder = RESULTS / "controlled/split-cifar100/icarl/controlled/recipe" / arm
    read = [json.loads((path / "results.json").read_text()) for path in sorted(folder.iterdir())]
    last = [record["class_incremental"]["matrix"][-1] for record in read]
    return [sum(row) / len(row) for row in last]


def test_a_comparison_is_what_its_records_give(values: dict[str, str]) -> None:
    """iCaRL, computed by hand from the last rows of the accuracy matrices; 4.303 is Student's t for two degrees."""
    changes = [right - left for left, right in zip(accuracies("host"), accuracies("flashback"), strict=True)]
    mean = sum(changes) / 3
    half = 4.302653 * math.sqrt(sum((change - mean) ** 2 for change in changes) / 2 / 3)
    assert values["icarl.class.aa.change"] == f"+{mean:.2f}"
    assert values["icarl.class.aa.interval"].split() == f"−{half - mean:.2f} to +{mean + half:.2f}".split()
    assert values["controlled/icarl/host.class.aa"] == f"{sum(accuracies('host')) / 3:.2f}"


def test_every_record_is_used(evidence: Evidence) -> None:
    runs = [run for method in evidence.methods.values() for run in method.runs.values()]
    assert len(runs) == len(list(RESULTS.rglob("results.json")))
    resumed = {run.path.relative_to(RESULTS) for run in runs if run.record.run.get("changed_on_resume")}
    assert resumed == {Path("controlled/split-cifar100/xder/controlled/recipe/host/seed-246")}


# ---------------------------------------------------------------- the conclusions on the pages


def test_average_accuracy_does_not_change(evidence: Evidence) -> None:
    assert all(p is None or p >= 0.05 for key in evidence.adjusted("aa") for p in [evidence.test(*key).p])
    assert {host: evidence.test(host, "class", "aa").pairs for host in HOSTS} == dict.fromkeys(HOSTS, 3) | {"xder": 2}
    for host in HOSTS:
        left, right = (evidence.methods[f"controlled/{host}/{arm}"].cost for arm in ("host", "flashback"))
        assert (left.steps, left.images) == (right.steps, right.images)


def test_a_free_primary_helps_lucir_on_both_sides(evidence: Evidence) -> None:
    corrected = evidence.adjusted("aa", names=(*TESTED, *FORMS))
    for setting in SETTINGS:
        test = evidence.test("lucir-free", setting, "aa")
        assert test.pairs == 5
        assert test.low is not None
        assert test.low > 0
        assert corrected["lucir-free", setting, "aa"] < 0.05
    low, high = (
        number(x, ".1f") for test in [evidence.test("lucir-free", "class", "aa")] for x in (test.low, test.high)
    )
    means = [number(evidence.mean(path), ".1f") for path in COMPARISONS["lucir-free"]]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"from {means[0]} to {means[1]} % at equal cost" in readme
    assert f"interval of the gain {low} to {high} points" in readme
    new, forgetting = (evidence.test("lucir-free", "class", metric) for metric in ("new", "f"))
    assert new.low is not None
    assert new.low > 0
    assert forgetting.difference < 0
    left, right = (evidence.methods[path] for path in COMPARISONS["lucir-free"])
    assert (left.cost.steps, left.cost.images) == (right.cost.steps, right.cost.images)
    settings = dotted(right.config)
    printed = dotted(evidence.methods["controlled/lucir/flashback"].config)
    assert settings["flashback.alpha"] == pytest.approx(10 * printed["flashback.alpha"])  # as the page says in words
    regimes = {(form, size): evidence.test(f"lucir-{form}-{size}", "class", "aa") for form, size in FORMS_BY_MEMORY}
    assert all(test.pairs == 2 and test.p is not None and test.p > 0.05 for test in regimes.values())


def test_the_intervals_exclude_what_the_page_says(evidence: Evidence) -> None:
    excluded = {
        (host, setting)
        for host in HOSTS
        for setting in SETTINGS
        for test in [evidence.test(host, setting, "aa")]
        if test.pairs > 2 and test.high is not None and test.high < evidence.printed_gain(host, setting)
    }
    assert excluded == {
        ("icarl", "class"), ("icarl", "task"), ("lwf-mc", "class"), ("lwf-mc", "task"), ("lucir", "task"),
        ("oewc", "class"),
    }  # fmt: skip
    highest = [evidence.test(host, "class", "aa").high for host in ("icarl", "lucir")]
    assert all(high is not None and 1.0 < high < 1.5 for high in highest)


def test_oewc_is_at_the_floor(evidence: Evidence) -> None:
    assert evidence.mean("controlled/oewc/host") < evidence.mean("controlled/finetune/host") + 0.5
    test = evidence.test("oewc", "task", "aa")
    assert test.low is not None
    assert test.low < LEFT < 0 < RIGHT < (test.high or 0)


def test_forgetting_falls_and_new_tasks_suffer(evidence: Evidence) -> None:
    adjusted = evidence.adjusted("f", "new")
    assert [key for key, p in adjusted.items() if p < 0.05] == [("icarl", "class", "f")]
    uncorrected = {key for key in adjusted if (p := evidence.test(*key).p) is not None and p < 0.05}
    assert uncorrected - {("icarl", "class", "f")} == {
        ("lwf-mc", "class", "f"), ("lwf-mc", "class", "new"), ("icarl", "class", "new"), ("icarl", "task", "new"),
        ("lwf-mc-tuned", "class", "f"), ("lwf-mc-tuned", "class", "new"),
    }  # fmt: skip
    assert all((evidence.test(*key).difference or 0) < 0 for key in uncorrected)
    for metric in ("f", "new"):
        shorter, both = (evidence.test(name, "class", metric).difference or 0 for name in ("epochs", "icarl"))
        assert 0.6 < shorter / both < 0.75  # most of it


def test_the_falling_rate_gives_the_gain(evidence: Evidence) -> None:
    for setting in SETTINGS:
        rate, added = (evidence.test(name, setting, "aa").difference or 0 for name in ("rate", "flashback-falling"))
        assert 2.5 < rate < 3.5  # about three points
        assert rate > 0.75 * evidence.printed_gain("icarl", setting)
        assert added < 0


def test_tuning_chose_the_weights_on_the_page(evidence: Evidence) -> None:
    for host, best in (("icarl", "0.01"), ("lwf-mc", "0.1"), ("lucir", "0.1")):
        weights = ("0.001", "0.01", "0.1", "1.0")
        trials = {weight: evidence.mean(f"tuning/{host}/flashback.alpha={weight}/flashback") for weight in weights}
        assert max(trials, key=trials.__getitem__) == best


def test_the_hosts_beside_published_values(evidence: Evidence) -> None:
    published = evidence.paper["anchors"]["split-cifar100"]
    off = {host: evidence.mean(f"anchors/{host}/host") - cell["average_accuracy"] for host, cell in published.items()}
    assert {host for host, by in off.items() if abs(by) <= 2} == {"xder", "der++"}
    assert {host for host, cell in published.items() if cell.get("unverified")} == {"lucir", "lwf-mc"}
    far = {
        (host, setting)
        for host in HOSTS
        for setting in SETTINGS
        for cell in [evidence.printed(host, setting)]
        if not cell.get("quoted") and abs(evidence.mean(f"controlled/{host}/host", setting) - cell["host"]) > 5
    }
    assert far == {("oewc", "class"), ("oewc", "task"), ("lwf-mc", "task")}


def test_precision_makes_no_difference(evidence: Evidence) -> None:
    tests = [evidence.test(f"{host}-bf16", setting, "aa") for host in ("icarl", "lwf-mc") for setting in SETTINGS]
    assert all(test.p is not None and test.p >= 0.05 for test in tests)
    assert max(tests, key=lambda test: (test.high or 0) - (test.low or 0)) == tests[0]


def test_short_runs_beside_finetuning(evidence: Evidence) -> None:
    hosts = {method.host for path, method in evidence.methods.items() if path.startswith("short-")} - {"finetune"}
    for setting, below in (("class", PARAMETERS), ("task", ("pnc", "podnet"))):
        floor = evidence.mean("short-cifar100/finetune/host", setting)
        assert {host for host in hosts if evidence.mean(f"short-cifar100/{host}/host", setting) <= floor} == set(below)


def test_an_interval_beyond_the_frame_has_an_arrow(evidence: Evidence) -> None:
    panels = dict(zip(SETTINGS, draw(evidence).axes, strict=True))
    arrows = {setting: {line.get_marker() for line in axes.lines} & {"<", ">"} for setting, axes in panels.items()}
    assert arrows == {"class": set(), "task": {"<", ">"}}
    assert [text.get_text() for text in panels["task"].texts] == ["−10.4", "+18.9"]
