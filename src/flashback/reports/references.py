"""Published values from a YAML file, shown beside measured ones."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from flashback.errors import FlashbackError, require
from flashback.files import LARGEST_CONFIG, read_file
from flashback.records.terms import ARMS, HOST, SETTINGS
from flashback.reports.words import SETTING_TITLES, TITLES
from flashback.results import Comparison, Sample

QUOTED: dict[Any, tuple[str, ...]] = {False: (), True: (HOST,), "both": ARMS}


@dataclass(frozen=True)
class Reference:
    """One published cell: a value for each arm, and the runs that it is about."""

    benchmark: str
    host: str
    setting: str
    metric: str
    where: str  # where it was published, such as "Table 1"
    value: Mapping[str, float]  # by arm
    deviation: Mapping[str, float]  # by arm
    when: Mapping[str, Any]  # settings of the runs that it is about
    quoted: tuple[str, ...]  # arms whose value comes from an earlier publication
    note: str

    def text(self, arm: str) -> str:
        if arm not in self.value:
            return ""
        sample = Sample({}, self.value[arm], self.deviation.get(arm))
        return f"{sample} (quoted)" if arm in self.quoted else str(sample)

    def is_about(self, comparison: Comparison) -> bool:
        """Whether these are runs of full length with these settings; flashback otherwise as in the recipe."""
        if (self.host, self.benchmark) != (comparison.host, comparison.benchmark) or not comparison.is_full_length:
            return False
        settings = comparison.methods[-1].flat_settings
        keys = {key for key in self.when if key.startswith("flashback.")}
        changed = {key for key in comparison.changes if key.startswith("flashback.")}
        same = all(settings.get(key) == value for key, value in self.when.items())
        return same and changed <= keys and bool(changed) == bool(keys)


@dataclass(frozen=True)
class References:
    """All values of a file, and those of methods that cannot be run here."""

    values: list[Reference] = field(default_factory=list)
    others: list[Reference] = field(default_factory=list)

    def beside(self, comparison: Comparison) -> list[Reference]:
        return [
            reference
            for reference in self.values
            if reference.is_about(comparison) and reference.metric in comparison.metric_names
        ]

    def not_run_here(self, values: list[Reference]) -> list[str]:
        tables = {(reference.where, reference.benchmark) for reference in values}
        return [
            f"{reference.host} on {reference.benchmark}, {SETTING_TITLES[reference.setting]} "
            f"{TITLES[reference.metric][1]}: {reference.text(HOST)} in {reference.where}."
            for reference in self.others
            if (reference.where, reference.benchmark) in tables
        ]


def read_references(path: str | Path) -> References:
    """Read published values; docs/reports.md describes the format."""
    path = Path(path)
    try:
        content = yaml.safe_load(read_file(path, LARGEST_CONFIG))
    except (OSError, ValueError, yaml.YAMLError):
        raise FlashbackError(f"{path} cannot be read; give a YAML file of published values (--references)") from None
    tables = content.get("tables") if isinstance(content, dict) else None
    require(isinstance(tables, list), f"{path} has no list of tables; docs/reports.md describes the format")
    references = References()
    for number, table in enumerate(tables or [], 1):
        try:
            references.values.extend(_cells(table, "cells"))
            references.others.extend(_cells(table, "references"))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FlashbackError(f"table {number} of {path} is not complete ({error}); see docs/reports.md") from None
    return references


def _cells(table: Mapping[str, Any], part: str) -> Iterator[Reference]:
    setting, metric, where = table["setting"], table["metric"], table["where"]
    if setting not in SETTINGS or metric not in TITLES:
        raise ValueError(f"no such setting or metric: {setting}, {metric}")
    for benchmark, methods in table.get(part, {}).items():
        for host, cells in methods.items():
            for cell in cells if isinstance(cells, list) else [cells]:
                values = {arm: float(cell[arm]) for arm in ARMS if arm in cell}
                deviations = dict(zip(ARMS, cell.get("deviation", []), strict=False))
                quoted, note = QUOTED[cell.get("quoted", False)], cell.get("note", "")
                about = (benchmark, host, setting, metric, where)
                yield Reference(*about, values, deviations, cell.get("when", {}), quoted, note)
