"""Forms of flashback, and controls that change the host alone, with the variants of each: one per choice of values.

The catalogue of `flashback list forms` is `forms.yaml`.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from flashback.config import RunConfig, parse_assignment, to_dict
from flashback.errors import require, unknown
from flashback.plain_yaml import read_yaml
from flashback.recipes import check_not_fixed_by_user
from flashback.recipes.resolving import recipe_values
from flashback.records import dotted
from flashback.results.naming import is_length, setting_in_words

FLASHBACK_KEYS = "flashback."
ALPHA, PHASE_1_EPOCHS = "flashback.alpha", "flashback.epochs"
OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")


@dataclass(frozen=True)
class Variant:
    """A form with one value for each of its settings, for one arm: with flashback, or the host alone."""

    name: str
    settings: Mapping[str, Any]  # by dotted key
    flashback: bool
    phase1: float | None = None  # share of the epochs in phase 1, if the form decides it

    def at(self, epochs: int) -> dict[str, Any]:
        """The settings of a run with this many epochs per task."""
        if not self.flashback or self.phase1 is None or PHASE_1_EPOCHS in self.settings:
            return dict(self.settings)
        first = round(self.phase1 * epochs)
        if 0 < self.phase1 < 1:  # an epoch for each phase; a single one is left to phase 1, which a run refuses
            first = max(1, min(first, epochs - 1))
        return {**self.settings, PHASE_1_EPOCHS: first}


def of_recipe(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without the epochs of a task, unless those of phase 1 are given too: forms keep the recipe's share."""
    return {key: value for key, value in settings.items() if key != "training.epochs" or PHASE_1_EPOCHS in settings}


@cache
def catalogue() -> Mapping[str, Mapping[str, Any]]:
    text = (resources.files("flashback.studies") / "forms.yaml").read_text(encoding="utf-8")
    entries: Mapping[str, Mapping[str, Any]] = read_yaml(text, "forms.yaml")
    return entries


def settings_for_both_arms(base: RunConfig) -> dict[str, Any]:
    """The values of the host alone for all settings that its recipe changes for flashback."""
    alone, with_flashback = (
        recipe_values(base.host.name, base.benchmark.name, base.recipe, flashback) for flashback in (False, True)
    )
    values = dotted(to_dict(base))
    return {key: values[key] for key, value in with_flashback.items() if key not in alone or alone[key] != value}


def check_equal_cost(config: RunConfig, base: RunConfig) -> None:
    """Refuse a form whose runs take more or fewer epochs than those of the host alone."""
    form, host = (dotted(to_dict(each)) for each in (config, base))
    for key in form:
        require(
            not is_length(key) or form[key] == host[key],
            f"forms are compared at equal cost, but {key} would be {form[key]} and for the host alone {host[key]}",
        )
    first, second = config.flashback.split(config.training.epochs) if config.flashback.enabled else (0, 0)
    require(
        config.flashback.equal_budget(config.training.epochs),
        f"forms are compared at equal cost, but the two phases take {first} + {second} epochs and the host alone takes "
        f"{config.training.epochs}; leave out flashback.second_epochs, or set it to null if the recipe sets it",
    )


def phase_1_share(config: RunConfig) -> float:
    """The share of the epochs that phase 1 has in a recipe."""
    return config.flashback.epochs / config.training.epochs


def variants_of(name: str, base: RunConfig, share: float) -> Iterator[Variant]:
    """Every combination of the values of a form in the catalogue.

    A form is the same whatever the recipe changes for flashback: its settings undo such changes.

    Args:
        name: The name of the form.
        base: The host alone, whose alpha_p the form starts from.
        share: The share of phase 1, for forms that do not decide it.
    """
    if name not in catalogue():
        raise unknown("form", name, catalogue())
    entry = catalogue()[name]
    choices = {key: value if isinstance(value, list) else [value] for key, value in entry.get("settings", {}).items()}
    if "alpha" in entry:
        choices[ALPHA] = [float(f"{factor * base.flashback.alpha:.12g}") for factor in entry["alpha"]]
    flashback = bool(entry.get("flashback", False))
    undone = settings_for_both_arms(base) if flashback else {}
    has_phase_1 = flashback and choices.get("flashback.teacher") != ["running"]
    phase1 = float(entry.get("phase1", share)) if has_phase_1 else None
    if phase1 is not None:
        undone.pop(PHASE_1_EPOCHS, None)
    for values in itertools.product(*choices.values()):
        yield Variant(name, undone | dict(zip(choices, values, strict=True)), flashback, phase1)


def parse_form(text: str, base: RunConfig, share: float) -> Variant:
    """Read a form: a name of the catalogue, `key=value,key=value`, or a name followed by such settings.

    Args:
        text: What the user wrote.
        base: As for `variants_of`.
        share: As for `variants_of`.

    Raises:
        FlashbackError: There is no such form, or a setting is not written as key=value.
    """
    first, *others = OUTSIDE_BRACKETS.split(text)
    known = next(variants_of(first.strip(), base, share)) if "=" not in first else Variant("", {}, False)
    overrides = dict(map(parse_assignment, others if known.name else [first, *others]))
    check_not_fixed_by_user(overrides, "a form")
    settings = {**known.settings, **overrides}
    flashback = known.flashback or any(key.startswith(FLASHBACK_KEYS) for key in settings)
    words = ", ".join(setting_in_words(key, value) for key, value in overrides.items())
    name = f"{known.name} ({words})" if known.name and overrides else known.name or words
    require(bool(name), "a form (--form) is empty; give a name or settings such as flashback.alpha=0.1")
    return Variant(name, settings, flashback, known.phase1)
