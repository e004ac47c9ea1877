"""The picture of the versions of a model that goes on learning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from flashback.models import Version
from flashback.reports.versions import plot_versions

FIRST = Version(
    *(
        1,
        None,
        "2026-01-01T00:00:00+00:00",
        9,
        1,
        0,
        0,
        ("cup",),
        {"cup": 0.1},
        ("cup",),
        (),
        {"cup": 1},
        {},
        {"cup": 90.0},
    ),
    *("accepted", "", 1.0, (), (3, 8, 8), (0.5,), (0.5,), "", ""),
)


@pytest.mark.parametrize(("versions", "width"), [(5, 800), (1000, 2240)])
def test_a_picture_of_many_versions_stays_readable(versions: int, width: int, tmp_path: Path) -> None:
    line = [replace(FIRST, number=n, parent=n - 1 or None) for n in range(1, versions + 1)]
    plot_versions(line, versions, tmp_path / "history.png")
    assert Image.open(tmp_path / "history.png").width == width
