"""Other forms of flashback keep every promise: exact resume, equal steps, and alpha = 0 is the host."""

from __future__ import annotations

from typing import Any

import pytest
from conformance_runs import form_parameters

from flashback.conformance import check_host
from helpers import tiny_benchmark


@pytest.mark.parametrize(("name", "settings"), form_parameters())
def test_every_promise_is_kept(name: str, settings: dict[str, Any]) -> None:
    dotted_settings = {key.replace("__", "."): value for key, value in settings.items()}
    benchmark = tiny_benchmark((2, 3, 2), per_class=6, test_per_class=3, shape=(3, 12, 12))
    assert [check for check in check_host(name, settings=dotted_settings, benchmark=benchmark) if not check.kept] == []
