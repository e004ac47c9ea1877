"""A headless Chromium that looks at a report as a reader would."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers import lacking

sys.path.insert(0, str(Path(__file__).parent.parent / "reports"))

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--force-device-scale-factor=1",
)  # fmt: skip


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One browser for all tests, with an empty profile, logging what pages say and ask for."""
    webdriver = pytest.importorskip("selenium.webdriver")
    if not CHROMIUM or not DRIVER:
        lacking("chromium and chromedriver on the PATH")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(120)  # seconds to draw a frame, for a busy machine
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def screenshots() -> Path:
    """Where to look at what the tests saw; not under version control."""
    folder = Path(__file__).parents[2] / "screenshots"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def look(browser: Any) -> Callable[..., None]:
    """Open a file at a width, light or dark, with a mouse or with a finger."""

    def open_page(path: Path, width: int = 1280, height: int = 900, dark: bool = False, touch: bool = False) -> None:
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": touch},
        )
        browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": touch})
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        for kind in ("browser", "performance"):
            browser.get_log(kind)  # what an earlier page said
        browser.get(path.as_uri())

    return open_page


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("slow")
