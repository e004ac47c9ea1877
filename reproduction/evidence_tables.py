"""The large tables of the evidence appendix. Small tables are written in the templates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from evidence_values import (
    ABSENT,
    AUTHORS,
    BENCHMARK,
    HOSTS,
    METRICS,
    SETTINGS,
    SPACE,
    Evidence,
    change,
    interval,
    number,
    signed,
)
from flashback.config import FlashbackConfig
from flashback.records.terms import ARMS, FLASHBACK, HOST
from flashback.results import Method, Sample

REFERENCES = ("der++", "finetune", "joint")
ANCHORED = ("xder", "der++", "icarl", "lucir", "lwf-mc")
BALANCE = ("aa", "f", "new")
ARM_TITLES = {HOST: "alone", FLASHBACK: "with flashback"}
TITLES = dict(zip(METRICS, ("AA ↑", "AIA ↑", "F ↓", "BWT ↑", "FWT ↑", "SPR ↓", "NTA ↑", "mean NTA ↑"), strict=False))


def table(head: str, rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """The first columns hold text, the others numbers."""
    titles = head.split(" | ")
    rule = ["---"] * texts + ["---:"] * (len(titles) - texts)
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, rule, *rows))


def spread(sample: Sample) -> str:
    return number(sample.mean) + (f"{SPACE}±{SPACE}{number(sample.deviation)}" if sample.deviation is not None else "")


def printed(cell: dict[str, float], arm: str) -> str:
    if not cell:
        return ABSENT
    rerun = f", {number(cell['rerun'])} (own run)" if arm == HOST and "rerun" in cell else ""
    return number(cell[arm]) + " (quoted)" * (arm == HOST and "quoted" in cell) + rerun


def arms_of(host: str) -> Sequence[str]:
    return ARMS if host in HOSTS else [HOST]


def beside_the_paper(evidence: Evidence, setting: str) -> str:
    rows = []
    for host in HOSTS:
        for metric in ("aa", "f", "spr"):
            if cell := evidence.printed(host, setting, metric):
                row = evidence.row(host, setting, metric)
                paper = [TITLES[metric], cell["where"], *(printed(cell, arm) for arm in ARMS)]
                rows.append([host, *paper, spread(row.left), spread(row.right), change(row.test), interval(row.test)])
    head = "host | metric | in the paper | alone, paper | with flashback, paper | alone, here | with flashback, here"
    return table(f"{head} | change, here | 95% interval", rows, texts=3)


def all_metrics(evidence: Evidence, setting: str) -> str:
    rows = []
    for host in (*HOSTS, *REFERENCES):
        for arm in arms_of(host):
            samples = (evidence.sample(f"controlled/{host}/{arm}", setting, metric) for metric in TITLES)
            rows.append([host, ARM_TITLES[arm], *map(spread, samples)])
        if host in HOSTS:
            rows.append([host, "change", *(change(evidence.test(host, setting, metric)) for metric in TITLES)])
    return table(" | ".join(["host", "", *TITLES.values()]), rows, texts=2)


def cost(evidence: Evidence) -> str:
    rows = []
    for host in (*HOSTS, *REFERENCES):
        for arm in arms_of(host):
            method = evidence.methods[f"controlled/{host}/{arm}"]
            seconds = [run.record.run["seconds"] for run in method.runs.values()]
            took = dict.fromkeys(number(value, ",.0f") for value in (min(seconds), max(seconds)))
            sizes = method.cost.bytes.get("stable"), method.cost.bytes.get("plastic")
            counts = (number(value, ",.0f") for value in (method.cost.steps, method.cost.images))
            sized = (number(size, ",.0f") for size in sizes)
            rows.append([host, ARM_TITLES[arm], str(len(seconds)), *counts, " to ".join(took), *sized])
    head = "host |  | seeds | steps | images | seconds per run | bytes of stable knowledge | bytes of plastic knowledge"
    return table(head, rows, texts=2)


def balance(evidence: Evidence, setting: str) -> str:
    metrics = (*BALANCE, "last", "spr")
    rows = [[host, *(change(evidence.test(host, setting, metric)) for metric in (*metrics, "old"))] for host in HOSTS]
    linear = [change(evidence.row("icarl", setting, metric, "linear").test) for metric in metrics]
    rows.insert(1, ["icarl, linear classifier", *linear, ABSENT])
    return table(" | ".join(["host", *(TITLES[metric] for metric in metrics), "old tasks ↑"]), rows)


def two_changes(evidence: Evidence, setting: str, metric: str, *names: str) -> list[str]:
    """The values of three methods, and the changes of two comparisons between them."""
    first, second = (evidence.row(name, setting, metric) for name in names)
    return [*map(spread, (first.left, first.right, second.right)), change(first.test), change(second.test)]


def fewer_epochs(evidence: Evidence, setting: str) -> str:
    rows = [[TITLES[metric], *two_changes(evidence, setting, metric, "epochs", "knowledge")] for metric in BALANCE]
    head = "metric | alone | alone, epochs of phase 2 | with flashback"
    return table(f"{head} | change by fewer epochs | change by plastic knowledge", rows)


def tuned(evidence: Evidence, setting: str) -> str:
    rows = [
        [host, TITLES[metric], *two_changes(evidence, setting, metric, host, f"{host}-tuned")]
        for host in ("lwf-mc", "lucir")
        for metric in BALANCE
    ]
    head = "host | metric | alone | with flashback, recipe's weight | with flashback, tuned weight"
    return table(f"{head} | change, recipe's weight | change, tuned weight", rows, texts=2)


def authors(evidence: Evidence, setting: str) -> str:
    rows = []
    for path in (*AUTHORS.values(), "controlled/icarl/host", "controlled/icarl/flashback"):
        method = evidence.methods[path]
        means = [evidence.mean(path, setting, metric) for metric in BALANCE]
        since = means[0] - evidence.mean(AUTHORS["constant"], setting)
        rows.append([*training_of(method), str(len(method.runs)), *map(number, means), signed(since)])
    for arm in ARMS:
        values = [printed(evidence.printed("icarl", setting, metric), arm) for metric in BALANCE]
        gain = signed(evidence.printed_gain("icarl", setting)) if arm == FLASHBACK else ABSENT
        rows.append([f"{ARM_TITLES[arm]}, paper", *[ABSENT] * 3, *values, gain])
    titles = " | ".join(TITLES[metric] for metric in BALANCE)
    return table(
        f"iCaRL | learning rate | epochs per later task | seeds | {titles} | AA minus first row", rows, texts=3
    )


def training_of(method: Method) -> list[str]:
    """Arm, learning rate and epochs of a task after the first, in words."""
    training, flashback = method.config["training"], FlashbackConfig(**method.config["flashback"])
    begins = training["first_schedule"] or training["schedule"]
    falls = "falls after the first task" if begins == "none" else "falls"
    epochs = flashback.split(training["epochs"]) if flashback.enabled else (training["epochs"],)
    rate = "constant" if training["schedule"] == "none" else falls
    return [ARM_TITLES[method.arm], rate, " + ".join(map(str, epochs))]


def anchors(evidence: Evidence) -> str:
    rows = []
    for host in ANCHORED:
        published = evidence.paper["anchors"][BENCHMARK][host]
        there = published["average_accuracy"], published["forgetting"]
        for title, path, classifier in (
            ("published settings", f"anchors/{host}/host", None),
            ("the same run, linear classifier", f"anchors/{host}/host", "linear"),
            ("`host.columns=all`", f"anchor-switches/{host}/host.columns=all/host", None),
        ):
            if path in evidence.methods and classifier in (None, *list(evidence.methods[path].any_run.results)[1:]):
                here = [evidence.mean(path, "class", metric, classifier) for metric in ("aa", "f")]
                first = evidence.methods[path].any_run.matrix(classifier=classifier)[0][0]
                accuracy = [number(there[0]), number(here[0]), signed(here[0] - there[0])]
                rows.append([host, title, *accuracy, number(there[1]), number(here[1]), number(first)])
    head = "host | settings | AA, published | AA, here | difference | F, published | F, here | first task, here"
    return table(head, rows, texts=2)


def similarity(evidence: Evidence, host: str) -> str:
    one, rows = evidence.similarities[host], []
    for k, layer in enumerate(one.layers):
        pairs = [(arms[HOST][k], arms[FLASHBACK][k]) for arms in one.values.values()]
        cells = ([number(a, ".4f"), number(b, ".4f"), number(b - a, "+.4f")] for a, b in pairs)
        rows.append([layer, *(cell for pair in cells for cell in pair)])
    titles = [f"{images} images, {what}" for images in one.values for what in (*ARM_TITLES.values(), "change")]
    return table(" | ".join(["layer", *titles]), rows)


def short(evidence: Evidence) -> str:
    rows = []
    for host in (
        path.split("/")[1] for path in evidence.methods if path.startswith("short-") and path.endswith("/host")
    ):
        row = [host]
        for setting in SETTINGS:
            paths = [path for arm in ARMS if (path := f"short-cifar100/{host}/{arm}") in evidence.methods]
            means = [evidence.mean(path, setting) for path in paths]
            row += [number(means[0]), *([number(means[1]), signed(means[1] - means[0])] if means[1:] else [ABSENT] * 2)]
        rows.append(row)
    arms = (*ARM_TITLES.values(), "change")
    return table(" | ".join(["host", *(f"{setting}, {arm}" for setting in SETTINGS for arm in arms)]), rows)


def named_tables(evidence: Evidence) -> dict[str, str]:
    in_both: list[Callable[[Evidence, str], str]] = [
        beside_the_paper,
        all_metrics,
        balance,
        fewer_epochs,
        authors,
        tuned,
    ]
    tables = {f"table:{one.__name__}.{setting}": one(evidence, setting) for one in in_both for setting in SETTINGS}
    tables |= {f"table:{one.__name__}": one(evidence) for one in (cost, anchors, short)}
    return tables | {f"table:similarity.{host}": similarity(evidence, host) for host in evidence.similarities}
