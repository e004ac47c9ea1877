"""Recipes and how a configuration is put together: defaults, then the recipe, then the user."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from flashback import FlashbackError, configure
from flashback.config import TrainingConfig, to_dict
from flashback.recipes import Recipe, catalogue, resolved, resolving
from flashback.records import RunFolder

TEXT = """
host: icarl
common:
  training.epochs: {value: 50, from: somewhere}
  training.lr: {value: 0.3, from: somewhere}
recipes:
- benchmark: made
  kind: controlled
  settings:
    training.lr: {value: 2e-1, from: elsewhere}
    host.memory_size: {value: 500, from: there}
- benchmark: made
  kind: as-published
  note: the arms differ
  flashback_settings:
    training.epochs: {value: 70, from: their script}
"""


@pytest.fixture
def shipped_recipes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Recipe]:
    (tmp_path / "made.yaml").write_text(TEXT)
    recipes = catalogue.read_recipe_file(tmp_path / "made.yaml")
    for module in (catalogue, resolving):
        monkeypatch.setattr(module, "list_recipes", lambda: tuple(recipes))
    return recipes


def test_a_file_gives_recipes_with_values_and_sources(shipped_recipes: list[Recipe]) -> None:
    controlled, published = shipped_recipes
    assert (controlled.host, controlled.benchmark, controlled.kind) == ("icarl", "made", "controlled")
    assert controlled.settings == {"training.epochs": 50, "training.lr": "2e-1", "host.memory_size": 500}
    assert controlled.sources == {
        "training.epochs": "somewhere",
        "training.lr": "elsewhere",
        "host.memory_size": "there",
    }
    assert published.note == "the arms differ"
    assert published.values(flashback=False) == {"training.epochs": 50, "training.lr": 0.3}
    assert published.values(flashback=True) == {"training.epochs": 70, "training.lr": 0.3}


def test_the_user_wins_over_the_recipe_and_the_recipe_over_defaults(shipped_recipes: list[Recipe]) -> None:
    config = configure("icarl", "made", settings={"host.memory_size": 70, "training.batch_size": 7})
    assert (config.training.epochs, config.training.lr) == (50, 0.2)
    assert (config.host.memory_size, config.training.batch_size) == (70, 7)  # type: ignore[attr-defined]
    assert config.training.momentum == TrainingConfig().momentum
    assert (config.host.name, config.benchmark.name, config.recipe) == ("icarl", "made", "controlled")


@pytest.mark.parametrize(("flashback", "epochs"), [(False, 50), (True, 70)])
def test_published_arms_may_differ(shipped_recipes: list[Recipe], flashback: bool, epochs: int) -> None:
    config = configure("icarl", "made", flashback=flashback, recipe="as-published")
    assert config.training.epochs == epochs
    assert config.flashback.enabled is flashback
    assert config.recipe == "as-published"


def test_both_arms_of_a_controlled_recipe_share_everything_else(shipped_recipes: list[Recipe]) -> None:
    host, with_flashback = (configure("icarl", "made", flashback=flashback) for flashback in (False, True))
    assert (host.host, host.training, host.benchmark) == (
        with_flashback.host,
        with_flashback.training,
        with_flashback.benchmark,
    )


def test_without_a_recipe_the_defaults_stand(shipped_recipes: list[Recipe]) -> None:
    assert configure("icarl", "unheard-of").training == TrainingConfig()
    assert configure("icarl", "unheard-of", seed=7).seed == 7


def test_a_record_says_that_the_defaults_stood(shipped_recipes: list[Recipe]) -> None:
    assert configure("icarl", "unheard-of").recipe == "defaults"
    config = configure("icarl", "made", recipe="defaults")
    assert (config.recipe, config.training) == ("defaults", TrainingConfig())
    earlier = to_dict(configure("icarl", "unheard-of")) | {"recipe": "controlled"}  # as older records have it
    assert resolved(earlier)["recipe"] == "defaults"
    assert resolved(to_dict(configure("icarl", "made")))["recipe"] == "controlled"


@pytest.mark.parametrize("kind", ["controlled", "defaults"])
def test_an_unfinished_run_of_an_earlier_version_is_gone_on_with(
    shipped_recipes: list[Recipe], tmp_path: Path, kind: str
) -> None:
    now = to_dict(configure("icarl", "unheard-of"))
    RunFolder.open(tmp_path, now | {"recipe": "controlled"}, resolve=resolved)
    assert RunFolder.open(tmp_path, now | {"recipe": kind}, resolve=resolved).path == tmp_path


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            {"recipe": "best"},
            r"recipe \(--recipe\) must be one of controlled, anchor, as-published, improved, or .* not 'best'",
        ),
        ({"recipe": "anchor"}, "no anchor recipe for icarl on made; icarl has no anchor recipe"),
        ({"settings": {"training.epoch": 3}}, "unknown key 'training.epoch'; did you mean 'training.epochs'?"),
        ({"settings": {"training.epochs": "3"}}, "training.epochs must be a whole number, not '3'"),
    ],
)
def test_what_cannot_be_configured_is_said(shipped_recipes: list[Recipe], call: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FlashbackError) as caught:
        configure("icarl", "made", **call)
    assert re.fullmatch(sentence.replace("?", r"\?"), str(caught.value))


def test_a_kind_that_is_elsewhere_is_pointed_to(shipped_recipes: list[Recipe]) -> None:
    with pytest.raises(FlashbackError, match=r"no as-published recipe for icarl on other; there is one for made$"):
        configure("icarl", "other", recipe="as-published")


def test_a_recipe_file_of_the_user_goes_over_the_shipped_recipe(shipped_recipes: list[Recipe], tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("""
host: icarl
recipes:
- {benchmark: made, kind: controlled, settings: {training.epochs: {value: 9, from: me}}}
""")
    config = configure("icarl", "made", recipe=str(path))
    assert (config.training.epochs, config.training.lr) == (9, 0.2)
    with pytest.raises(FlashbackError, match="has no recipe for icarl on other"):
        configure("icarl", "other", recipe=str(path))


@pytest.mark.parametrize(
    "text", ["", "3", "[]", "host: icarl", "recipes: 3", "recipes: [3]", "recipes: [{}]", "\x00", "}"]
)
def test_a_file_that_is_no_recipe_is_said_in_one_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(FlashbackError, match=r"own\.yaml") as caught:
        configure("icarl", "made", recipe=str(path))
    assert "\n" not in str(caught.value)
