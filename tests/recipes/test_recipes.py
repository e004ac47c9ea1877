"""Every shipped recipe: it resolves, says where its values come from, and treats both arms as its kind promises."""

from __future__ import annotations

from collections import Counter

import pytest

from flashback import HOSTS, Flashback, FlashbackError, build_host, configure, load_benchmark
from flashback.batches.views import STEPS
from flashback.benchmarks.specs import BENCHMARKS
from flashback.config import to_dict
from flashback.hosts import Optimisation
from flashback.nets import NETS
from flashback.recipes import KINDS, Recipe, config_from_dict, find_recipe, list_recipes, resolving

HOST_NAMES = {
    "finetune", "joint", "lwf-mc", "icarl", "lucir", "der", "der++", "xder", "ewc", "oewc", "foster", "beef",
    "beef-compress", "afec", "der-expansion", "podnet", "wa", "replay", "bic", "mas", "si", "er", "agem", "lwf",
    "pnc", "caf", "icarl-aanets", "lucir-aanets", "simplecil", "ranpac",
    "connector", "dytox",
}  # fmt: skip
SOURCES = (
    "paper Section", "paper Table", "authors' script", "authors' code", "our choice", "DER paper", "X-DER paper",
    "AANets paper", "AANets repository", "LUCIR repository", "iCaRL repository", "FOSTER repository",
    "BEEF repository", "PODNet repository", "PyCIL", "Mammoth", "AFEC repository", "DER-ClassIL repository",
    "LwF paper", "CAF repository", "Connector repository", "DyTox repository", "flashback tune",
)  # fmt: skip

every_recipe = pytest.mark.parametrize(
    "recipe", list_recipes(), ids=lambda recipe: f"{recipe.host} {recipe.benchmark} {recipe.kind}"
)


def both_arms(recipe):
    """The resolved configurations without and with flashback; None for a host that cannot have it."""
    host = configure(recipe.host, recipe.benchmark, recipe=recipe.kind)
    if not HOSTS[recipe.host].has_knowledge:
        return host, None
    return host, configure(recipe.host, recipe.benchmark, recipe=recipe.kind, flashback=True)


def flat(values, prefix=""):
    if not isinstance(values, dict):
        return {prefix.removesuffix("."): values}
    return {key: value for name, part in values.items() for key, value in flat(part, f"{prefix}{name}.").items()}


def test_every_host_has_recipes():
    recipes = list_recipes()
    assert {recipe.host for recipe in recipes} == HOST_NAMES
    assert set(HOSTS) >= HOST_NAMES
    assert {r.host for r in recipes if (r.benchmark, r.kind) == ("split-fashion-mini", "controlled")} == HOST_NAMES
    names = Counter((recipe.host, recipe.benchmark, recipe.kind) for recipe in recipes)
    assert max(names.values()) == 1


@every_recipe
def test_recipe_resolves_in_both_arms(recipe):
    assert recipe.kind in KINDS
    assert recipe.benchmark in BENCHMARKS
    for arm in both_arms(recipe):
        if arm is not None:
            assert arm.host.net in NETS
            assert set(arm.training.views) <= set(STEPS)
            assert config_from_dict(to_dict(arm)) == arm
            values = flat(to_dict(arm))
            for key, value in recipe.values(arm.flashback.enabled).items():
                assert values[key] == value, key


@every_recipe
def test_every_value_has_a_source(recipe):
    assert set(recipe.sources) == {*recipe.settings, *recipe.flashback_settings}
    for key, source in recipe.sources.items():
        assert source.startswith(SOURCES), f"{key}: {source}"


@every_recipe
def test_recipe_says_what_matters(recipe):
    """What a benchmark must not leave to chance: the network, the rate, its course, the memory, and both phases."""
    if recipe.kind == "improved":  # on top of the controlled one, which says it
        assert find_recipe(recipe.host, recipe.benchmark, "controlled")
        return
    required = {"host.net", "training.epochs", "training.batch_size", "training.lr", "training.schedule"}
    if HOSTS[recipe.host].family == "frozen":
        required = {"host.net"}  # it is not trained
    if HOSTS[recipe.host].has_knowledge:
        required |= {"flashback.epochs", "flashback.alpha"}
    else:
        assert not any(key.startswith("flashback.") for key in recipe.sources)
    assert required <= set(recipe.settings)
    if hasattr(HOSTS[recipe.host].Settings, "memory_size"):
        assert {"host.memory_size", "host.memory_per_class"} & set(recipe.settings)


@every_recipe
def test_both_arms_are_alike_unless_published_otherwise(recipe):
    host, flashback = both_arms(recipe)
    if recipe.kind in ("as-published", "improved"):
        assert recipe.note
        return
    assert not recipe.flashback_settings
    if flashback is not None:
        one, other = to_dict(host), to_dict(flashback)
        assert one.pop("flashback") | {"enabled": True} == other.pop("flashback")
        assert one == other
        assert flashback.flashback.second_epochs is None
        first, second = flashback.flashback.split(flashback.training.epochs)
        assert first >= 1
        assert first + second == host.training.epochs


@every_recipe
def test_controlled_rates_drop_late_or_follow_a_cosine(recipe):
    if recipe.kind == "controlled":
        training = both_arms(recipe)[0].training
        assert training.schedule == "cosine" or (training.schedule, training.milestones) == ("step", (0.7, 0.9))


@every_recipe
def test_memory_has_room_for_every_class(recipe):
    settings = both_arms(recipe)[0].host
    classes = BENCHMARKS[recipe.benchmark].dataset.classes
    if getattr(settings, "memory_per_class", None) is None:
        assert getattr(settings, "memory_size", classes) >= classes


# What the authors' scripts change with flashback: value without, value with it.
PUBLISHED_DIFFERENCES = {
    ("icarl", "split-cifar10"): {"flashback.second_epochs": (None, 60)},
    ("icarl", "split-cifar100"): {"training.schedule": ("none", "step"), "training.first_schedule": (None, "none")},
    ("lucir", "split-cifar10"): {
        "host.lambda_base": (7, 5),
        "host.margin_weight": (1, 1.5),
        "host.finetune_lr": (0.001, 0.002),  # their 0.01 and 0.02 after ten steps
        "flashback.second_epochs": (None, 60),
    },
    ("lucir", "split-cifar100"): {
        "host.lambda_base": (7, 6),
        "host.margin_weight": (1, 1.5),
        "training.schedule": ("none", "step"),
    },
    ("lwf-mc", "split-cifar10"): {},
    ("lwf-mc", "split-cifar100"): {"host.penalty": (2e-5, 3e-5)},
    ("oewc", "split-cifar10"): {"training.lr": (0.2, 0.03), "host.strength": (10, 15)},
    ("oewc", "split-cifar100"): {"training.lr": (0.2, 0.03), "host.strength": (10, 15)},
    ("xder", "split-cifar10"): {"training.schedule": ("step", "none")},
    ("xder", "split-cifar100"): {},
}


def test_published_arms_differ_as_the_scripts_do():
    result = {}
    for recipe in list_recipes():
        if recipe.kind == "as-published":
            one, other = (flat(to_dict(arm)) for arm in both_arms(recipe))
            different = {key: (one[key], other[key]) for key in one if one[key] != other[key]}
            assert different.pop("flashback.enabled") == (False, True)
            result[recipe.host, recipe.benchmark] = different
    assert result == PUBLISHED_DIFFERENCES


@pytest.mark.parametrize(
    ("host", "benchmark", "kind", "flashback", "epochs", "drops"),
    [
        ("lucir", "split-cifar10", "as-published", False, 60, [42, 54]),
        ("lucir", "split-cifar100", "as-published", True, 50, [35, 45]),
        ("icarl", "split-cifar100", "as-published", True, 50, [35, 45]),
        ("icarl", "split-cifar100", "anchor", False, 50, [35, 45]),
        ("xder", "split-cifar10", "as-published", False, 60, [35, 45]),
        ("lucir", "cifar100-b50-10", "anchor", False, 160, [80, 120]),
        ("der", "split-cifar100", "controlled", False, 60, [42, 54]),
        ("oewc", "split-cifar10", "as-published", False, 60, []),
    ],
)
def test_rates_drop_where_the_sources_say(host, benchmark, kind, flashback, epochs, drops):
    config = configure(host, benchmark, recipe=kind, flashback=flashback)
    optimisation = Optimisation.of(config.training, first_task=False)
    rates = [optimisation.rate(epoch, epochs) for epoch in range(epochs)]
    assert [epoch for epoch in range(1, epochs) if rates[epoch] != rates[epoch - 1]] == drops


@pytest.mark.parametrize(
    ("host", "benchmark", "epochs"),
    [("lucir", "split-cifar100", 60), ("lucir", "split-cifar10", 60), ("icarl", "split-cifar100", 60)],
)
def test_first_task_of_the_scripts(host, benchmark, epochs):
    """It is trained alike in both arms; only LUCIR lowers its rate there."""
    for arm in (False, True):
        training = configure(host, benchmark, recipe="as-published", flashback=arm).training
        assert training.first_epochs in (None, epochs)
        assert Optimisation.of(training, first_task=True).schedule == ("step" if host == "lucir" else "none")


@pytest.mark.parametrize("host", sorted(HOST_NAMES))
def test_hosts_accept_their_quick_recipe(host):
    benchmark = load_benchmark("split-fashion-mini")
    flashback = HOSTS[host].has_knowledge
    built = build_host(configure(host, flashback=flashback), benchmark, "cpu")
    if flashback:
        assert Flashback(built).settings.enabled


def test_quick_recipes_train_few_steps():
    """They are meant to end within a minute on two CPU cores: small images, a small network, few epochs."""
    for host in HOST_NAMES:
        config = configure(host)
        assert config.host.net == ("convit-small" if host == "dytox" else "smallcnn")
        assert config.training.epochs <= 12
        assert config.training.batch_size >= 32


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("host.lambda_bass", 5.0, "did you mean 'host.lambda_base'"),
        ("host.scale", "sizes", "host.scale must be one of classes, tasks, not 'sizes'"),
        ("training.lr", "fast", "training.lr must be a number, not 'fast'"),
        ("training.epochs", 0, "training.epochs must be at least 1, not 0"),
        ("flashback.epochs", 60, "leaves nothing for phase 2"),
    ],
)
def test_a_wrong_value_in_a_recipe_is_named(monkeypatch, key, value, sentence):
    wrong = Recipe("lucir", "split-cifar10", "controlled", {"training.epochs": 60, key: value}, {}, {key: "nowhere"})
    monkeypatch.setattr(resolving, "find_recipe", lambda *_: wrong)
    with pytest.raises(FlashbackError, match=sentence):
        configure("lucir", "split-cifar10", flashback=True)


def test_a_recipe_that_does_not_exist():
    with pytest.raises(FlashbackError, match="one of controlled, anchor, as-published, improved, or"):
        configure("lucir", recipe="anker")
    with pytest.raises(FlashbackError, match="for oewc on split-cifar100; there is one for split-cifar10, split-tiny"):
        configure("oewc", "split-cifar100", recipe="anchor")
    with pytest.raises(FlashbackError, match="beef-compress has no anchor recipe"):
        configure("beef-compress", "cifar100-b50-10", recipe="anchor")


def test_a_size_of_the_memory_in_all_takes_the_place_of_one_by_class() -> None:
    assert configure("icarl", "cifar100-b50-10").host.memory_per_class == 20
    config = configure("icarl", "cifar100-b50-10", settings={"host.memory_size": 500}).host
    assert (config.memory_size, config.memory_per_class) == (500, None)
    with pytest.raises(FlashbackError, match="exclude each other"):
        configure("icarl", settings={"host.memory_size": 500, "host.memory_per_class": 20})
