"""Defaults, then the recipe, then the user's own settings: one resolved, checked configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from flashback.benchmarks import canonical_name
from flashback.benchmarks.resolve import resolve_benchmark
from flashback.config import RunConfig, TrainingConfig, build, check_sections, set_dotted, to_dict
from flashback.errors import FlashbackError, require, unknown
from flashback.hosts import HOSTS, Host
from flashback.hosts.external import load_installed_hosts
from flashback.recipes.catalogue import CONTROLLED, DEFAULTS, KINDS, Recipe, find_recipe, list_recipes, read_recipe_file
from flashback.records import dotted

ENABLED = "flashback.enabled"


def configure(
    host: str,
    benchmark: str | Path = "split-fashion-mini",
    *,
    flashback: bool | None = None,
    seed: int = 0,
    recipe: str = "controlled",
    settings: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    **plain: Any,
) -> RunConfig:
    """The configuration of one run; `settings` have dotted keys ("training.epochs": 5) and win over the recipe.

    Settings of the host and of its training may be given by their plain names too: epochs=5, memory_size=200.
    Where there is no controlled recipe the defaults stand, and the configuration says so: its recipe is "defaults".
    Settings of flashback need `flashback=True`; an explicit False, as for the other arm of a comparison, lets them be.
    `data` is the data folder, where files of one's own are looked for too.
    """
    require(
        isinstance(benchmark, str | Path),
        f"a configuration names its benchmark and cannot hold a {type(benchmark).__name__}; save arrays with "
        "np.savez and give the path of the file, or give fb.build_host what fb.load_benchmark makes of them",
    )
    if host not in HOSTS:
        load_installed_hosts()
    own = dotted(settings or {}) | dotted_keys(HOSTS[host], plain)
    left_open = flashback is None and ENABLED not in own
    require(own.pop("host.name", host) == host, f"the host is {host}; settings cannot name another")
    name, recipe = own.pop("benchmark.name", str(benchmark)), own.pop("recipe", recipe)
    flashback, seed = own.pop(ENABLED, flashback or False), own.pop("seed", seed)
    values: dict[str, Any] = {"recipe": recipe, "seed": seed}
    fixed = {"host.name": host, "benchmark.name": name, ENABLED: flashback}
    known = recipe_values(host, name, recipe, bool(flashback))
    if own.get("host.memory_size") is not None:  # a size in all takes the place of the recipe's size by class
        require(
            own.get("host.memory_per_class") is None,
            "host.memory_size (in all) and host.memory_per_class exclude each other; give one of them",
        )
        known.pop("host.memory_per_class", None)
    for key, value in {**known, **own, **fixed}.items():
        set_dotted(values, key, value)
    config = named_as_it_is(config_from_dict(values, data))
    if left_open:
        check_flashback_is_on(config, own)
    return config


def dotted_keys(host: type[Host], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The full key of each plain name: a setting of the host or of its training, or the seed."""
    known = {"seed": ["seed"]}
    for prefix, section in (("training", TrainingConfig), ("host", host.Settings)):
        for field in fields(section):
            known.setdefault(field.name, []).append(f"{prefix}.{field.name}")
    for name in settings:
        if name not in known:
            raise unknown("setting", name, known)
        require(
            len(known[name]) == 1,
            f"'{name}' may be {' or '.join(known[name])}; say which in a configuration, "
            f'fb.configure(..., settings={{"{known[name][0]}": ...}})',
        )
    return {known[name][0]: value for name, value in settings.items()}


def check_flashback_is_on(config: RunConfig, given: Mapping[str, Any]) -> None:
    """Settings of flashback do nothing without it, which whoever gives them does not expect."""
    idle = [key for key in dotted(given) if key.startswith("flashback.") and key != ENABLED]
    require(
        config.flashback.enabled or not idle,
        f"{', '.join(idle)} does nothing without flashback; add --flashback, in Python flashback=True",
    )


def check_free(settings: Mapping[str, Any], what: str) -> None:
    """Refuse settings that decide what a comparison, a sweep or a tuning decides itself."""
    for key in ("seed", ENABLED, "host.name", "benchmark.name", "recipe"):
        require(key not in dotted(settings), f"{what} decides {key} itself; take it out of the settings")


def recipe_values(host: str, benchmark: str, kind: str, flashback: bool) -> dict[str, Any]:
    """What the recipe sets. Without one for this benchmark the defaults stand, unless another kind was asked for."""
    if kind == DEFAULTS or lacks_recipe(host, benchmark, kind):
        return {}
    if is_recipe_file(kind):
        own = own_recipe(host, benchmark, Path(kind))
        return recipe_values(host, benchmark, own.kind, flashback) | own.values(flashback)
    known = f"{', '.join(KINDS)}, or {DEFAULTS}"
    require(kind in KINDS, f"recipe (--recipe) is one of {known}, or a recipe file of your own, not '{kind}'")
    recipe = find_recipe(host, benchmark, kind)
    if recipe is None:
        others = sorted({r.benchmark for r in list_recipes() if (r.host, r.kind) == (host, kind)})
        where = f"there is one for {', '.join(others)}" if others else f"{host} has no {kind} recipe at all"
        raise FlashbackError(f"no {kind} recipe for {host} on {benchmark}; {where}")
    return recipe.values(flashback)


def lacks_recipe(host: str, benchmark: str, kind: str) -> bool:
    """Whether the defaults stand in for a controlled recipe."""
    return kind == CONTROLLED and find_recipe(host, benchmark, kind) is None


def is_recipe_file(kind: str) -> bool:
    return kind.endswith((".yaml", ".yml"))


def own_recipe(host: str, benchmark: str, path: Path) -> Recipe:
    """What a recipe file has for a host, to stand on top of the shipped recipe of its kind."""
    recipe = next((recipe for recipe in read_recipe_file(path) if recipe.is_for(host, benchmark)), None)
    if recipe is None:
        raise FlashbackError(f"{path} has no recipe for {host} on {benchmark}")
    known = (*KINDS, DEFAULTS)
    require(recipe.kind in known, f"the kind of a recipe in {path} is one of {', '.join(known)}, not '{recipe.kind}'")
    return recipe


def resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as a mapping with every key, as this version writes it: a later setting has its default."""
    return to_dict(named_as_it_is(config_from_dict(values)))


def comparable(values: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration resolved for comparisons: files of one's own by their names, however their paths are written."""
    found = resolved(values)
    return {**found, "benchmark": {**found["benchmark"], "name": canonical_name(found["benchmark"]["name"])}}


def config_from_dict(values: Mapping[str, Any], data: str | Path | None = None) -> RunConfig:
    """Turn a mapping (e.g. a config.yaml) into a checked configuration; the host's name decides its settings."""
    if not isinstance(values, Mapping):
        raise FlashbackError("a configuration is a mapping of keys")
    host = values.get("host")
    require(isinstance(host, Mapping) and isinstance(host.get("name"), str), "host.name is missing")
    assert isinstance(host, Mapping)
    own = build(HOSTS[host["name"]].Settings, host, "host.")
    check_sections(values, type(own))
    config = build(RunConfig, {**resolve_benchmark(values, data), "host": own})
    config.check()
    return config


def named_as_it_is(config: RunConfig) -> RunConfig:
    """With the recipe "defaults" where there is no controlled one."""
    missing = lacks_recipe(config.host.name, config.benchmark.name, config.recipe)
    return replace(config, recipe=DEFAULTS) if missing else config
