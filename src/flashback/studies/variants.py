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
from flashback.results.naming import setting_in_words

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
    training, host = config.training, base.training
    require(
        (training.epochs, training.first_epochs) == (host.epochs, host.first_epochs)
        and config.flashback.equal_budget(training.epochs),
        "forms are compared at equal cost; leave out training.epochs, training.first_epochs and "
        "flashback.second_epochs",
    )


def variants_of(name: str, base: RunConfig) -> Iterator[Variant]:
    """Every combination of the values of a form in the catalogue.

    A form is the same whatever the recipe changes for flashback: its settings undo such changes.

    Args:
        name: The name of the form.
        base: The host alone with its recipe, whose alpha_p and share of phase 1 the form starts from.
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
    phase1 = float(entry.get("phase1", base.flashback.epochs / base.training.epochs)) if has_phase_1 else None
    if phase1 is not None:
        undone.pop(PHASE_1_EPOCHS, None)
    for values in itertools.product(*choices.values()):
        yield Variant(name, undone | dict(zip(choices, values, strict=True)), flashback, phase1)


def parse_form(text: str, base: RunConfig) -> Variant:
    """Read a form: a name of the catalogue, `key=value,key=value`, or a name followed by such settings.

    Raises:
        FlashbackError: There is no such form, or a setting is not written as key=value.
    """
    first, *others = OUTSIDE_BRACKETS.split(text)
    known = next(variants_of(first.strip(), base)) if "=" not in first else Variant("", {}, False)
    overrides = dict(map(parse_assignment, others if known.name else [first, *others]))
    check_not_fixed_by_user(overrides, "a form")
    settings = {**known.settings, **overrides}
    flashback = known.flashback or any(key.startswith(FLASHBACK_KEYS) for key in settings)
    words = ", ".join(setting_in_words(key, value) for key, value in overrides.items())
    name = f"{known.name} ({words})" if known.name and overrides else known.name or words
    require(bool(name), "a form (--form) is empty; give a name or settings such as flashback.alpha=0.1")
    return Variant(name, settings, flashback, known.phase1)
