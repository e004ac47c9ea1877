"""Files with hosts and nets of one's own: several of them, what lies beside them, and what is wrong with them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import flashback as fb
from flashback import bench
from flashback.cli import main
from flashback.errors import FlashbackError
from flashback.hosts import HOSTS, Host
from flashback.hosts.external import external_code, find_hosts, load_host_file
from flashback.nets import NETS
from helpers import forgetting, tiny_benchmark

OWN = """
from flashback.hosts import HOSTS
from flashback.hosts.lwf_mc import LwFMC
from weights_of_mine import WEIGHT

@HOSTS.register("{name}")
class Own(LwFMC):
    def losses(self, step):
        return {{name: WEIGHT * term for name, term in super().losses(step).items()}}
"""
NET = """
from flashback.nets import NETS
from flashback.nets.small import SmallCNN

@NETS.register("own-net")
def own(image_shape):
    return SmallCNN(image_shape[0])
"""
SMALL = {"benchmark.tasks": 2, "training.epochs": 2, "training.batch_size": 500, "flashback.epochs": 1}


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of one's own beside which nothing lies that could be imported, and no module of another test."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "weights_of_mine.py").write_text("WEIGHT = 0.5\n")
    for name in ("own", "other"):
        (folder / f"{name}.py").write_text(OWN.format(name=name))
    (folder / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield folder
    assert sys.path == path
    forget_modules(folder)


def forget_modules(folder: Path) -> None:
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(folder):
            del sys.modules[name]


# ---------------------------------------------------------------- several files


def test_one_file_or_several(workplace: Path) -> None:
    files = [workplace / f"{name}.py" for name in ("own", "other", "net")]
    find_hosts(str(files[0]))
    assert "own" in HOSTS
    assert "other" not in HOSTS
    find_hosts(files)
    assert "other" in HOSTS
    assert "own-net" in NETS


@pytest.mark.slow
def test_processes_find_several_files_and_what_lies_beside_them(workplace: Path) -> None:
    files = [workplace / "own.py", workplace / "net.py"]
    settings = {**SMALL, "host.net": "own-net"}
    comparison = fb.compare("own", seeds=[0], out="out", settings=settings, jobs=2, device="cpu", host_file=files)
    assert comparison.failures == {}
    assert comparison.equal_budget


@pytest.mark.parametrize(
    "command",
    [
        "list hosts",
        "show own",
        pytest.param("bench own --no-flashback --batch 4", marks=pytest.mark.slow),
    ],
)
def test_every_command_takes_several(
    workplace: Path, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "ON_CPU", replace(bench.ON_CPU, per_class=10, seconds=0.01))
    files = [word for name in ("own", "other") for word in ("--host-file", str(workplace / f"{name}.py"))]
    with pytest.raises(SystemExit) as end:
        main([*command.split(), *files])
    captured = capsys.readouterr()
    assert end.value.code == 0, captured.err
    assert "own" in captured.out
    assert "other" in HOSTS


# ---------------------------------------------------------------- what a file registers


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("from flashback.hosts import HOSTS\nHOSTS.register('renamed')(HOSTS['icarl'])\n", ["renamed"]),
        ("import other\n", ["other"]),
        ("import other, net\n", ["other", "own-net"]),
        (
            "from functools import partial\nfrom flashback.nets import NETS, small\n"
            "NETS.register('made')(partial(small.SmallCNN))\n",
            ["made"],
        ),
    ],
)
def test_all_that_is_registered_meanwhile_counts(workplace: Path, text: str, names: list[str]) -> None:
    (workplace / "first.py").write_text(text)
    assert load_host_file(workplace / "first.py") == names
    assert load_host_file(workplace / "first.py") == names  # also when it is not run again


def test_a_file_that_was_run_is_not_run_again_by_one_that_imports_it(workplace: Path) -> None:
    (workplace / "next.py").write_text("from own import Own, HOSTS\n@HOSTS.register('next')\nclass Next(Own): ...\n")
    find_hosts([workplace / "own.py", workplace / "next.py"])
    assert issubclass(HOSTS["next"], HOSTS["own"])
    assert "own" not in sys.modules  # a name that another folder may have too


# ---------------------------------------------------------------- defined again


def test_a_cell_of_a_notebook_may_be_run_again() -> None:
    with forgetting(HOSTS):
        classes = [type("Mine", (HOSTS["icarl"],), {"__module__": "__main__"}) for _ in range(2)]
        for host in classes:
            HOSTS.register("mine")(host)
        assert HOSTS["mine"] is classes[1]
        for name in ("mine", "icarl"):
            with pytest.raises(FlashbackError, match=f"the host name '{name}' is taken"):
                HOSTS.register(name)(type("Other", (classes[0],), {"__module__": "__main__"}))


def test_a_file_and_a_notebook_take_turns_with_the_same_class(workplace: Path) -> None:
    """The class of a cell, moved to a file, then worked on in the cell again."""

    def cell(name: str = "Own") -> type[Host]:
        return HOSTS.register("own")(type(name, (HOSTS["lwf-mc"],), {"__module__": "__main__"}))

    with forgetting(HOSTS), pytest.MonkeyPatch.context() as notebook:
        notebook.delattr(sys.modules["__main__"], "__file__", raising=False)
        cell()
        load_host_file(workplace / "own.py")
        of_the_file = HOSTS["own"]
        assert external_code("own", "smallcnn").keys() == {"code"}
        assert cell() is HOSTS["own"] is not of_the_file
        load_host_file(workplace / "own.py")
        assert HOSTS["own"] is of_the_file
        with pytest.raises(FlashbackError, match="the host name 'own' is taken"):
            cell("Other")
        with pytest.raises(FlashbackError, match="the host name 'lwf-mc' is taken"):
            HOSTS.register("lwf-mc")(type("LwFMC", (HOSTS["lwf-mc"],), {"__module__": "__main__"}))


def test_a_file_that_failed_half_way_may_be_mended(workplace: Path) -> None:
    whole = (workplace / "own.py").read_text()
    (workplace / "own.py").write_text(whole + "1 / 0\n")
    with forgetting(HOSTS):
        with pytest.raises(FlashbackError, match="ZeroDivisionError"):
            load_host_file(workplace / "own.py")
        (workplace / "own.py").write_text(whole)
        assert load_host_file(workplace / "own.py") == ["own"]


@pytest.mark.parametrize(
    ("edited", "text"),
    [
        ("own.py", OWN.format(name="own") + "NEW = 1\n"),
        ("own.py", OWN.format(name="own").replace("class Own(", "class Renamed(")),
        ("weights_of_mine.py", "WEIGHT = 2.0\n"),
    ],
)
def test_an_edited_file_is_run_again(workplace: Path, edited: str, text: str) -> None:
    (workplace / "own.py").write_text((workplace / "own.py").read_text() + NET.replace("own-net", "edited-net"))
    with forgetting(HOSTS, NETS):
        load_host_file(workplace / "own.py")
        before, net = HOSTS["own"], NETS["edited-net"]
        (workplace / edited).write_text(text)
        expected = ["edited-net", "own"] if edited == "weights_of_mine.py" else ["own"]
        assert sorted(load_host_file(workplace / "own.py")) == expected
        assert HOSTS["own"] is not before
        assert ("edited-net" in NETS) == ("edited-net" in expected)
        assert "edited-net" not in NETS or NETS["edited-net"] is not net
        weight = sys.modules["weights_of_mine"].WEIGHT
        assert weight == (2.0 if edited == "weights_of_mine.py" else 0.5)


def test_a_run_is_continued_and_loaded_with_the_file_of_its_host(workplace: Path) -> None:
    class Stop(Exception):  # noqa: N818 - not an error
        pass

    def stop(event: Mapping[str, Any]) -> None:
        if event["event"] == "evaluation":
            raise Stop

    with forgetting(HOSTS):
        find_hosts(workplace / "own.py")
        with pytest.raises(Stop):
            fb.run(fb.configure("own", flashback=True, settings=SMALL), out="out", device="cpu", observers=[stop])
    for continued in (fb.resume, fb.load_trained):
        forget_modules(workplace)
        with forgetting(HOSTS):
            with pytest.raises(FlashbackError, match="unknown host 'own'"):
                continued("out", device="cpu")
            continued("out", device="cpu", host_file=workplace / "own.py")


@pytest.mark.slow
def test_a_script_may_be_the_file_of_its_own_hosts(workplace: Path) -> None:
    script = workplace / "script.py"
    script.write_text(
        OWN.format(name="own")
        + "if __name__ == '__main__':\n    import flashback as fb\n"
        + f"    fb.compare('own', seeds=[0], out='out', settings={SMALL}, jobs=2, device='cpu', host_file=__file__)\n"
    )
    subprocess.run([sys.executable, str(script)], check=True, cwd=workplace)
    assert len(list(workplace.glob("out/*/seed-0/results.json"))) == 2


# ---------------------------------------------------------------- the code of a run


@pytest.mark.parametrize(
    ("changed", "differs"),
    [("own.py", True), ("weights_of_mine.py", True), ("deeper/inner.py", True), ("net.py", False)],
)
def test_the_code_of_a_run_is_the_file_and_what_it_imports(workplace: Path, changed: str, differs: bool) -> None:
    (workplace / "deeper").mkdir()
    (workplace / "deeper" / "inner.py").write_text("FACTOR = 2\n")
    (workplace / "deeper" / "__init__.py").write_text("from .inner import FACTOR\n")
    (workplace / "weights_of_mine.py").write_text(
        "from deeper import FACTOR\nimport weights_of_mine\nWEIGHT = FACTOR\n"
    )
    codes = []
    for text in ("", "# changed\n"):
        with (workplace / changed).open("a") as file:
            file.write(text)
        with forgetting(HOSTS, NETS):
            load_host_file(workplace / "own.py")
            codes.append(external_code("own", "smallcnn"))
        forget_modules(workplace)
    assert codes[0].keys() == {"code"}
    assert (codes[0] != codes[1]) == differs


def test_a_host_has_the_same_code_whoever_imports_it(workplace: Path) -> None:
    (workplace / "first.py").write_text("import own\n")
    codes = []
    for name in ("own", "first"):
        with forgetting(HOSTS, NETS):
            load_host_file(workplace / f"{name}.py")
            codes.append(external_code("own", "smallcnn"))
        forget_modules(workplace)
    assert codes[0] == codes[1] != {}


def test_a_method_of_the_package_under_another_name_has_the_code_of_its_file(workplace: Path) -> None:
    (workplace / "first.py").write_text("from flashback.hosts import HOSTS\nHOSTS.register('mine')(HOSTS['icarl'])\n")
    load_host_file(workplace / "first.py")
    assert external_code("mine", "smallcnn").keys() == {"code"}
    assert external_code("icarl", "smallcnn") == {}


# ---------------------------------------------------------------- what is wrong with a file


@pytest.mark.parametrize(
    ("text", "beside", "message"),
    [
        ("\n\nx = 1 / 0\n", "", r"ZeroDivisionError: division by zero; line 3 of first\.py\)"),
        ("def f():\n    return y\nf()\n", "", r"NameError: .*; line 2 of first\.py\)"),
        ("import beside\n", "\nx = {}['a']\n", r"KeyError: 'a'; line 2 of beside\.py\)"),
        ("import beside\n", "\nx = (\n", r"syntax error in line 2 of beside\.py: .*\)"),
        ("x = (\n", "", r"syntax error in line 1 of first\.py: .*\)"),
        ("import torch\ntorch.zeros(2).view(3)\n", "", r"RuntimeError: .*; line 2 of first\.py\)"),
        (
            "from flashback import Host\nclass Own(Host):\n    def __init__(self): ...\n",
            "",
            r"Own defines __init__, .* build\(self\), after super\(\)\.build\(\); line 2 of first\.py\)",
        ),
    ],
)
def test_the_line_is_named(workplace: Path, text: str, beside: str, message: str) -> None:
    (workplace / "first.py").write_text(text)
    (workplace / "beside.py").write_text(beside)
    with pytest.raises(FlashbackError, match=rf"--host-file .*first\.py cannot be used \({message}$"):
        load_host_file(workplace / "first.py")


# ---------------------------------------------------------------- a run that other code began


STOPPED = {"benchmark.tasks": 2, "training.epochs": 2, "training.batch_size": 500, "checkpoint.epochs": 1}


def stopped_after_a_task(folder: Path, host_file: Path) -> None:
    """A run of the host of a file, stopped once its first task is learned."""

    def stop(event: Mapping[str, Any]) -> None:
        if event["event"] == "evaluation":
            raise ZeroDivisionError

    find_hosts(host_file)
    config = fb.configure("own", settings=STOPPED)
    with pytest.raises(ZeroDivisionError):
        fb.run(config, out=folder, observers=[stop])


@pytest.mark.slow
def test_an_unfinished_run_of_other_code_starts_anew_and_only_resume_goes_on(workplace: Path, tmp_path: Path) -> None:
    path = workplace / "own.py"
    for name in ("again", "resumed"):
        stopped_after_a_task(tmp_path / name, path)
    (workplace / "weights_of_mine.py").write_text("WEIGHT = 2.0\n")
    forget_modules(workplace)
    find_hosts(path)
    with pytest.warns(UserWarning, match="began with other code of its host or net and starts again"):
        again = fb.run(fb.configure("own", settings=STOPPED), out=tmp_path / "again")
    fresh = fb.run(fb.configure("own", settings=STOPPED), out=tmp_path / "fresh")
    assert again.as_dict() == fresh.as_dict()
    with pytest.warns(UserWarning, match=r"continues in another environment \(code\)"):
        resumed = fb.resume(tmp_path / "resumed")
    assert resumed.as_dict() != fresh.as_dict()
    for name, changed in {"again": [], "fresh": [], "resumed": ["code"]}.items():
        assert json.loads((tmp_path / name / "run.json").read_text())["changed_on_resume"] == changed


# ---------------------------------------------------------------- what is forgotten most easily


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "class Own(Host):\n    def build(self): self.extra = 1\n",
            r"Own\.build does not set self\.net; call super",
        ),
        (
            "class Own(Host):\n    class Settings: strength: float = 1.0\n",
            "Settings is not a settings class; let it inherit",
        ),
    ],
)
def test_what_is_left_out_of_a_host_is_named(text: str, message: str, tmp_path: Path) -> None:
    def make() -> None:
        namespace: dict[str, Any] = {"Host": Host}
        exec(text, namespace)
        HOSTS.register("own")(namespace["Own"])
        fb.build_host("own", tiny_benchmark())

    with forgetting(HOSTS), pytest.raises(FlashbackError, match=message):
        make()
