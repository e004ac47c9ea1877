"""Optional packages that are missing or broken: one sentence, with commands that can be followed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flashback.errors import FlashbackError, import_extra

Command = Callable[..., tuple[int, str, str]]
EXTRAS = {"timm": ["--set", "host.net=timm:resnet10t"], "wandb": ["--track", "wandb"], "mlflow": ["--track", "mlflow"]}


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_missing_package(flashback: Command, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, extra, None)
    code, out, err = flashback("run", "icarl", *EXTRAS[extra])
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"needs the package {extra}; install it with pip install 'flashback-cl[{extra}]' or, in a clone," in err
    assert f"pip install -e '.[{extra}]'" in err


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (
            "RuntimeError('operator torchvision::nms\\ndoes not exist')",
            "RuntimeError: operator torchvision::nms does not",
        ),
        ("ImportError('half of it')", "ImportError: half of it"),
    ],
)
def test_a_package_that_cannot_be_imported(
    flashback: Command, workplace: Path, monkeypatch: pytest.MonkeyPatch, problem: str, message: str
) -> None:
    (workplace / "timm.py").write_text(f"raise {problem}\n")
    monkeypatch.syspath_prepend(str(workplace))
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    code, out, err = flashback("run", "icarl", *EXTRAS["timm"])
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"timm, which is installed but cannot be imported ({message}" in err
    assert "install compatible versions" in err


def test_a_package_that_is_there_is_given() -> None:
    assert import_extra("json", "json", "this needs json") is sys.modules["json"]
    with pytest.raises(FlashbackError, match=r"^that needs it; install it"):
        import_extra("flashback_nothing_of_this_name", "none", "that needs it")


def test_the_extras_exist() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert {*EXTRAS, "tensorboard", "tune"} <= set(project["optional-dependencies"])
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    for extra in (*EXTRAS, "tensorboard", "tune"):
        assert f"`{extra}`" in readme
