"""Other forms of flashback keep every promise: exact resume, equal steps, and alpha = 0 is the host."""

from __future__ import annotations

from typing import Any

import pytest
from conformance_runs import few_images, form_parameters

from flashback.conformance import check_host


@pytest.mark.parametrize(("name", "settings"), form_parameters())
def test_every_promise_is_kept(name: str, settings: dict[str, Any]) -> None:
    given = {key.replace("__", "."): value for key, value in settings.items()}
    assert [check for check in check_host(name, settings=given, benchmark=few_images()) if not check.kept] == []
