"""Recipes, and how defaults, recipes and settings become the configuration of a run."""

from flashback.recipes.catalogue import KINDS, Recipe, find_recipe, list_recipes
from flashback.recipes.resolving import (
    check_not_fixed_by_user,
    comparable,
    config_from_dict,
    configure,
    falls_back_to_defaults,
    resolved,
)

__all__ = [
    "KINDS",
    "Recipe",
    "check_not_fixed_by_user",
    "comparable",
    "config_from_dict",
    "configure",
    "falls_back_to_defaults",
    "find_recipe",
    "list_recipes",
    "resolved",
]
