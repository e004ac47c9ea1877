"""Every table of the documentation agrees with the code that it describes."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from doc_pages import DOCS, ROOT, rows, section

import flashback
from flashback.benchmarks import BENCHMARKS, describe_benchmarks, imagenet100_classes
from flashback.config import RunConfig
from flashback.hosts import HOSTS
from flashback.metrics import summarise
from flashback.recipes import KINDS, list_recipes
from flashback.studies.jobs import RunContext
from flashback.studies.sweeps import Part, plan, read_sweep, shipped_sweeps
from helpers import quick_host, small_settings


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def as_yaml(value: Any) -> str:
    """Write a default as YAML does."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return (value or "empty") if isinstance(value, str) else json.dumps(value)


def defaults(settings: type, prefix: str) -> dict[str, str]:
    """Return the defaults of plain fields; nested settings have their own tables."""
    fields = [field for field in dataclasses.fields(settings) if field.default is not dataclasses.MISSING]
    return {f"{prefix}{field.name}": as_yaml(field.default) for field in fields}


# ---------------------------------------------------------------- hosts and settings


def listed_settings(name: str) -> dict[str, str]:
    """The settings in the table of a host, after those of the hosts it refers to."""
    text = section(text_of("hosts.md"), name)
    sentence = re.search(r"Settings as in .*", text)
    referred = re.findall(r"\[`([^`]+)`\]", sentence[0]) if sentence else []
    table = {key: default for key, default, _ in rows(text)}
    return {key: value for other in referred for key, value in listed_settings(other).items()} | table


@pytest.mark.parametrize("name", list(HOSTS))
def test_every_host_has_a_section_with_its_settings(name: str) -> None:
    if HOSTS[name].__module__.split(".")[0] != "flashback":
        pytest.skip("a host from outside the package")
    page = text_of("hosts.md")
    text = section(page, name)
    expected = defaults(HOSTS[name].Settings, "host.")
    del expected["host.name"]  # the title of the section
    shared = {row[0]: row[1] for row in rows(section(page, "Shared settings"))}
    assert {row[0] for row in rows(text)} <= set(expected)
    settings = shared | listed_settings(name)
    assert {key: settings.get(key) for key in expected} == expected
    assert all(meaning for _, _, meaning in rows(text))
    if HOSTS[name].has_knowledge:
        for word in ("Keeps", "tages", "osses", "istance", "upport", "hase 2 restores"):
            assert word in text, f"{name}: nothing is said of {word}"


def test_every_section_describes_a_registered_host() -> None:
    assert set(re.findall(r"^### (\S+)$", text_of("hosts.md"), flags=re.MULTILINE)) <= set(HOSTS)


@pytest.mark.parametrize("name", ["benchmark", "training", "flashback", "checkpoint", "the run"])
def test_every_setting_of_a_run_is_listed(name: str) -> None:
    sections = {field.name: field.default_factory for field in dataclasses.fields(RunConfig)}
    inner = sections.get(name)
    expected = defaults(inner, f"{name}.") if isinstance(inner, type) else defaults(RunConfig, "")
    assert {row[0]: row[1] for row in rows(section(text_of("recipes.md"), name))} == expected


# ---------------------------------------------------------------- what is shipped


def test_all_recipes_are_listed() -> None:
    table: dict[str, list[str]] = {}
    for name in sorted({recipe.host for recipe in list_recipes()}):
        by_kind = [sorted(r.benchmark for r in list_recipes() if (r.host, r.kind) == (name, kind)) for kind in KINDS]
        table[name] = ["<br>".join(benchmarks) or "–" for benchmarks in by_kind]
    listed = {row[0]: row[1:] for row in rows(section(text_of("recipes.md"), "Shipped recipes"))}
    expected = "\n".join(f"| `{name}` | {' | '.join(cells)} |" for name, cells in table.items())
    assert listed == table, f"the list should be\n{expected}"


def test_all_benchmarks_are_listed() -> None:
    text = text_of("benchmarks.md")
    listed = [row for row in rows(text) if row[0] in BENCHMARKS]
    assert sorted(listed) == sorted([str(cell) for cell in row.values()] for row in describe_benchmarks())
    for dataset in {BENCHMARKS[name].dataset for name in BENCHMARKS}:
        for file in dataset.files:
            assert f"`{Path(file).name if Path(file).is_absolute() else file}`" in text
        assert dataset.url is None or dataset.url in text


def test_the_table_says_which_hosts_learn_known_classes_again_or_train_classes_to_come() -> None:
    table = {
        row[0]: row[1:] for row in rows(section(text_of("hosts.md"), "Classes that come again, and classes to come"))
    }
    assert set(table) == set(HOSTS)
    for name, cells in table.items():
        host = quick_host(name, **small_settings(name))
        assert [cell == "yes" for cell in cells] == [host.can_revisit(), host.trains_future_classes()], name


def test_the_rule_for_imagenet_100() -> None:
    import numpy as np

    assert imagenet100_classes() == sorted(np.random.RandomState(1993).permutation(1000)[:100])
    assert "numpy.random.RandomState(1993).permutation(1000)" in section(text_of("benchmarks.md"), "ImageNet-100")


def test_all_sweeps_are_listed() -> None:
    expected = {}
    for name in shipped_sweeps():
        sweep = read_sweep(name)
        expected[name] = [str(len(plan(sweep, Path("out"), RunContext(None, "cpu", None)))), sweep.title]
    assert {row[0]: row[1:] for row in rows(section(text_of("sweeps.md"), "Shipped sweeps"))} == expected
    keys = {row[0] for row in rows(section(text_of("sweeps.md"), "Sweep"))}
    assert keys == {"title", "parts", *(field.name for field in dataclasses.fields(Part))}


def test_all_metrics_are_defined() -> None:
    text = text_of("metrics.md")
    for name in summarise([[90.0], [80.0, 85.0]], [1, 1]):
        assert f"`{name}`" in text


def test_the_speeds_are_those_measured() -> None:
    text = text_of("speed.md")
    file = re.search(r"`(speed/\S+\.json)`", text)
    assert file
    measured = json.loads((ROOT / file[1]).read_text(encoding="utf-8"))
    rates = {
        (s["host"] + " + flashback" * s["flashback"], str(s["batch_size"]), s["mode"]): s["images_per_second"]
        for s in measured["speeds"]
    }
    table = rows(section(text, "Measured"))
    assert {key[:2] for key in rates} == {(row[0], row[1]) for row in table}
    for name, batch, *cells in table:
        for mode, cell in zip(("eager", "captured", "fast"), cells, strict=False):
            rate = rates.get((name, batch, mode))
            assert cell == ("-" if rate is None else f"{rate:,.0f}")
    assert f"{measured['device']}, PyTorch {measured['versions']['torch']}, {measured['precision']}" in text


def outside(run: dict[str, Any]) -> str:
    return f"{100 * (1 - run['training_seconds'] / run['seconds']):.1f} % of the time outside training steps"


def test_the_whole_runs_are_those_measured() -> None:
    text = " ".join(text_of("speed.md").split())
    file = re.search(r"`(speed/\S+\.json)`", text)
    assert file
    folders = re.findall(r"`(results/controlled/\S+)`", text)
    run, cold = (json.loads((ROOT / folder / "run.json").read_text(encoding="utf-8")) for folder in folders)
    measured = json.loads((ROOT / file[1]).read_text(encoding="utf-8"))
    whole, portions = sorted(measured["packed"], key=lambda packed: packed["images_per_second"])
    assert (whole["portion"], portions["portion"]) == ("100", "25")
    for message in (
        f"Fisher information of 5,000 images takes {measured['parts']['fisher']:.1f} s",
        f"class means takes {measured['parts']['herding all images, class means']:.2f} s",
        f"{run['images']:,} images in {run['seconds']:.0f} s",
        f"{run['images'] / run['seconds']:,.0f} images/s over everything",
        f"over everything, {outside(run)}",
        f"took {cold['seconds']:.0f} s, {outside(cold)}",
        f"{portions['together_per_second']:,.0f} images/s in all",
        f"{portions['images_per_second']:,.0f} from the common start",
        f"it was {whole['together_per_second']:,.0f} and {whole['images_per_second']:,.0f}.",
    ):
        assert message in text


# ---------------------------------------------------------------- the site


def test_the_reference_names_what_exists() -> None:
    names = re.findall(r"^::: (\S+)$", text_of("api.md"), flags=re.MULTILINE)
    assert len(names) == len(set(names))
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert callable(getattr(importlib.import_module(module), attribute)), name
    public = {f"flashback.{name}" for name in flashback.__all__ if name.upper() != name}
    assert public <= set(names)


def test_the_reference_names_what_the_pages_import() -> None:
    listed = {name.rpartition(".")[2] for name in re.findall(r"flashback\.[\w.]+", text_of("api.md"))}
    for page in DOCS.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        for names in re.findall(r"^\s*from flashback[\w.]* import (.+)$", text, re.MULTILINE):
            missing = {name.split(" as ")[0].strip() for name in names.split(",")} - listed
            assert not missing, f"{page.name} imports what the reference does not list: {missing}"


def test_every_page_is_in_the_menu() -> None:
    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert sorted(leaves(menu)) == sorted(page.name for page in DOCS.glob("*.md"))


def leaves(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    inner = entry.values() if isinstance(entry, dict) else entry
    return [leaf for part in inner for leaf in leaves(part)]


def test_links_lead_somewhere() -> None:
    for page in DOCS.glob("*.md"):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"
