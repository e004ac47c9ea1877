"""The command that looks into a host of one's own."""

from __future__ import annotations

from typing import Annotated

import typer

from flashback.cli.options import HostFile, Set
from flashback.cli.progress import output
from flashback.config import parse_assignment
from flashback.conformance import Check, check_host
from flashback.reports.words import plural

Name = Annotated[str, typer.Argument(metavar="HOST", help="The host to look into.")]


def register(app: typer.Typer) -> None:
    app.command()(check)


def check(host: Name, host_file: HostFile = None, settings: Set = None) -> int:
    """See whether a host keeps what comparisons rest on.

    Short runs on made images, on the CPU: the same seed ends the same, a stopped run goes on exactly, flashback goes
    back to where the task began, both arms cost the same. Exit code 1 if a promise is broken.
    """
    chosen = dict(map(parse_assignment, settings or []))
    found = check_host(host, settings=chosen, host_file=host_file, watch=tell)
    broken = sum(not one.kept for one in found)
    how = f"breaks {broken} of" if broken else "keeps all"
    output().print(f"{host} {how} {plural(len(found), 'promise')}.", soft_wrap=True, markup=False)
    return 1 if broken else 0


def tell(found: Check) -> None:
    line = f"kept    {found.promise}" if found.kept else f"BROKEN  {found.promise}: {found.problem}"
    output().print(line, soft_wrap=True, markup=False)
