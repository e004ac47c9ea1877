"""Hosts and nets from outside the package: those of installed packages, and those in a file that the user names."""

import ast
import sys
import traceback
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from flashback.errors import FlashbackError
from flashback.files import sha256
from flashback.hosts.base import HOSTS
from flashback.nets import NETS
from flashback.nets.build import WEIGHTS
from flashback.registry import Registry, file_of

GROUP = "flashback.hosts"
REGISTRIES: dict[str, Registry[Any]] = {registry.kind: registry for registry in (HOSTS, NETS)}
HostFiles = str | Path | Sequence[str | Path] | None  # files that register hosts or nets
Key = tuple[str, str]  # the kind and the name of a registered entry


class HostModule(ModuleType):
    __registered__: Mapping[Key, object] = {}  # what it registered; among the names of the file itself
    __code__: str = ""  # a digest of the file and what it imports of its folder


def find_hosts(host_file: HostFiles = None) -> None:
    """Register the hosts of installed packages and of host files, before a name is looked up."""
    load_installed_hosts()
    for path in [host_file] if isinstance(host_file, str | Path) else host_file or []:
        load_host_file(path)


@cache
def load_installed_hosts() -> None:
    """Import what installed packages offer, once. An entry point names a module, or a class in it, that registers."""
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as problem:  # somebody else's package: whatever it raises must not stop this one
            warnings.warn(f"the hosts of '{entry.value}' cannot be used ({in_one_line(problem)})", stacklevel=2)


def load_host_file(path: str | Path) -> list[str]:
    path = Path(path).expanduser()
    try:
        source = path.read_bytes()
    except OSError as problem:
        raise FlashbackError(f"--host-file {path} cannot be read ({problem.strerror}); check the path") from None
    files = with_imports(path.resolve())
    # A private name for every file, so that no file hides another.
    name = "_flashback_host_" + sha256(str(path.resolve()))[:16]
    module = next((module for module in host_modules() if module.__name__ == name), None)
    if module is None or module.__code__ != digest(files):
        unload(module, files)
        module = execute(path, source, name)
        module.__code__ = digest(files)
    for (kind, registered), entry in module.__registered__.items():
        REGISTRIES[kind].register(registered)(entry)  # a notebook may have taken the name since
    if not module.__registered__:
        raise FlashbackError(
            f'--host-file {path} registers no host and no net; decorate its class with @HOSTS.register("name") or '
            '@NETS.register("name")'
        )
    return [registered for _, registered in sorted(module.__registered__)]


def unload(module: HostModule | None, files: Collection[Path]) -> None:
    if module is None:
        return
    for kind, registry in REGISTRIES.items():
        registry.forget(name for entry_kind, name in module.__registered__ if entry_kind == kind)
    for name, imported in list(sys.modules.items()):
        if name != "__main__" and file_of(imported) in files:
            del sys.modules[name]


def execute(path: Path, source: bytes, name: str) -> HostModule:
    module = HostModule(name)
    module.__file__ = str(path.resolve())
    sys.modules[name] = module  # dataclasses look their own module up while they are made
    before = registered_entries()
    try:
        with importing_from(path.resolve().parent):
            exec(compile(source, str(path), "exec"), module.__dict__)
    except BaseException as problem:
        del sys.modules[name]
        if isinstance(problem, KeyboardInterrupt):
            raise
        reason = in_one_line(problem) + line_in(path, problem)
        raise FlashbackError(f"--host-file {path} cannot be used ({reason})") from None
    module.__registered__ = {key: entry for key, entry in registered_entries().items() if before.get(key) is not entry}
    return module


def registered_entries() -> dict[Key, object]:
    return {(kind, name): registry[name] for kind, registry in REGISTRIES.items() for name in registry}


@contextmanager
def importing_from(folder: Path) -> Iterator[None]:
    """Let a file import what lies beside it, as a script can; host files that were run before are not run again."""
    files = {Path(str(module.__file__)): module for module in host_modules()}
    beside = {file.stem: module for file, module in files.items() if file.parent == folder}
    modules = {stem: module for stem, module in beside.items() if stem not in sys.modules}
    sys.modules.update(modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with suppress(ValueError):  # the file may have changed the list too
            sys.path.remove(str(folder))
        for stem in modules:
            sys.modules.pop(stem, None)


def host_modules() -> list[HostModule]:
    return [module for module in list(sys.modules.values()) if isinstance(module, HostModule)]


def external_code(host: str, net: str) -> dict[str, str]:
    """A digest of the external files that define a host and its net, under "code"; empty where there are none.

    A file of weights that the net names is one of them.
    """
    entries = registered_entries()
    keys = [key for key in ((HOSTS.kind, host), (NETS.kind, net)) if key in entries]
    files = set().union(*(files_of(key, entries[key]) for key in keys))
    weights = Path(net.partition(f":{WEIGHTS}")[2])
    files |= {weights} if weights.is_file() else set()
    return {"code": digest(files)} if files else {}


def digest(files: Iterable[Path]) -> str:
    return sha256(b"".join(file.read_bytes() for file in sorted(files)))[:16]


def files_of(key: Key, entry: object) -> set[Path]:
    """The file that defines an entry, and for a host file what it imports of its folder.

    Entries of the package itself, and of a notebook, have none.
    """
    defined_in = file_of(sys.modules[entry.__module__])
    for module in host_modules():
        if module.__registered__.get(key) is entry:
            file = Path(str(module.__file__))
            return with_imports(defined_in if defined_in is not None and defined_in.parent == file.parent else file)
    return set() if defined_in is None or entry.__module__.startswith("flashback.") else {defined_in}


def with_imports(file: Path) -> set[Path]:
    files, waiting = list[Path](), [file]
    while waiting:
        files.append(waiting.pop())
        waiting += {*imported_by(files[-1], file.parent)} - {*files, *waiting}
    return set(files)


def imported_by(path: Path, folder: Path) -> Iterator[Path]:
    with suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                yield from module_files(folder, [alias.name for alias in node.names])
            elif isinstance(node, ast.ImportFrom):
                base, package = path.parents[node.level - 1] if node.level else folder, node.module or ""
                yield from module_files(base, [package, *(f"{package}.{alias.name}" for alias in node.names)])


def module_files(folder: Path, names: Iterable[str]) -> Iterator[Path]:
    for name in names:
        place = name.strip(".").replace(".", "/")
        yield from filter(Path.is_file, (folder / f"{place}.py", folder / place / "__init__.py"))


def line_in(path: Path, problem: BaseException) -> str:
    """The last line of a file, or of one beside it, that was running; nothing for a syntax error, which names it."""
    folder, frames = path.resolve().parent, traceback.extract_tb(problem.__traceback__)
    lines = [frame for frame in frames if Path(frame.filename).resolve().parent == folder]
    if isinstance(problem, SyntaxError) or not lines:
        return ""
    return f"; line {lines[-1].lineno} of {Path(lines[-1].filename).name}"


def in_one_line(problem: BaseException) -> str:
    """The kind of an exception and its message; for a syntax error the line."""
    if isinstance(problem, SyntaxError) and problem.lineno:
        file = f" of {Path(problem.filename).name}" if problem.filename else ""
        return f"syntax error in line {problem.lineno}{file}: {problem.msg}"
    message = " ".join(str(problem).split())
    if isinstance(problem, FlashbackError):
        return message
    return f"{type(problem).__name__}: {message}" if message else type(problem).__name__
