"""Which averages a comparison shows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from flashback.metrics.accuracy import METRICS, OVER_IMAGES
from flashback.records import RunRecord
from flashback.studies.comparison import metrics_of


@pytest.mark.parametrize(
    ("run", "over_images"),
    [
        ({"task_sizes": [2, 2], "data": {"test_images": [20, 20]}}, False),
        ({"task_sizes": [2, 2]}, False),
        ({"task_sizes": [3, 2]}, True),
        ({"task_sizes": [2, 2], "data": {"test_images": [200, 20]}}, True),  # as many classes, fewer images
    ],
)
def test_averages_over_images_are_shown_where_tasks_differ_in_size(run: dict[str, Any], over_images: bool) -> None:
    found = metrics_of([cast(RunRecord, SimpleNamespace(run=run))])
    assert found == [*METRICS, *(OVER_IMAGES if over_images else ())]
