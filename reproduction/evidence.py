"""Write docs/evidence.md, its appendix and its figure from the records in results/ (`make evidence`).

The pages are written by hand in *.md.in; `{name}` stands for a value and a line `{table:name}` for a table.
"""

from __future__ import annotations

import re

from evidence_figure import save
from evidence_tables import named_tables
from evidence_values import ROOT, Evidence, named_values, read_evidence

PAGES = ("evidence.md", "evidence-appendix.md")
PLACEHOLDER = re.compile(r"\{([a-z][^{}\s]*)\}")


def template(page: str) -> str:
    return (ROOT / "reproduction" / f"{page}.in").read_text(encoding="utf-8")


def fill(text: str, values: dict[str, str]) -> str:
    """Replace every placeholder; an unknown name is an error."""
    return PLACEHOLDER.sub(lambda match: values[match[1]], text)


def page_values(evidence: Evidence) -> dict[str, str]:
    return named_values(evidence) | named_tables(evidence)


def main() -> None:
    evidence = read_evidence()
    values = page_values(evidence)
    for page in PAGES:
        (ROOT / "docs" / page).write_text(fill(template(page), values), encoding="utf-8")
    save(evidence, ROOT / "docs" / "images" / "evidence.png")


if __name__ == "__main__":
    main()
