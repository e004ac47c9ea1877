"""Configurations: strict about keys and types, lenient about YAML's oddities, and the same after a round trip."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flashback.config import (
    BenchmarkConfig,
    Count,
    FlashbackConfig,
    HostSettings,
    NotNegative,
    Positive,
    RunConfig,
    TrainingConfig,
    build,
    parse_assignment,
    set_dotted,
    to_dict,
)
from flashback.errors import FlashbackError
from flashback.hosts import HOSTS
from flashback.plain_yaml import LARGEST_NUMBER, read_yaml
from flashback.recipes import config_from_dict, configure


def refusal(values: dict[str, Any]) -> str:
    """The one sentence with which a configuration of iCaRL is refused."""
    with pytest.raises(FlashbackError) as caught:
        config_from_dict({"host": {"name": "icarl"}, **values})
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"trainig": {}}, "unknown key 'trainig'; did you mean 'training'?"),
        ({"training": {"epoch": 3}}, "unknown key 'training.epoch'; did you mean 'training.epochs'?"),
        ({"host": {"name": "icarl", "memory": 3}}, "unknown key 'host.memory'; did you mean 'host.memory_size'?"),
        (
            {"host": {"name": "icrl"}},
            "unknown host 'icrl'; did you mean 'icarl'? (import a file with your own hosts first, on the "
            "command line with --host-file)",
        ),
        ({"training": 3}, "training must be a mapping, not 3"),
        ({"training": None}, "training must be a mapping, not None"),
        ({"training": {"epochs": 3.0}}, "training.epochs must be a whole number, not 3.0"),
        ({"training": {"epochs": "3"}}, "training.epochs must be a whole number, not '3'"),
        ({"training": {"epochs": True}}, "training.epochs must be a whole number, not True"),
        ({"training": {"lr": "fast"}}, "training.lr must be a number, not 'fast'"),
        ({"training": {"lr": True}}, "training.lr must be a number, not True"),
        ({"training": {"lr": float("nan")}}, "training.lr must be a finite number, not nan"),
        ({"training": {"lr": ".inf"}}, "training.lr must be a number, not '.inf'"),
        ({"training": {"lr": "inf"}}, "training.lr must be a finite number, not inf"),
        ({"training": {"nesterov": "yes"}}, "training.nesterov must be true or false, not 'yes'"),
        ({"training": {"views": "crop"}}, "training.views must be a list, not 'crop'; write [crop]"),
        ({"training": {"milestones": [0.5, "x"]}}, "training.milestones[1] must be a number, not 'x'"),
        ({"training": {"schedule": "linear"}}, "training.schedule must be one of none, step, cosine, not 'linear'"),
        ({"training": {"optimiser": "rmsprop"}}, "training.optimiser must be one of sgd, adam, adamw, not 'rmsprop'"),
        ({"training": {"betas": 0.9}}, "training.betas must be a list, not 0.9; write [0.9]"),
        ({"benchmark": {"order": 2.5}}, "benchmark.order must be a text, not 2.5"),
        ({"benchmark": {"sizes": [2, "3"]}}, "benchmark.sizes[1] must be a whole number, not '3'"),
        ({"seed": "0"}, "seed must be a whole number, not '0'"),
        ({"seed": 2**63}, "seed must be a whole number of at most 9223372036854775807"),
    ],
)
def test_what_does_not_belong_is_refused_by_its_name(values: dict[str, Any], sentence: str) -> None:
    assert refusal(values) == sentence


def test_a_number_beyond_all_numbers_is_refused() -> None:
    assert refusal({"training": {"lr": 10**400}}).startswith("training.lr must be a number, not 1000")


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"training": {"epochs": 0}}, "training.epochs"),
        ({"training": {"batch_size": 0}}, "training.batch_size"),
        ({"training": {"evaluation_batch": 0}}, "training.evaluation_batch"),
        ({"training": {"first_epochs": 0}}, "training.first_epochs"),
        ({"training": {"lr": 0}}, "training.lr"),
        ({"training": {"momentum": 1}}, "training.momentum"),
        ({"training": {"weight_decay": -1e-9}}, "training.weight_decay"),
        ({"training": {"nesterov": True}}, "training.nesterov"),
        ({"training": {"optimiser": "adam", "momentum": 0.9}}, "training.momentum"),
        ({"training": {"betas": [0.5, 0.9]}}, "training.betas"),
        ({"training": {"milestones": [0.0]}}, "training.milestones"),
        ({"training": {"gamma": 0}}, "training.gamma"),
        ({"training": {"image_size": 0}}, "training.image_size"),
        ({"benchmark": {"validation": 1}}, "benchmark.validation"),
        ({"benchmark": {"tasks": 0}}, "benchmark.tasks"),
        ({"flashback": {"epochs": -1}}, "flashback.epochs"),
        ({"flashback": {"second_epochs": 0}}, "flashback.second_epochs"),
        ({"flashback": {"alpha": -1}}, "flashback.alpha"),
        ({"flashback": {"phase1_stability": -1}}, "flashback.phase1_stability"),
        ({"flashback": {"start": 1.1}}, "flashback.start"),
        ({"flashback": {"decay": 0.9}}, "flashback.decay does nothing with flashback.teacher=primary"),
        ({"flashback": {"teacher": "running", "decay": 1}}, "flashback.decay must lie in [0, 1)"),
        ({"flashback": {"teacher": "running", "start": 0.5}}, "flashback.start and flashback.merge need a phase 1"),
        ({"flashback": {"teacher": "running", "merge": 0.5}}, "flashback.merge need a phase 1"),
        ({"flashback": {"merge": 1.5}}, "flashback.merge must lie in [0, 1]"),
        ({"flashback": {"teacher": "running", "phase1_stability": 0}}, "flashback.phase1_stability"),
        ({"training": {"average": 1}}, "training.average"),
        ({"training": {"merge": 0}}, "training.merge"),
        ({"training": {"freeze_backbone": True, "teacher_statistics": "batch"}}, "make its teacher another model"),
        ({"flashback": {"enabled": True, "epochs": 10}}, "flashback.epochs"),
        ({"checkpoint": {"minutes": -1}}, "checkpoint.minutes"),
        ({"checkpoint": {"epochs": -1}}, "checkpoint.epochs"),
        ({"host": {"name": "icarl", "memory_size": None}}, "host.memory_size"),
        ({"host": {"name": "icarl", "memory_per_class": 0}}, "host.memory_per_class"),
        ({"host": {"name": "lwf-mc", "penalty": -1}}, "host.penalty"),
        ({"host": {}}, "host.name"),
        ({"host": "icarl"}, "host.name"),
        ({"host": {"name": 3}}, "host.name"),
    ],
)
def test_values_that_cannot_work_are_refused(values: dict[str, Any], word: str) -> None:
    assert word in refusal(values)


@pytest.mark.parametrize(
    ("kind", "least", "refused", "rule"),
    [
        (NotNegative, 0, -0.5, "not be negative"),
        (Positive, 0.5, 0, "be above 0"),
        (Count, 1, 0, "be at least 1"),
    ],
)
def test_types_of_the_settings_of_a_host_have_rules(kind: Any, least: float, refused: float, rule: str) -> None:
    fields = [("one", kind), ("two", kind | None, None)]
    settings = dataclasses.make_dataclass("Ruled", fields, bases=(HostSettings,), frozen=True, kw_only=True)
    settings(one=least).check()
    settings(one=least, two=least).check()
    for values in ({"one": refused}, {"one": least, "two": refused}):
        name = list(values)[-1]
        with pytest.raises(FlashbackError, match=rf"^host\.{name} must {rule}, not {refused}$"):
            settings(**values).check()


def test_a_configuration_is_a_mapping() -> None:
    for wrong in (None, [], "icarl", 3):
        with pytest.raises(FlashbackError, match="mapping"):
            config_from_dict(wrong)  # type: ignore[arg-type]


def test_yaml_oddities_mean_what_they_seem_to_mean() -> None:
    text = """
    lr: 1e-3          # a string for YAML 1.1
    weight_decay: 0   # a whole number where a number is due
    schedule: none    # a string
    first_schedule: ~ # nothing: as the others
    milestones: []
    """
    value = build(TrainingConfig, read_yaml(text, "here"))
    assert value == TrainingConfig(lr=0.001, weight_decay=0.0, schedule="none", first_schedule=None, milestones=())
    assert isinstance(value.weight_decay, float)


def test_null_may_stand_for_the_choice_none() -> None:
    assert build(TrainingConfig, {"schedule": None}).schedule == "none"
    assert build(TrainingConfig, {"first_schedule": None}).first_schedule is None
    with pytest.raises(FlashbackError, match=r"flashback.support must be one of host, all, memory, not None"):
        build(RunConfig, {"flashback": {"support": None}})


@pytest.mark.parametrize("order", ["1993", 1993, (3, 1, 2), "identity", None])
def test_an_order_keeps_its_type(order: Any) -> None:
    value = build(BenchmarkConfig, {"order": order}).order
    assert value == order
    assert type(value) is type(order)


def run_configs() -> st.SearchStrategy[RunConfig]:
    numbers, whole = st.floats(0.001, 0.9), st.integers(-LARGEST_NUMBER, LARGEST_NUMBER)
    training = st.builds(
        TrainingConfig,
        epochs=st.integers(5, 9),
        first_epochs=st.none() | st.integers(1, 9),
        lr=numbers,
        momentum=numbers,
        schedule=st.sampled_from(["none", "step", "cosine"]),
        milestones=st.lists(numbers, max_size=3).map(tuple),
        views=st.lists(st.sampled_from(["crop", "flip"]), max_size=2).map(tuple),
        image_size=st.none() | st.integers(1, 64),
    )
    benchmark = st.builds(
        BenchmarkConfig,
        name=st.text(max_size=9),
        order=st.none() | st.text(max_size=5) | whole | st.lists(whole, max_size=4).map(tuple),
        sizes=st.none() | st.lists(st.integers(1, 9), max_size=4).map(tuple),
    )
    flashback = st.builds(
        FlashbackConfig,
        enabled=st.booleans(),
        epochs=st.integers(0, 4),
        alpha=numbers,
        support=st.sampled_from(["host", "all", "memory"]),
    )
    hosts = st.sampled_from(sorted(HOSTS)).map(lambda name: HOSTS[name].Settings(name=name))
    return st.builds(
        RunConfig, host=hosts, benchmark=benchmark, training=training, flashback=flashback, seed=st.integers(0, 2**62)
    )


@settings(max_examples=25)
@given(run_configs())
def test_a_configuration_survives_yaml(config: RunConfig) -> None:
    """config.yaml starts the same run again."""
    text = yaml.safe_dump(to_dict(config), sort_keys=False)
    again = config_from_dict(read_yaml(text, "config.yaml"))
    assert again == config
    assert to_dict(again) == to_dict(config)


def test_every_default_configuration_is_complete_in_its_mapping() -> None:
    values = to_dict(RunConfig(host=HOSTS["icarl"].Settings(name="icarl")))
    assert values["host"].keys() == {field.name for field in dataclasses.fields(HOSTS["icarl"].Settings)}
    assert values.keys() == {field.name for field in dataclasses.fields(RunConfig)}


# ---------------------------------------------------------------- dotted keys


def test_set_dotted_reaches_into_mappings() -> None:
    values: dict[str, Any] = {"training": {"lr": 1.0}}
    set_dotted(values, "training.epochs", 5)
    set_dotted(values, "host.name", "icarl")
    set_dotted(values, "seed", 3)
    assert values == {"training": {"lr": 1.0, "epochs": 5}, "host": {"name": "icarl"}, "seed": 3}


def test_set_dotted_does_not_pass_through_values() -> None:
    with pytest.raises(FlashbackError, match=r"unknown key 'seed.more'; 'seed' holds a value"):
        set_dotted({"seed": 3}, "seed.more", 1)


@pytest.mark.parametrize(
    ("assignment", "key", "value"),
    [
        ("training.lr=0.1", "training.lr", 0.1),
        ("training.lr = 1e-3", "training.lr", "1e-3"),
        ("training.views=[crop, flip]", "training.views", ["crop", "flip"]),
        ("benchmark.name=a=b", "benchmark.name", "a=b"),
        ("flashback.enabled=true", "flashback.enabled", True),
        ("training.precision=", "training.precision", None),
    ],
)
def test_an_assignment_is_a_key_and_yaml(assignment: str, key: str, value: Any) -> None:
    assert parse_assignment(assignment) == (key, value)


@pytest.mark.parametrize("assignment", ["training.lr", "=0.1", " =0.1", ""])
def test_an_assignment_needs_both_sides(assignment: str) -> None:
    with pytest.raises(FlashbackError, match="not of the form key=value"):
        parse_assignment(assignment)


@pytest.mark.parametrize(
    "text",
    ["[1, 2", "!!python/object/apply:os.system [ls]", "2020-13-45", "\x00", "&a [*a]", "1" * 30, "[" * 500],
)
def test_yaml_that_is_none_is_said_in_one_sentence(text: str) -> None:
    with pytest.raises(FlashbackError, match=r"^the value of key is not valid YAML( in line \d+)?(; .*)?$"):
        parse_assignment(f"key={text}")


def test_the_line_of_broken_yaml_is_named() -> None:
    with pytest.raises(FlashbackError, match=r"^some.yaml is not valid YAML in line 3$"):
        read_yaml("a: 1\nb: 2\nc: ]", "some.yaml")


def test_a_key_given_twice_is_refused_with_its_line() -> None:
    text = "training:\n  lr: 0.1\n  epochs: 3\n  lr: 0.2\n"
    with pytest.raises(FlashbackError, match=r"^some.yaml is not valid YAML in line 4; 'lr' is given twice$"):
        read_yaml(text, "some.yaml")
    assert read_yaml("a: {lr: 1}\nb: {lr: 2}", "some.yaml") == {"a": {"lr": 1}, "b": {"lr": 2}}


# ---------------------------------------------------------------- the two phases


@pytest.mark.parametrize(
    ("first", "second", "epochs", "split", "equal"),
    [
        (10, None, 60, (10, 50), True),
        (0, None, 5, (0, 5), True),
        (10, 60, 60, (10, 60), False),
        (10, 50, 60, (10, 50), True),
        (70, 1, 60, (70, 1), False),
    ],
)
def test_phases_split_the_epochs(
    first: int, second: int | None, epochs: int, split: tuple[int, int], equal: bool
) -> None:
    settings = FlashbackConfig(enabled=True, epochs=first, second_epochs=second)
    assert settings.split(epochs) == split
    assert settings.equal_budget(epochs) is equal
    assert dataclasses.replace(settings, enabled=False).equal_budget(epochs)


@pytest.mark.parametrize("first", [5, 6])
def test_phase_1_leaves_something_for_phase_2(first: int) -> None:
    with pytest.raises(FlashbackError, match=f"E1 = {first}.*5 epochs"):
        FlashbackConfig(enabled=True, epochs=first).split(5)


@pytest.mark.parametrize(("elsewhere", "here"), [("derpp", "der++"), ("ewc_on", "oewc"), ("naive", "finetune")])
def test_the_names_of_other_libraries_are_understood(elsewhere: str, here: str) -> None:
    with pytest.raises(FlashbackError, match=re.escape(f"unknown host '{elsewhere}'; did you mean '{here}'?")):
        configure(elsewhere)
