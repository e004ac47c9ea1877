"""What a host says of its loss terms is so: flashback refuses by it to weigh a term that is not there."""

from __future__ import annotations

import pytest
from conformance_runs import KNOWING, outcome

from flashback.hosts import HOSTS


@pytest.mark.parametrize("name", KNOWING)
def test_a_host_has_the_stability_term_it_says(name: str) -> None:
    assert ("stability" in outcome(name).terms) == HOSTS[name].has_stability
