"""The page of evidence says what the records say, to the letter."""

from __future__ import annotations

import re

from doc_pages import DOCS, ROOT

from flashback.evidence import evidence_page
from flashback.reports import read_report
from flashback.studies.jobs import RunContext, is_finished
from flashback.studies.sweeps import plan, read_sweep, shipped_sweeps

RESULTS = ROOT / "results"


def test_the_page_is_the_one_the_records_give() -> None:
    written = (DOCS / "evidence.md").read_text(encoding="utf-8")
    assert written == evidence_page(read_report([RESULTS])), "docs/evidence.md is out of date; run `make evidence`"


def test_results_hold_records_alone() -> None:
    names = {path.name for path in RESULTS.rglob("*") if path.is_file()}
    assert names <= {"README.md", "config.yaml", "run.json", "results.json", "cka.json"}


def test_the_sweeps_count_the_records_as_done() -> None:
    sweeps = {"controlled": "evidence", "short-cifar100": "short"}
    done = 0
    for folder in (path for path in RESULTS.iterdir() if path.is_dir() and path.name not in ("cka", "tuned")):
        jobs = plan(read_sweep(sweeps.get(folder.name, folder.name)), folder, RunContext(None, "cpu", None))
        done += sum(map(is_finished, jobs))
    assert done == len([path for path in RESULTS.rglob("results.json") if "tuned" not in path.parts])


def test_every_folder_of_results_is_told() -> None:
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `([\w-]+)", text, flags=re.MULTILINE))
    assert {path.name for path in RESULTS.iterdir() if path.is_dir()} <= told
    named = set(re.findall(r"`flashback sweep ([\w-]+)`", text))
    assert named <= set(shipped_sweeps())
    assert {"anchors", "evidence", "short"} <= named
