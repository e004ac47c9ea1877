"""docs/your-own-host.md: its code is saved and its commands are run; hosts from files and packages are loaded."""

from __future__ import annotations

import json
import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import flashback as fb
from flashback.cli import main
from flashback.errors import FlashbackError
from flashback.hosts import HOSTS, external
from flashback.hosts.external import load_host_file, load_installed_hosts
from flashback.metrics.accuracy import METRICS
from flashback.nets import NETS
from helpers import forgetting, quick_host, tiny_benchmark

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "your-own-host.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logit_anchor.py").write_text(blocks("python")[0])
    load_installed_hosts.cache_clear()
    yield tmp_path
    load_installed_hosts.cache_clear()


@pytest.mark.slow
def test_every_command_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(blocks("python")) == 1
    assert len(blocks("python")[0].splitlines()) <= 50
    commands = [shlex.split(line) for block in blocks("console") for line in block.splitlines()]
    assert " ".join(command[1] for command in commands) == (
        "compare run check check compare compare compare compare run list"
    )
    for name, code in re.findall(r'^```python title="(\w+.py)"\n(.*?)^```', PAGE, flags=re.MULTILINE | re.DOTALL):
        Path(name).write_text(code)
    for command in commands:
        with pytest.raises(SystemExit) as end:
            main(command[1:])
        assert end.value.code == 0, capsys.readouterr().err
    comparison = json.loads(Path("runs/logit-anchor/comparison.json").read_text())
    assert (comparison["failures"], comparison["equal_budget"]) == ({}, True)
    measured = {(row["setting"], row["metric"]) for row in comparison["rows"] if row["mean"]["flashback"] is not None}
    assert measured == {(s, m) for s in ("class_incremental", "task_incremental") for m in METRICS}
    for name in ("projected", "er", "wa", "wa-balanced"):
        comparison = json.loads(Path(f"runs/{name}/comparison.json").read_text())
        assert (comparison["failures"], comparison["equal_budget"]) == ({}, True)
    assert {field.name for field in fields(HOSTS["my-er"].Settings)} == {"name", "net", "memory_size", "minibatch"}
    budget = json.loads(Path("runs/wa-balanced/flashback/seed-0/run.json").read_text())["budget"]
    assert [entry["stage"] for entry in budget] == ["learn", "phase 1", "phase 2", "balance"]
    losses = [json.loads(line).get("losses", {}) for line in Path("runs/stronger/log.jsonl").read_text().splitlines()]
    assert {"task", "stability", "plasticity"} <= {name for terms in losses for name in terms}
    assert max(terms.get("plasticity", 0.0) for terms in losses) > 0
    assert "net: tiny\n" in Path("runs/tiny-net/config.yaml").read_text()
    assert re.search("tiny +Two convolutions and the mean over space", capsys.readouterr().out)


@pytest.mark.slow
def test_a_type_checker_knows_the_settings() -> None:
    mypy = pytest.importorskip("mypy.api")
    code = blocks("python")[0]
    use = "weight=self.settings.strength)"
    assert code.count(use) == 2
    Path("misspelt.py").write_text(code.replace(use, "weight=self.settings.strenght)", 1))
    options = [f"--config-file={ROOT / 'pyproject.toml'}", "--cache-dir=cache", "--no-color-output"]
    with pytest.MonkeyPatch.context() as around:
        around.setenv("MYPYPATH", str(ROOT / "src"))
        output, _, _ = mypy.run([*options, "logit_anchor.py", "misspelt.py"])
    errors = [line for line in output.splitlines() if ": error: " in line]
    assert len(errors) == 1, output
    assert re.fullmatch(r'misspelt\.py:\d+: error: "LogitAnchorSettings" has no attribute "strenght".*', errors[0])


def test_the_host_with_stored_logits_stores_them_for_classes_to_come() -> None:
    (code,) = re.findall(r'^```python title="der.py"\n(.*?)^```', PAGE, flags=re.MULTILINE | re.DOTALL)
    Path("der.py").write_text(code)
    assert load_host_file("der.py") == ["my-der"]
    host = quick_host("my-der", tiny_benchmark((2, 2)), host__memory_size=20, host__minibatch=8)
    fb.train(host)
    stored = slice(host.memory.filled)
    of_first_task = host.memory.labels[stored] < 2
    assert 0 < of_first_task.sum() < len(of_first_task)
    assert (host.memory["targets"][stored][of_first_task, 2:] != 0).all()


def test_runs_of_changed_code_are_not_reused(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--set", "benchmark.tasks=2", "--set", "training.epochs=1", "--set", "flashback.second_epochs=1"]
    command = ["compare", "logit-anchor", "--host-file", "logit_anchor.py", "--seeds", "1", "--out", "runs/a", *small]

    def run_again() -> object:
        """Run the command as a new process would: the host file is loaded again."""
        for name in [name for name in sys.modules if name.startswith("_flashback_host_")]:
            del sys.modules[name]
        with forgetting(HOSTS), pytest.raises(SystemExit) as end:
            main(command)
        return end.value.code

    assert run_again() == 0
    run = json.loads(Path("runs/a/host/seed-0/run.json").read_text())
    assert re.fullmatch("[0-9a-f]{16}", run["must_match"]["code"])
    assert run_again() == 0
    assert "Reused: 2 finished runs" in capsys.readouterr().out
    Path("logit_anchor.py").write_text(blocks("python")[0].replace(" = 0.1  #", " = 0.1    #"))
    assert run_again() == 2
    assert "was made with other code of this host or net" in capsys.readouterr().err


def test_a_host_of_the_package_records_no_external_code() -> None:
    assert external.external_code("icarl", "resnet18") == external.external_code("icarl", "") == {}


def test_a_file_may_register_a_net_alone() -> None:
    text = "from flashback import NETS\n@NETS.register('mine')\ndef mine(image_shape): ...\n"
    Path("net.py").write_text(text)
    assert load_host_file("net.py") == ["mine"]
    with pytest.raises(FlashbackError, match="unknown net 'mane'; did you mean 'mine'"):
        NETS["mane"]


def test_a_file_is_loaded_once(workplace: Path) -> None:
    assert load_host_file("logit_anchor.py") == ["logit-anchor"]
    host = HOSTS["logit-anchor"]
    assert load_host_file(workplace / "logit_anchor.py") == ["logit-anchor"]
    assert HOSTS["logit-anchor"] is host
    Path("other.py").write_text(blocks("python")[0].replace('"logit-anchor"', '"other"'))
    assert load_host_file("other.py") == ["other"]
    Path("copy.py").write_text(blocks("python")[0])
    with pytest.raises(FlashbackError, match="is taken"):
        load_host_file("copy.py")


def install(folder: Path, package: str, entry: str) -> None:
    """Write the metadata that pip installs for a package with an entry point."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{external.GROUP}]\n{entry}\n")


def test_installed_packages_offer_hosts(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group, line = blocks("toml")[0].splitlines()
    assert group == f'[project.entry-points."{external.GROUP}"]'
    name, module = (part.strip(' "') for part in line.split("="))
    (workplace / "my_package").mkdir()
    (workplace / f"{module.replace('.', '/')}.py").write_text(blocks("python")[0])
    install(workplace, "my_package", f"{name} = {module}")
    install(workplace, "broken_package", "other = no_module_of_this_name")
    monkeypatch.syspath_prepend(workplace)
    assert name not in HOSTS
    with pytest.warns(UserWarning, match="no_module_of_this_name' cannot be used \\(ModuleNotFoundError"):
        load_installed_hosts()
    assert HOSTS[name].__module__ == module
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_installed_hosts()  # imported and warned about only once


def test_a_broken_package_does_not_stop_the_command_line(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(workplace, "broken_package", "other = no_module_of_this_name")
    monkeypatch.syspath_prepend(workplace)
    with pytest.raises(SystemExit) as end:
        main(["list", "hosts"])
    captured = capsys.readouterr()
    assert end.value.code == 0
    assert "icarl" in captured.out
    assert captured.err.startswith("warning: the hosts of 'no_module_of_this_name' cannot be used")
    assert captured.err.count("\n") == 1
