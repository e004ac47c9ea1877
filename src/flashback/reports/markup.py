"""HTML that is escaped unless it is known to be HTML already."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flashback.reports.words import SETTING_TITLES

HEAD = "setting-head"  # names a setting where all are shown at once, which is without a script


class Html(str):
    """Text that is HTML: made here, never read from a file."""

    __slots__ = ()


def element(name: str, *content: str, **attributes: str | bool) -> Html:
    """An element; `class_` stands for class, `data_x` for data-x. Content that is not Html is escaped."""
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    return Html(f"<{name}{written}>{join(content)}</{name}>")


def join(parts: Iterable[str]) -> Html:
    return Html("".join(part if isinstance(part, Html) else html.escape(part) for part in parts))


def embedded_json(value: Any) -> Html:
    """JSON for a script element: nothing in it can end the element, and what is no number is null."""
    text = json.dumps(_finite(value), separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return Html(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _attribute(key: str, value: str | bool) -> str:
    if value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---------------------------------------------------------------- pieces every section is made of


def table(columns: Sequence[str], groups: Mapping[str, Sequence[Html]], texts: int, title: str, name: str = "") -> Html:
    """A table that sorts; the first `texts` columns hold words. Rows come in groups: one per setting, or just one."""
    heads = [element("th", column, scope="col", class_=k >= texts and "n") for k, column in enumerate(columns)]
    bodies = [part for setting, rows in groups.items() if rows for part in _group(setting, rows, len(columns))]
    whole = element("table", element("thead", element("tr", *heads)), *bodies, class_="sortable", id=name or False)
    return scrolling(title, whole)


def _group(setting: str, rows: Sequence[Html], columns: int) -> list[Html]:
    if not setting:
        return [element("tbody", *rows)]
    title = element("th", SETTING_TITLES[setting].capitalize(), scope="colgroup", colspan=str(columns))
    head = element("tbody", element("tr", title), class_=HEAD)
    return [head, element("tbody", *rows, data_of=setting)]


def scrolling(title: str, *content: str, **attributes: str | bool) -> Html:
    """What is too wide for a phone scrolls by itself, with keys too; the page never does."""
    kind = f"scroll {attributes.pop('class_', '')}".strip()
    return element("div", *content, class_=kind, tabindex="0", role="region", aria_label=title, **attributes)


def row(name: str, texts: Iterable[str], numbers: Iterable[str | Html], **attributes: str | bool) -> Html:
    cells = [number if isinstance(number, Html) else element("td", number, class_="n") for number in numbers]
    return element(
        "tr", element("th", name, scope="row"), *(element("td", text) for text in texts), *cells, **attributes
    )


def note(text: str) -> Html:
    return element("p", text, class_="soft small")


def bullets_by_setting(sentences: Mapping[str, Iterable[str]]) -> Html:
    """One list per setting."""
    heads = {setting: element("h4", SETTING_TITLES[setting].capitalize(), class_=HEAD) for setting in sentences}
    return join(part for s, own in sentences.items() for part in (heads[s], bullets(own, data_of=s)))


def bullets(sentences: Iterable[str], **attributes: str | bool) -> Html:
    return element("ul", *(element("li", sentence) for sentence in sentences), class_="notes", **attributes)
