"""From a host's name and a benchmark's to the full configuration of a run."""

from flashback.recipes.catalogue import KINDS, Recipe, find_recipe, list_recipes
from flashback.recipes.configure import config_from_dict, configure

__all__ = ["KINDS", "Recipe", "config_from_dict", "configure", "find_recipe", "list_recipes"]
