"""The command that checks a host of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from flashback.cli.console import show_line
from flashback.cli.options import Host, HostFile, Set
from flashback.config import parse_assignment

if TYPE_CHECKING:
    from flashback.conformance import Check


def register(app: typer.Typer) -> None:
    app.command()(check)


def check(host: Host, host_file: HostFile = None, settings: Set = None) -> int:
    """Check that a host keeps what comparisons rest on.

    Short runs on made images, on the CPU: the same seed ends the same, a stopped run goes on exactly, flashback goes
    back to where the task began, both arms cost the same. Exit code 1 if a promise is broken.
    """
    from flashback.conformance import check_host
    from flashback.reports.words import plural

    checks = check_host(host, settings=dict(map(parse_assignment, settings or [])), host_file=host_file, watch=show)
    broken = sum(not one.kept for one in checks)
    verdict = f"breaks {broken} of" if broken else "keeps all"
    show_line(f"{host} {verdict} {plural(len(checks), 'promise')}.")
    return 1 if broken else 0


def show(check: Check) -> None:
    show_line(f"kept    {check.promise}" if check.kept else f"BROKEN  {check.promise}: {check.problem}")
