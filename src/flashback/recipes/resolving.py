"""Resolve a configuration: defaults, then the recipe, then the user's settings."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from flashback.benchmarks import canonical_name
from flashback.benchmarks.splits import resolve_benchmark
from flashback.config import RunConfig, TrainingConfig, build, check_sections, set_dotted, to_dict
from flashback.errors import FlashbackError, require, unknown
from flashback.hosts import HOSTS, Host
from flashback.hosts.external import load_installed_hosts
from flashback.recipes.catalogue import (
    CONTROLLED,
    DEFAULTS,
    IMPROVED,
    KINDS,
    Recipe,
    find_recipe,
    list_recipes,
    read_recipe_file,
)
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
    """Make the configuration of one run: defaults, then the recipe, then your settings.

    Args:
        host: The name of a host.
        benchmark: The name of a benchmark, or the path of an .npz file or a folder of images.
        flashback: Whether to wrap the host by Flashback. Flashback settings without it are refused, unless False is
            given explicitly, as for the host arm of a comparison.
        seed: Decides everything random.
        recipe: "controlled", "improved", "anchor", "as-published", "defaults", or a recipe file. Without a controlled
            recipe for this benchmark the defaults are used, and the configuration's recipe is "defaults".
        settings: Settings by dotted key, such as {"training.epochs": 5}.
        data: The folder of the datasets, where relative paths are looked up too.
        plain: Settings of the host and its training by their plain names: epochs=5, memory_size=200.

    Returns:
        The checked configuration.

    Raises:
        FlashbackError: If a name, a setting or a combination is not valid.
    """
    require(
        isinstance(benchmark, str | Path),
        f"a configuration names its benchmark and cannot hold a {type(benchmark).__name__}; save arrays with "
        "np.savez and give the path of the file, or load them with fb.load_benchmark for fb.build_host",
    )
    if host not in HOSTS:
        load_installed_hosts()
    overrides = dotted(settings or {}) | dotted_keys(HOSTS[host], plain)
    arm_not_given = flashback is None and ENABLED not in overrides
    require(overrides.pop("host.name", host) == host, f"the host is {host}; settings cannot name another")
    name, recipe = overrides.pop("benchmark.name", str(benchmark)), overrides.pop("recipe", recipe)
    flashback, seed = overrides.pop(ENABLED, flashback or False), overrides.pop("seed", seed)
    values: dict[str, Any] = {"recipe": recipe, "seed": seed}
    fixed = {"host.name": host, "benchmark.name": name, ENABLED: flashback}
    from_recipe = recipe_values(host, name, recipe, bool(flashback))
    if overrides.get("host.memory_size") is not None:  # replaces the recipe's size per class
        require(
            overrides.get("host.memory_per_class") is None,
            "host.memory_size (total) and host.memory_per_class exclude each other; give one of them",
        )
        from_recipe.pop("host.memory_per_class", None)
    for key, value in {**from_recipe, **overrides, **fixed}.items():
        set_dotted(values, key, value)
    config = with_effective_recipe(config_from_dict(values, data))
    if arm_not_given:
        check_flashback_is_on(config, overrides)
    return config


def dotted_keys(host: type[Host], settings: Mapping[str, Any]) -> dict[str, Any]:
    known = {"seed": ["seed"]}
    for prefix, section in (("training", TrainingConfig), ("host", host.Settings)):
        for field in fields(section):
            known.setdefault(field.name, []).append(f"{prefix}.{field.name}")
    for name in settings:
        if name not in known:
            raise unknown("setting", name, known)
        require(
            len(known[name]) == 1,
            f"'{name}' may be {' or '.join(known[name])}; give the full key, "
            f'fb.configure(..., settings={{"{known[name][0]}": ...}})',
        )
    return {known[name][0]: value for name, value in settings.items()}


def check_flashback_is_on(config: RunConfig, settings: Mapping[str, Any]) -> None:
    unused = [key for key in dotted(settings) if key.startswith("flashback.") and key != ENABLED]
    require(
        config.flashback.enabled or not unused,
        f"{', '.join(unused)} has no effect without flashback; add --flashback, in Python flashback=True",
    )


def check_not_fixed_by_user(settings: Mapping[str, Any], what: str) -> None:
    """Refuse settings that a comparison, a sweep or a tuning chooses itself."""
    for key in ("seed", ENABLED, "host.name", "benchmark.name", "recipe"):
        require(key not in dotted(settings), f"{what} chooses {key} itself; remove it from the settings")


def recipe_values(host: str, benchmark: str, kind: str, flashback: bool) -> dict[str, Any]:
    """The values of a recipe, an improved one on top of the controlled one; empty if a controlled one is missing."""
    if kind == DEFAULTS or falls_back_to_defaults(host, benchmark, kind):
        return {}
    if is_recipe_file(kind):
        recipe = recipe_from_file(host, benchmark, Path(kind))
        below = CONTROLLED if recipe.kind == IMPROVED else recipe.kind  # the file holds all that is improved
        return recipe_values(host, benchmark, below, flashback) | recipe.values(flashback)
    known = f"{', '.join(KINDS)}, or {DEFAULTS}"
    require(kind in KINDS, f"recipe (--recipe) must be one of {known}, or a recipe file, not '{kind}'")
    shipped = find_recipe(host, benchmark, kind)
    if shipped is None:
        others = sorted({r.benchmark for r in list_recipes() if (r.host, r.kind) == (host, kind)})
        where = f"there is one for {', '.join(others)}" if others else f"{host} has no {kind} recipe"
        raise FlashbackError(f"no {kind} recipe for {host} on {benchmark}; {where}")
    controlled = recipe_values(host, benchmark, CONTROLLED, flashback) if kind == IMPROVED else {}
    return controlled | shipped.values(flashback)


def falls_back_to_defaults(host: str, benchmark: str, kind: str) -> bool:
    """Whether the defaults stand for this recipe: only a controlled one may be missing."""
    return kind == CONTROLLED and find_recipe(host, benchmark, kind) is None


def is_recipe_file(kind: str) -> bool:
    return kind.endswith((".yaml", ".yml"))


def recipe_from_file(host: str, benchmark: str, path: Path) -> Recipe:
    recipe = next((recipe for recipe in read_recipe_file(path) if recipe.is_for(host, benchmark)), None)
    if recipe is None:
        raise FlashbackError(f"{path} has no recipe for {host} on {benchmark}")
    known = (*KINDS, DEFAULTS)
    kinds = f"the kind of recipe in {path} must be one of {', '.join(known)}, not '{recipe.kind}'"
    require(recipe.kind in known, kinds)
    return recipe


def resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as a mapping with every key; settings that older versions did not have get their defaults."""
    return to_dict(with_effective_recipe(config_from_dict(values)))


def comparable(values: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved configuration in which data files have canonical names, so that it can be compared."""
    full = resolved(values)
    return {**full, "benchmark": {**full["benchmark"], "name": canonical_name(full["benchmark"]["name"])}}


def config_from_dict(values: Mapping[str, Any], data: str | Path | None = None) -> RunConfig:
    if not isinstance(values, Mapping):
        raise FlashbackError("a configuration must be a mapping of keys")
    host = values.get("host")
    require(isinstance(host, Mapping) and isinstance(host.get("name"), str), "host.name is missing")
    assert isinstance(host, Mapping)
    settings = build(HOSTS[host["name"]].Settings, host, "host.")
    check_sections(values, type(settings))
    config = build(RunConfig, {**resolve_benchmark(values, data), "host": settings})
    config.check()
    return config


def with_effective_recipe(config: RunConfig) -> RunConfig:
    """The configuration with the recipe whose values it has: the defaults, where the controlled one is missing."""
    missing = falls_back_to_defaults(config.host.name, config.benchmark.name, config.recipe)
    return replace(config, recipe=DEFAULTS) if missing else config
