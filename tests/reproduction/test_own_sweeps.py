"""The sweeps of this project's own tables: what they plan, and which of it results/ holds."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flashback import Flashback
from flashback.config import to_dict
from flashback.hosts import HOSTS
from flashback.recipes import configure
from flashback.recipes.resolving import config_from_dict
from flashback.studies.jobs import Job, RunContext, is_finished
from flashback.studies.sweeps import plan, read_sweep
from helpers import tiny_benchmark

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
SWEEPS = ROOT / "reproduction" / "sweeps"


def planned(name: str, out: Path = Path()) -> list[Job]:
    return plan(read_sweep(SWEEPS / f"{name}.yaml"), out, RunContext(None, "cpu", None))


def test_results_hold_records_alone() -> None:
    names = {path.name for path in RESULTS.rglob("*") if path.is_file()}
    assert names <= {"README.md", "config.yaml", "run.json", "results.json", "cka.json"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in SWEEPS.iterdir()))
def test_every_record_of_a_sweep_counts_as_done(name: str) -> None:
    records = len(list((RESULTS / name).rglob("results.json")))
    assert sum(map(is_finished, planned(name, RESULTS / name))) == records > 0


def test_the_readme_names_every_folder_and_its_sweep() -> None:
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `([\w-]+)", text, flags=re.MULTILINE))
    assert {path.name for path in RESULTS.iterdir() if path.is_dir()} == named
    files = set(re.findall(r"reproduction/sweeps/([a-z][\w-]+)\.yaml", text))
    assert files == {path.stem for path in SWEEPS.iterdir()}


def test_the_controlled_table_is_planned_whole() -> None:
    jobs = planned("controlled")
    cells: dict[tuple[str, str], list[int]] = {}
    for job in jobs:
        host, training, flashback = (job.config[part] for part in ("host", "training", "flashback"))
        cells.setdefault((host["name"], job.arm), []).append(job.seed)
        assert (job.config["recipe"], host["net"], training["epochs"]) == ("controlled", "resnet18", 60)
        assert job.config["benchmark"] == {
            "name": "split-cifar100", "order": None, "sizes": None, "tasks": None, "validation": 0.0
        }  # fmt: skip
        assert host.get("memory_size", 2000) == 2000
        if job.arm == "flashback":
            assert (flashback["epochs"], flashback["second_epochs"]) == (5 if host["name"] == "oewc" else 10, None)
    three, two, one = [123, 246, 369], [123, 246], [123]
    both = dict.fromkeys(("icarl", "lwf-mc", "oewc", "lucir"), three) | {"xder": two}
    expected = {(host, arm): seeds for host, seeds in both.items() for arm in ("host", "flashback")}
    assert cells == expected | {(host, "host"): one for host in ("finetune", "joint", "der++")}
    assert jobs[-1].config["host"]["name"] == "xder"  # by far the dearest


def test_the_differences_are_planned_one_at_a_time() -> None:
    jobs = planned("icarl-differences")
    variants = []
    for job in jobs:
        training, flashback = job.config["training"], job.config["flashback"]
        epochs = (training["epochs"], training["first_epochs"], flashback["second_epochs"])
        variants.append((job.arm, training["schedule"], training["first_schedule"], *epochs))
    assert variants == [
        ("host", "none", None, 60, None, None),
        ("host", "step", "none", 60, None, None),
        ("host", "none", None, 70, 60, None),
        ("flashback", "none", "none", 60, None, None),
        ("flashback", "step", "none", 60, None, None),
        ("flashback", "step", "none", 60, None, 60),
        ("host", "step", "none", 50, 60, None),
    ]


def test_the_improved_recipe_of_lucir_is_what_was_tested() -> None:
    tested = {
        job.arm: job.config for job in planned("forms") if job.config["host"]["name"] == "lucir" and job.seed == 123
    }
    for arm, config in tested.items():
        options = {"recipe": "improved", "flashback": arm == "flashback", "seed": 123}
        improved = to_dict(configure("lucir", "split-cifar100", **options))
        assert {**improved, "recipe": "controlled"} == {**config, "recipe": "controlled"}


def test_every_form_stands_beside_its_host_at_equal_epochs() -> None:
    jobs = planned("forms")
    seeds: dict[tuple[str, str, str], list[int]] = {}
    for job in jobs:
        seeds.setdefault((job.config["host"]["name"], job.arm, job.folder.parts[-3]), []).append(job.seed)
        config = config_from_dict(job.config)
        assert (config.training.epochs, config.flashback.equal_budget(60)) == (60, True)
    forms = [(host, arm) for host, arm, choice in seeds if choice != "recipe"]
    assert sorted(forms) == [("der++", "host"), ("lucir", "flashback"), ("lwf-mc", "flashback"), ("oewc", "host")]
    assert [host for host, _, choice in seeds if choice == "recipe"] == ["lucir", "lwf-mc", "der++", "oewc"]
    assert all(seed_list == [123, 246, 369, 492, 615] for seed_list in seeds.values())


def test_every_form_of_the_scan_suits_its_host() -> None:
    """Each trains 20 epochs a task, on held-out images, and no host refuses its form."""
    jobs = plan(read_sweep(SWEEPS.parent / "forms-scan.yaml"), Path(), RunContext(None, "cpu", None))
    assert len(jobs) == 56
    assert {job.config["benchmark"]["validation"] for job in jobs} == {0.1}
    forms: dict[str, int] = {}
    for job in jobs:
        config = config_from_dict(job.config)
        assert config.flashback.equal_budget(20)
        assert config.training.epochs == 20
        if job.seed == 123 and job.arm == "flashback":
            small = replace(config, host=replace(config.host, net="smallcnn"))
            Flashback(HOSTS[config.host.name](small, tiny_benchmark((2, 2), per_class=1), torch.device("cpu")))
            forms[config.host.name] = forms.get(config.host.name, 0) + 1
    assert forms == {"icarl": 7, "lucir": 2, "lwf-mc": 9, "der++": 2, "oewc": 2}
