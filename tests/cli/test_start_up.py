"""Help, lists and misspelt options are answered without importing what trains."""

from __future__ import annotations

import subprocess
import sys

import pytest

import flashback as fb
from flashback.cli.listing import first_line, registered, sweep_names
from flashback.hosts import HOSTS
from flashback.nets import NETS
from flashback.studies.sweeps import shipped_sweeps

HEAVY = {"torch", "numpy", "scipy", "matplotlib", "optuna", "PIL"}
TRY = """
import sys
from flashback.cli import main
try:
    main(sys.argv[1:])
finally:
    print("imported:", *sorted({name.partition(".")[0] for name in sys.modules}))
"""


@pytest.mark.parametrize("command", ["--help", "list", "run icarl --hepl", "run icarl --memory-size 3", "run --help"])
def test_nothing_heavy_is_imported(command: str) -> None:
    done = subprocess.run([sys.executable, "-c", TRY, *command.split()], capture_output=True, text=True, check=False)
    assert done.returncode == (2 if "icarl" in command else 0), done.stderr
    imported = set(done.stdout.rpartition("imported:")[2].split())
    assert "flashback" in imported
    assert not imported & HEAVY


def test_hosts_are_described_as_they_are() -> None:
    described = registered("hosts", "HOSTS")
    assert list(described) == list(HOSTS)
    for name in HOSTS:
        real, outline = HOSTS[name], described[name]
        assert (outline.family, outline.has_knowledge) == (real.family, real.has_knowledge)
        assert first_line(outline) == first_line(real) != ""


def test_nets_and_sweeps_are_described_as_they_are() -> None:
    described = registered("nets", "NETS")
    assert {name: first_line(described[name]) for name in described} == {name: first_line(NETS[name]) for name in NETS}
    assert all(map(first_line, described.values()))
    assert sweep_names() == sorted(shipped_sweeps())


def test_the_package_exports_what_it_names() -> None:
    assert set(fb.__all__) <= set(dir(fb))
    assert all(getattr(fb, name) is not None for name in fb.__all__)
    assert fb.nets.NETS is NETS
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fb.nothing  # noqa: B018
