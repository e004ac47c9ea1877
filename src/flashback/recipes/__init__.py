"""Recipes, and how defaults, recipes and settings become the configuration of a run."""

from flashback.recipes.catalogue import KINDS, Recipe, find_recipe, list_recipes
from flashback.recipes.resolving import check_free, comparable, config_from_dict, configure, lacks_recipe, resolved

__all__ = [
    "KINDS",
    "Recipe",
    "check_free",
    "comparable",
    "config_from_dict",
    "configure",
    "find_recipe",
    "lacks_recipe",
    "list_recipes",
    "resolved",
]
