import signal
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

from flashback.hosts import HOSTS
from flashback.nets import NETS
from helpers import forgetting

torch.set_num_threads(1)

if find_spec("hypothesis"):  # the tests of a GPU do without it
    from hypothesis import settings

    # A busy machine must fail no test. All else stays as Hypothesis chooses it, in CI without chance.
    settings.register_profile("unhurried", deadline=None)
    settings.load_profile("unhurried")

# As at a terminal, also under nohup or in the background, where these are ignored and a run would leave them so.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """Hosts and nets of a test are its own."""
    with forgetting(HOSTS, NETS):
        yield


@pytest.fixture(autouse=True)
def unknown_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """No terminal gives its width: pytest-xdist sets COLUMNS, and tables would fold their names."""
    monkeypatch.delenv("COLUMNS", raising=False)
