"""The site builds without a warning, and its pages load nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from doc_pages import DOCS, ROOT

from helpers import lacking


@pytest.mark.slow
def test_the_site_builds_and_is_self_contained(tmp_path: Path) -> None:
    if not all(map(find_spec, ("mkdocs", "material", "mkdocstrings"))):
        lacking("the packages of the extra docs")
    # Without --quiet: it hides warnings from --strict too.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert built.returncode == 0, built.stderr
    pages = sorted(path.stem for path in tmp_path.glob("*.html"))
    assert pages == sorted([*(page.stem for page in DOCS.glob("*.md")), "404"])
    loads = re.compile(r"<(?:script|img|iframe)[^>]+src=\"?(https?:)?//|<link[^>]+href=\"?(https?:)?//[^>]+stylesheet")
    for page in tmp_path.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not loads.search(text), page.name
        assert 'class="mermaid"' not in text, f"{page.name}: mermaid is fetched from elsewhere"
