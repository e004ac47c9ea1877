"""Every number on the evidence pages, by name: from the records in results/ and from the paper's tables.

Names are paths and quantities: `controlled/icarl/host.class.aa` is a mean over seeds, `icarl.class.f.change` belongs to
a comparison, `set:controlled/icarl/host.seed` is a setting. SETTINGS and METRICS hold the short names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import yaml

from flashback.metrics import PairedTest, holm, paired_over_methods
from flashback.records import dotted
from flashback.records.terms import ARMS, CLASS_INCREMENTAL, FLASHBACK, HOST, TASK_INCREMENTAL
from flashback.results import Method, Row, Run, Sample, Similarity, read_runs

ROOT = Path(__file__).resolve().parents[1]
PAPER = ROOT / "reproduction" / "paper-values.yaml"
BENCHMARK = "split-cifar100"
HOSTS = ("icarl", "lwf-mc", "lucir", "xder", "oewc")  # with and without flashback
SETTINGS = {"class": CLASS_INCREMENTAL, "task": TASK_INCREMENTAL}
METRICS = {
    "aa": "average_accuracy",
    "aia": "average_incremental_accuracy",
    "f": "forgetting",
    "bwt": "backward_transfer",
    "fwt": "forward_transfer",
    "spr": "stability_plasticity_ratio",
    "last": "new_task_accuracy",
    "new": "mean_new_task_accuracy",
    "old": "accuracy at the end, on all tasks but the last",
}
FALLING = "training.schedule=step,training.first_schedule=none"
AUTHORS = {  # runs of iCaRL from the authors' settings without flashback to those with it
    "constant": "icarl-differences/icarl/host",
    "falling": f"icarl-differences/icarl/{FALLING}/host",
    "longer": "icarl-differences/icarl/training.epochs=70,training.first_epochs=60/host",
    "flashback": "icarl-differences/icarl/training.schedule=none/flashback",
    "both": "icarl-differences/icarl/flashback",
    "both-longer": "icarl-differences/icarl/flashback.second_epochs=60/flashback",
    "shorter": f"icarl-differences/icarl/{FALLING},training.epochs=50,training.first_epochs=60/host",
}
FREE = "flashback.phase1_stability=0.0,flashback.phase1_schedule=host,flashback.alpha=0.8"  # of a free primary
REGIMES = {  # LUCIR with small memories: the printed form and a free primary
    f"lucir-{form}-{size}": (
        f"regimes/lucir/host.memory_size={size}/host",
        f"regimes/lucir/host.memory_size={size},{label}",
    )
    for size, digest in ((200, "6764c61bf44c"), (500, "818568d60915"))
    for form, label in (
        ("printed", "flashback.epochs=3/flashback"),
        ("free", f"flashback.epochs=7,flashback.phase1_stability=0.0,flashback-{digest}/flashback"),
    )
}
COMPARISONS = {  # changes are right minus left
    **{host: (f"controlled/{host}/host", f"controlled/{host}/flashback") for host in HOSTS},
    **{f"{host}-tuned": (f"controlled/{host}/host", f"tuned/{host}/flashback") for host in ("lwf-mc", "lucir")},
    **{f"{host}-weight": (f"controlled/{host}/flashback", f"tuned/{host}/flashback") for host in ("lwf-mc", "lucir")},
    "lucir-free": ("forms/lucir/host", f"forms/lucir/flashback.epochs=21,{FREE}/flashback"),
    **REGIMES,
    "epochs": ("controlled/icarl/host", "phase2-alone/icarl/host"),
    "knowledge": ("phase2-alone/icarl/host", "controlled/icarl/flashback"),
    "authors": (AUTHORS["constant"], AUTHORS["both"]),
    "rate": (AUTHORS["constant"], AUTHORS["falling"]),
    "flashback-constant": (AUTHORS["constant"], AUTHORS["flashback"]),
    "flashback-falling": (AUTHORS["falling"], AUTHORS["both"]),
    "icarl-bf16": tuple(f"precision/icarl/training.precision={name}/host" for name in ("fp32", "bf16")),
    "lwf-mc-bf16": tuple(f"precision/lwf-mc/training.precision={name}/host" for name in ("fp32", "bf16")),
}
TESTED = (*HOSTS, "lwf-mc-tuned", "lucir-tuned")  # tests of flashback at full length, corrected together
FORMS = ("lucir-free",)  # tests of other forms at full length, corrected together with those
ABSENT, SPACE = "–", "\u00a0"  # a space that does not break the line


def number(value: float | None, form: str = ".2f") -> str:
    """Without what sums leave in the last bits, without a negative zero, and with a real minus sign."""
    spec = f"+z{form[1:]}" if form.startswith("+") else f"z{form}"
    return ABSENT if value is None else format(round(float(value), 9), spec).replace("-", "−")


def signed(value: float | None) -> str:
    return number(value, "+.2f")


def probability(p: float | None) -> str:
    return ABSENT if p is None else f"{p:.2g}"


def interval(test: PairedTest) -> str:
    """With two seeds it would be too wide to mean anything."""
    return ABSENT if test.low is None or test.pairs < 3 else f"{signed(test.low)}{SPACE}to{SPACE}{signed(test.high)}"


def change(test: PairedTest) -> str:
    return signed(test.difference) + (f"{SPACE}({probability(test.p)})" if test.pairs > 1 else "")


@dataclass(frozen=True)
class Evidence:
    """The methods in results/ by path, the similarities by host, and the content of paper-values.yaml."""

    methods: dict[str, Method]
    similarities: dict[str, Similarity]
    paper: dict[str, Any]

    def sample(self, path: str, setting: str, metric: str, classifier: str | None = None) -> Sample:
        method = self.methods[path]
        if metric == "old":
            last = {seed: run.matrix(SETTINGS[setting])[-1][:-1] for seed, run in method.runs.items()}
            return Sample.of({seed: fmean(row) for seed, row in last.items()})
        return method.sample(METRICS[metric], SETTINGS[setting], classifier)

    def mean(self, path: str, setting: str = "class", metric: str = "aa", classifier: str | None = None) -> float:
        mean = self.sample(path, setting, metric, classifier).mean
        assert mean is not None, f"{path} has no {metric}"
        return mean

    def row(self, name: str, setting: str, metric: str, classifier: str | None = None) -> Row:
        left, right = (self.sample(path, setting, metric, classifier) for path in COMPARISONS[name])
        return Row.of(setting, metric, left, right)

    def test(self, name: str, setting: str, metric: str) -> PairedTest:
        return self.row(name, setting, metric).test

    def printed(self, host: str, setting: str, metric: str = "aa") -> dict[str, Any]:
        """The paper's cell for ResNet-18 and a memory of 2000 images; empty where it prints none."""
        for table in self.paper["tables"]:
            if (table["setting"], table["metric"]) == (SETTINGS[setting], METRICS[metric]):
                listed = table["cells"].get(BENCHMARK, {}).get(host, [])
                for cell in listed if isinstance(listed, list) else [listed]:
                    when = cell.get("when", {})
                    if when.get("host.net") == "resnet18" and when.get("host.memory_size", 2000) == 2000:
                        return {**cell, "where": table["where"]}
        return {}

    def printed_gain(self, host: str, setting: str) -> float:
        """Over the paper's own run of the host, where it reports one beside a quoted value."""
        cell = self.printed(host, setting)
        return float(cell[FLASHBACK] - cell.get("rerun", cell[HOST]))

    def adjusted(self, *metrics: str, names: Sequence[str] = TESTED) -> dict[tuple[str, str, str], float]:
        """p after Holm's correction, over all tests of these comparisons on these metrics."""
        keys = [(name, setting, metric) for metric in metrics for setting in SETTINGS for name in names]
        tests = {key: p for key in keys if (p := self.test(*key).p) is not None}
        return dict(zip(tests, holm(list(tests.values())), strict=True))


def read_evidence() -> Evidence:
    """Read each folder by itself: two may hold runs of one configuration and seed, made by different versions."""
    folders = {path.name: read_runs(path) for path in sorted((ROOT / "results").iterdir()) if path.is_dir()}
    groups: dict[str, list[Run]] = {}
    for folder, read in folders.items():
        for run in read.runs:
            _, host, _, variant, arm, _ = run.name.split("/")
            path = "/".join([folder, host, *([] if variant == "recipe" else [variant]), arm])
            groups.setdefault(path, []).append(run)
    methods = {
        path: Method(runs[0].config, {run.seed: run for run in sorted(runs, key=lambda run: run.seed)}, path)
        for path, runs in groups.items()
    }
    paper = yaml.safe_load(PAPER.read_text(encoding="utf-8"))
    similarities = {one.host: one for read in folders.values() for one in read.similarities}
    return Evidence(methods, similarities, paper)


# ---------------------------------------------------------------- values by name


def named_values(evidence: Evidence) -> dict[str, str]:
    runs = [run for method in evidence.methods.values() for run in method.runs.values()]
    values = {"runs": str(len(runs)), "torch": runs[0].environment["torch"]}
    for path, method in evidence.methods.items():
        values |= {f"set:{path}.{key}": str(value) for key, value in dotted(method.config).items()}
    for setting in SETTINGS:
        for metric in METRICS:
            for path in evidence.methods:
                values[f"{path}.{setting}.{metric}"] = number(evidence.sample(path, setting, metric).mean)
            for name in COMPARISONS:
                test, key = evidence.test(name, setting, metric), f"{name}.{setting}.{metric}"
                values |= {f"{key}.change": signed(test.difference), f"{key}.p": probability(test.p)}
                values |= {f"{key}.interval": interval(test), f"{key}.tested": change(test)}
                values[f"{key}.size"] = values[f"{key}.change"].lstrip("+−")
        values |= {f"authors.{name}.{setting}": number(evidence.mean(path, setting)) for name, path in AUTHORS.items()}
        deviation = evidence.sample("controlled/icarl/host", setting, "aa").deviation or 0.0
        values[f"noise.{setting}"] = number(2**0.5 * deviation)  # of the difference of two runs
    for host in HOSTS:
        size = evidence.methods[f"controlled/{host}/flashback"].cost.bytes["plastic"]
        values[f"megabytes.{host}"] = number(size / 1e6, ".1f" if size < 1e7 else ".0f")
    return values | paper_values(evidence) | anchor_values(evidence) | test_values(evidence) | cka_values(evidence)


def paper_values(evidence: Evidence) -> dict[str, str]:
    values: dict[str, str] = {}
    for host in HOSTS:
        for setting in SETTINGS:
            cell, key = evidence.printed(host, setting), f"paper.{host}.{setting}"
            values |= {f"{key}.{name}": number(cell[name]) for name in (*ARMS, "rerun") if name in cell}
            values[f"{key}.gain"] = signed(evidence.printed_gain(host, setting))
            values[f"{key}.difference"] = signed(cell[FLASHBACK] - cell[HOST])
    forgetting, ratio = (evidence.printed("icarl", "class", metric) for metric in ("f", "spr"))
    values |= {f"paper.icarl.new.{arm}": number(100 * forgetting[arm] / ratio[arm], ".1f") for arm in ARMS}
    values |= {f"paper.icarl.f-to-spr.{arm}": number(ratio[arm] - forgetting[arm]) for arm in ARMS}
    return values | {f"paper.{name}": f"{value:g}" for name, value in evidence.paper["tests"][BENCHMARK].items()}


def anchor_values(evidence: Evidence) -> dict[str, str]:
    values = {"anchors/icarl/host.linear": number(evidence.mean("anchors/icarl/host", classifier="linear"))}
    for host, published in evidence.paper["anchors"][BENCHMARK].items():
        off = evidence.mean(f"anchors/{host}/host") - published["average_accuracy"]
        values |= {f"published.{host}": number(published["average_accuracy"]), f"published.{host}.off": signed(off)}
    return values


def test_values(evidence: Evidence) -> dict[str, str]:
    accuracy, balance = evidence.adjusted("aa"), evidence.adjusted("f", "new")
    smallest = min(p for key in accuracy if (p := evidence.test(*key).p) is not None)
    values = {"holm.accuracy.tests": str(len(accuracy)), "holm.accuracy.smallest": probability(smallest)}
    values["holm.balance.tests"] = str(len(balance))
    with_forms = evidence.adjusted("aa", names=(*TESTED, *FORMS))
    values["holm.forms.tests"] = str(len(with_forms))
    for name in FORMS:
        values |= {f"{name}.{s}.aa.holm": probability(with_forms[name, s, "aa"]) for s in SETTINGS}
    means = {arm: {h: {s: evidence.mean(f"controlled/{h}/{arm}", s) for s in SETTINGS} for h in HOSTS} for arm in ARMS}
    test = paired_over_methods(means[HOST], means[FLASHBACK])
    middle = median(means[FLASHBACK][host][s] - means[HOST][host][s] for host in HOSTS for s in SETTINGS)
    values |= {"over-hosts.change": signed(test.difference), "over-hosts.p": probability(test.p)}
    values |= {"over-hosts.interval": interval(test), "over-hosts.median": signed(middle)}
    for name, key in (("tables", HOST), ("reruns", "rerun")):  # the paper's test, from the values in its tables
        cells = {h: {s: evidence.printed(h, s) for s in SETTINGS} for h in HOSTS}
        host = {h: {s: cell.get(key, cell[HOST]) for s, cell in both.items()} for h, both in cells.items()}
        flashback = {h: {s: cell[FLASHBACK] for s, cell in both.items()} for h, both in cells.items()}
        values[f"paper.t.{name}"] = number(paired_over_methods(host, flashback).t)
    return values


def cka_values(evidence: Evidence) -> dict[str, str]:
    values: dict[str, str] = {}
    for host, similarity in evidence.similarities.items():
        for images, arms in similarity.values.items():
            changes = [after - before for before, after in zip(arms[HOST], arms[FLASHBACK], strict=True)]
            values[f"cka.{host}.{images}"] = number(fmean(changes), "+.4f")
            values["cka.layers"] = str(len(changes))
            values[f"cka.{host}.{images}.closer"] = str(sum(by > 0 for by in changes))
    return values
