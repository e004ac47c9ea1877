"""A PostgreSQL on this machine, from Debian's package; it needs to be started by root or by an ordinary user."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


def reason_not_to_start() -> str:
    return "" if BINARIES and shutil.which("runuser") else "PostgreSQL is missing (Debian: apt install postgresql)"


@contextmanager
def postgres() -> Iterator[str]:
    """Start it on a free port with data of its own; gives its address."""
    with TemporaryDirectory(prefix="flashback-postgres-", ignore_cleanup_errors=True) as folder:
        yield from served(folder)


def served(folder: str) -> Iterator[str]:
    as_user = []
    if os.geteuid() == 0:  # it refuses to run as root
        as_user = ["runuser", "-u", "postgres", "--"]
        shutil.chown(folder, "postgres", "postgres")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data, options = f"{folder}/data", f"-p {port} -c listen_addresses=127.0.0.1 -k {folder} -F"
    run = {"check": True, "cwd": "/", "stdout": subprocess.DEVNULL}
    subprocess.run([*as_user, BINARIES[-1] / "initdb", "-D", data, "-U", "tester", "-A", "trust"], **run)
    control = [*as_user, BINARIES[-1] / "pg_ctl", "-D", data, "-w"]
    subprocess.run([*control, "-o", options, "-l", f"{folder}/log", "start"], **run)
    try:
        yield f"postgresql+psycopg://tester@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], **{**run, "check": False})
