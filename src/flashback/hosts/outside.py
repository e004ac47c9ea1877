"""Hosts and nets from outside the package: those of installed packages, and those in a file the user names."""

from __future__ import annotations

import hashlib
import sys
import warnings
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from flashback.errors import FlashbackError
from flashback.hosts.base import HOSTS
from flashback.nets import NETS

GROUP = "flashback.hosts"


def find_hosts(host_file: str | Path | None = None) -> None:
    """Make the hosts from outside known before a name is looked up."""
    load_installed_hosts()
    if host_file is not None:
        load_host_file(host_file)


@cache
def load_installed_hosts() -> None:
    """Import what installed packages offer, once. An entry point names a module, or a class in it, that registers."""
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as problem:  # somebody else's package: whatever it raises must not stop this one
            warnings.warn(f"the hosts of '{entry.value}' cannot be used ({in_one_line(problem)})", stacklevel=2)


def load_host_file(path: str | Path) -> list[str]:
    """Run a Python file and return the names of the hosts and nets it registers."""
    path = Path(path).expanduser()
    try:
        source = path.read_bytes()
    except OSError as problem:
        raise FlashbackError(f"--host-file {path} cannot be read ({problem.strerror}); check the path") from None
    # A private name, another one for every file and every content, so that no file hides another.
    name = "_flashback_host_" + hashlib.sha256(str(path.resolve()).encode() + source).hexdigest()[:16]
    if name not in sys.modules:
        execute(path, source, name)
    entries = [(entry, HOSTS[entry]) for entry in HOSTS] + [(entry, NETS[entry]) for entry in NETS]
    own = [entry for entry, made in entries if made.__module__ == name]
    if not own:
        raise FlashbackError(
            f'--host-file {path} registers no host and no net; decorate its class with @HOSTS.register("name") or '
            '@NETS.register("name")'
        )
    return own


def execute(path: Path, source: bytes, name: str) -> None:
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses look their own module up while they are made
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except BaseException as problem:
        del sys.modules[name]
        if isinstance(problem, KeyboardInterrupt):
            raise
        raise FlashbackError(f"--host-file {path} cannot be used ({in_one_line(problem)})") from None


def outside_code(host: str, net: str) -> dict[str, str]:
    """A digest of the files from outside that a host and its net are made in; nothing where there are none."""
    made = [HOSTS[host], *([NETS[net]] if net in NETS else [])]
    modules = [sys.modules[entry.__module__] for entry in made if not entry.__module__.startswith("flashback.")]
    named: list[str | None] = [getattr(module, "__file__", None) for module in modules]  # a notebook has none
    files = {Path(file) for file in named if file is not None}
    if not files:
        return {}
    return {"code": hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()[:16]}


def in_one_line(problem: BaseException) -> str:
    """The kind of an exception and what it says; for a syntax error the line."""
    if isinstance(problem, SyntaxError) and problem.lineno:
        return f"syntax error in line {problem.lineno}: {problem.msg}"
    said = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {said}" if said else type(problem).__name__
