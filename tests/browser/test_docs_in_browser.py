"""The pages of docs/ as a reader meets them: wide tables whole on a wide screen, with a hint where they scroll."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Look = Callable[..., None]
WRAP = ".md-typeset__scrollwrap"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for needed in ("mkdocs", "mkdocstrings", "material"):
        pytest.importorskip(needed)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    root = Path(__file__).parents[2]
    subprocess.run(command, cwd=root, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True, timeout=300)
    return folder


def wraps(browser: Any, condition: str) -> Any:
    """After the theme's script has put every table into a box that scrolls."""
    script = f"""const done = arguments[0], look = () => {{
        const found = [...document.querySelectorAll('{WRAP}')];
        const tables = document.querySelectorAll('article table:not([class])').length;
        const whole = document.readyState === 'complete' && tables > 0;  // a page may still be on its way
        if (!whole || found.length < tables) return setTimeout(look, 20);
        done(found.map(box => {condition}));
    }}; look();"""
    return browser.execute_async_script(script)


@pytest.mark.parametrize("page", ["evidence", "speed", "benchmarks", "paper"])
def test_wide_tables_are_whole_on_a_wide_screen(page: str, site: Path, browser: Any, look: Look) -> None:
    look(site / f"{page}.html", 1400)
    sizes = wraps(browser, "[box.innerText.slice(0, 60), box.scrollWidth, box.clientWidth]")
    assert sizes
    assert [size for size in sizes if size[1] > size[2]] == []


@pytest.mark.parametrize("page", ["evidence", "paper"])
def test_on_a_phone_tables_scroll_with_a_hint_and_words_stay_whole(
    page: str, site: Path, browser: Any, look: Look
) -> None:
    look(site / f"{page}.html", 390, 844, touch=True)
    result = wraps(browser, "[box.scrollWidth > box.clientWidth, getComputedStyle(box).backgroundImage]")
    assert any(scrolls for scrolls, _ in result)
    assert all(background.count("linear-gradient") == 4 for _, background in result)
    size = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert size[0] <= size[1]
    broken = browser.execute_script(
        """const breaks = (code) => getComputedStyle(code).wordBreak !== 'normal';
           return [...document.querySelectorAll('td code')].filter(breaks).map(code => code.textContent)"""
    )
    assert broken == []
