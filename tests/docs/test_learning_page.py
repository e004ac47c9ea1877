"""The story of learning.md runs as it is told, with its pictures."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from doc_pages import DOCS, blocks

from flashback.cli import main
from flashback.errors import FlashbackError
from flashback.hosts import HOSTS
from flashback.models import Learner
from flashback.training import build_host
from helpers import quick_config, revisiting_benchmark, small_settings

REFUSED = "# exit code 3"


@pytest.mark.slow
def test_the_story_of_a_shop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks(DOCS / "learning.md"):
        if block.language == "python":
            exec(compile(block.text, "learning.md", "exec"), names)
        for line in block.text.splitlines() if block.language == "bash" else ():
            words = line.partition("#")[0].split()
            if words[0] != "flashback":
                continue
            with pytest.raises(SystemExit) as end:
                main(words[1:])
            captured = capsys.readouterr()
            assert end.value.code == (3 if REFUSED in line else 0), f"{line}\n{captured.out}\n{captured.err}"
    history = Learner("shop").history()
    assert [version.decision for version in history] == ["accepted"] * 3 + ["refused"] + ["accepted"] * 8
    for picture in ("history", "confusion"):
        assert (tmp_path / f"{picture}.png").stat().st_size > 1000
        assert (DOCS / "images" / f"learning-{picture}.png").exists()


def test_the_page_leaves_no_pictures_unused() -> None:
    text = (DOCS / "learning.md").read_text(encoding="utf-8")
    assert all(picture.name in text for picture in (DOCS / "images").glob("learning-*"))


def test_the_page_names_the_hosts_that_learn_known_classes_again() -> None:
    text = (DOCS / "learning.md").read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith("| learn known classes again"))
    named = set(re.findall(r"`([^`]+)`", row)) - {"host.columns=seen"}
    benchmark, able = revisiting_benchmark(), set()
    for name in HOSTS:
        settings = {"host__columns": "seen"} if name == "lwf" else {}
        with suppress(FlashbackError):
            build_host(quick_config(name, **{**small_settings(name), **settings}), benchmark, "cpu")
            able.add(name)
    assert named == able - {"joint"}
