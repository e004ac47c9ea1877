"""The report as one HTML file that opens anywhere, asks no server for anything, and reads without colour."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from flashback.records.terms import ARMS, SETTINGS
from flashback.reports.against import tested_against, untested
from flashback.reports.departures import recipe_in_words
from flashback.reports.markup import (
    HEAD,
    Html,
    bullets,
    bullets_by_setting,
    element,
    embedded_json,
    join,
    note,
    row,
    scrolling,
    table,
)
from flashback.reports.overview import AGAINST_HEAD, AGAINST_NOTE, OVERVIEW, MethodRow, against_cells, method_groups
from flashback.reports.pairings import Outcome, Pairing, Report
from flashback.reports.payload import payload
from flashback.reports.sections import budget, paper, runs, statistics
from flashback.reports.words import (
    ARM_TITLES,
    SETTING_TITLES,
    SIGNIFICANT,
    TITLES,
    direction,
    heading,
    interval,
    plural,
    probability,
    signed,
    spread,
)
from flashback.studies.comparison import Row

HERE = Path(__file__).parent
CARDS = 6  # answers at a glance; on a phone that is two screens or three
CONCLUSIONS = {
    Outcome.BETTER: "▲ better",
    Outcome.WORSE: "▼ worse",
    Outcome.ALIKE: "= no significant difference",
    Outcome.UNTESTED: "? no test possible",
}


def html_page(report: Report) -> str:
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    parts = {
        "title": join(["Flashback report: ", report.where]),
        "style": style,
        "style_hash": checksum(style),
        "script": script,
        "script_hash": checksum(script),
        "body": body(report),
        "data": embedded_json(payload(report)),
    }
    template = (HERE / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def checksum(text: str) -> str:
    """By which the page's policy allows this one script and this one style, and nothing else."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def body(report: Report) -> Html:
    made = {
        "Answers": answers(report),
        "Results": results(report),
        "Methods": methods(report),
        "Tests": against(report),
        "Details": details(report),
        "Similarity": similarities(report),
        "Budget": budget(report),
        "Statistics": statistics(report),
        "The paper": paper(report),
        "Runs": runs(report),
    }
    shown = {title: content for title, content in made.items() if content}
    links = [element("a", title, href=f"#{anchor(title)}") for title in shown]
    sections = [element("section", element("h2", title), made[title], id=anchor(title)) for title in shown]
    navigation = element("div", setting_tabs(), element("nav", *links, aria_label="Sections"))
    return join([masthead(report), element("div", navigation, class_="bar"), element("main", *sections, id="report")])


def anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def masthead(report: Report) -> Html:
    return element(
        "header",
        element("h1", report.title),
        element("p", report.contents, class_="soft"),
        *(element("p", remark, class_="warning") for remark in report.code_remarks),
        element("noscript", element("p", "The charts need JavaScript; the tables are complete without it.")),
        class_="masthead",
    )


def setting_tabs() -> Html:
    first = SETTINGS[0]
    tabs = [
        element(
            "button",
            SETTING_TITLES[setting],
            type="button",
            role="tab",
            data_setting=setting,
            aria_selected="true" if setting == first else "false",
            aria_controls="report",
            tabindex="0" if setting == first else "-1",
        )
        for setting in SETTINGS
    ]
    return element("div", *tabs, role="tablist", aria_label="Setting")


# ---------------------------------------------------------------- the answers


def answers(report: Report) -> Html:
    """The first at a glance, the others on request; arms with nothing to compare in one line.

    Nothing where no method has both arms.
    """
    if not report.comparisons:
        return Html()
    indices = {pairing.name: str(index) for index, pairing in enumerate(report.pairings)}
    cards = [answer(pairing, indices[pairing.name]) for pairing in report.comparisons]
    about = "By average accuracy, one pair of runs per seed; whole runs and comparisons with many pairs come first."
    parts = [note(about), element("ol", *cards[:CARDS], class_="answers")]
    if rest := cards[CARDS:]:
        more = element("summary", f"Show all {plural(len(cards), 'comparison')}")
        parts.append(element("details", more, element("ol", *rest, class_="answers")))
    if report.singles:
        names = [single(pairing, indices[pairing.name]) for pairing in report.singles]
        listed = element("ul", *names, class_="notes")
        parts.append(element("details", element("summary", report.singles_in_words), listed))
    return join(parts)


def answer(pairing: Pairing, index: str) -> Html:
    apart = ", ".join(pairing.comparison.differing_settings)
    words = element(
        "div",
        element("h3", pairing.name),
        *badges(pairing),
        *(element("p", setting_head(setting), pairing.verdict(setting), data_of=setting) for setting in SETTINGS),
        *([element("p", f"The arms also differ in {apart}.")] if apart else []),
        show_charts(index),
    )
    return element("li", words, element("div", class_="strip", data_strip=index), class_="card answer")


def single(pairing: Pairing, index: str) -> Html:
    return element("li", f"{pairing.name}: {ARM_TITLES[pairing.arms[0]]} only ", show_charts(index))


def show_charts(index: str) -> Html:
    return element("button", "Show its charts", type="button", class_="link", data_pairing=index)


def setting_head(setting: str) -> Html:
    return element("span", f"{SETTING_TITLES[setting]}: ", class_=HEAD)


def badges(pairing: Pairing) -> list[Html]:
    """What a reader in a hurry should not miss."""
    comparison = pairing.comparison
    found = []
    for setting in SETTINGS:
        said = CONCLUSIONS[pairing.outcome(setting)]
        found.append(element("span", setting_head(setting), said, class_="badge verdict", data_of=setting))
    found.append(badge(comparison.budget, warn=not comparison.equal_budget))
    found.append(badge(plural(pairing.row(SETTINGS[0]).test.pairs, "pair")))
    found.append(badge(recipe_in_words(pairing.any_run, changed=bool(pairing.changes))))
    if comparison.differing_settings:
        found.append(badge("settings of the host differ", warn=True))
    if comparison.differing_environment:
        found.append(badge("runs not made alike", warn=True))
    return found


def badge(text: str, warn: bool = False) -> Html:
    return element("span", text, class_="badge warn" if warn else "badge")


# ---------------------------------------------------------------- the table


def methods(report: Report) -> Html:
    """Every method in a row, in a table for every protocol."""
    if not report.has_overview:
        return Html()
    groups = {setting: method_groups(report, setting, report.metrics) for setting in SETTINGS}
    columns = ("method", "seeds", *map(heading, report.metrics))
    about = (
        "Mean ± sample deviation over seeds, in percent; best first by average accuracy, the best of each metric in "
        "bold. An arrow says which way is better. Methods that learned all tasks at once are bounds and never bold."
    )
    parts = []
    for k, name in enumerate(report.protocols.values()):
        rows = {setting: list(map(method_row, groups[setting][name])) for setting in SETTINGS}
        title = f"Methods on {name}" if len(report.protocols) > 1 else "Methods"
        parts += [element("h3", title)] if len(report.protocols) > 1 else []
        parts.append(table(columns, rows, texts=1, title=title, name=f"methods-table{k or ''}"))
    return join([*parts, note(about), *map(note, report.value_remarks)])


def method_row(one: MethodRow) -> Html:
    return row(one.method.name, [], [str(one.seeds), *map(mean_cell, one.cells, one.best)])


def mean_cell(text: str, best: bool) -> Html:
    return element("td", text, class_="n sure" if best else "n")


def against(report: Report) -> Html:
    """Every method against the one that was named; nothing where none was."""
    if not report.baseline:
        return Html()
    said = {s: [f"{one.name}. {one.answer(s)}" for one in tested_against(report)] for s in SETTINGS}
    rows = {
        setting: [
            row(cells[0], cells[1:3], cells[3:])
            for cells in against_cells(report, setting, report.metrics if report.chosen else OVERVIEW)
        ]
        for setting in SETTINGS
    }
    missing = untested(report)
    return join(
        [
            element("h3", f"Against {report.baseline}"),
            bullets_by_setting(said),
            bullets(missing) if missing else Html(),
            table(AGAINST_HEAD, rows, texts=3, title="Tests", name="against-table"),
            note(AGAINST_NOTE),
        ]
    )


def results(report: Report) -> Html:
    """Both arms side by side; nothing where no method has both."""
    if not report.comparisons:
        return Html()
    choices = [element("option", "all metrics", value="")]
    choices += [element("option", ", ".join(TITLES[metric]), value=metric) for metric in report.metrics]
    rows = {
        setting: [
            result_row(pairing, pairing.row(setting, metric))
            for pairing in report.pairings
            for metric in report.metrics
            if metric in pairing.metrics
        ]
        for setting in SETTINGS
    }
    columns = ("method", "metric", "host", "with flashback", "difference", "95 % interval", "p", "pairs")
    choice = element("label", "Show ", element("select", *choices, id="metric"))
    return join(
        [
            element("div", choice, class_="controls"),
            table(columns, rows, texts=2, title="Results", name="results-table"),
            note(
                "Mean ± sample deviation over seeds, in percent. Difference, interval and p: paired t-test by seed. "
                "▲ better and ▼ worse with flashback; bold where p < 0.05. The arrow beside a metric says which way is "
                "better. SPR is forgetting in percent of the accuracy on the last task, so read it together with NTA; "
                "of negative forgetting there is none."
            ),
            *map(note, [*report.seed_remarks, *([] if report.has_overview else report.value_remarks)]),
        ]
    )


def result_row(pairing: Pairing, found: Row) -> Html:
    test, long = found.test, TITLES[found.metric][1]
    sure = "sure" if test.p is not None and test.p < SIGNIFICANT else ""
    kind = " ".join(f"n {direction(found.metric, test.difference)} {sure}".split())
    numbers = [
        *(spread(found.mean[arm], found.deviation[arm]) for arm in ARMS),
        element("td", signed(test.difference), class_=kind),
        interval(test),
        probability(test.p),
        str(test.pairs),
    ]
    return row(pairing.name, [heading(found.metric)], numbers, data_metric=found.metric, title=long)


# ---------------------------------------------------------------- charts, which the page draws from its data


def details(report: Report) -> Html:
    options = [element("option", pairing.name, value=str(k)) for k, pairing in enumerate(report.pairings)]
    charts = [
        figure(
            "curve",
            "Accuracy while learning",
            "Average accuracy over the tasks learned so far; bands from the lowest to the highest seed.",
        ),
        figure(
            "balance",
            "Stability against plasticity",
            "Every task but the last: further right is learned better, further down is kept better.",
        ),
        figure("matrices", "Accuracy on every task after every task", "Mean over seeds, in percent.", wide=True),
        figure(
            "losses",
            "Loss terms",
            "As descended, weights included; mean over seeds. Thin lines divide tasks. Phase 1 is shaded; at the "
            "dashed line the model flashes back to where it stood, and phase 2 begins.",
            wide=True,
        ),
    ]
    choice = element("label", "Method ", element("select", *options, id="pairing"))
    return join([element("div", choice, class_="controls"), element("div", *charts, config_card(), class_="grid")])


def similarities(report: Report) -> Html:
    """Each is about the host it names, whichever method the charts above show."""
    about = "Linear CKA with a jointly trained reference; higher is closer to having learned everything at once."
    found = [
        figure(f"similarity {index}", f"Representations of {similarity.title}", about, wide=True)
        for index, similarity in enumerate(report.similarities)
    ]
    return element("div", *found, class_="grid") if found else Html()


def figure(kind: str, title: str, caption: str, wide: bool = False) -> Html:
    head = element("figcaption", element("h3", title), element("p", caption))
    plot = element("div", class_="plot", data_draw=kind)
    return element("figure", head, plot, class_="card wide" if wide else "card")


def config_card() -> Html:
    box = Html('<input type="checkbox" id="differences" checked>')
    choice = element("label", box, " only what differs between the arms")
    return element(
        "div",
        element("h3", "Settings"),
        element("div", choice, class_="controls"),
        scrolling("Settings", class_="wrap", data_draw="config"),
        class_="card wide",
    )
