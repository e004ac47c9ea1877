"""Data that are not there: said once, before anything is made or trained."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from flashback import load_trained
from flashback.benchmarks import BENCHMARKS
from flashback.benchmarks.load import fetch_files
from flashback.errors import FlashbackError
from flashback.records import read_record
from flashback.reports import read_report
from flashback.training.trainer import Trainer

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "run", lambda self: pytest.fail("a run was started"))


@pytest.mark.parametrize("command", ["run icarl", "compare icarl", "sweep own.yaml"])
@pytest.mark.parametrize("benchmark", ["split-cifar10", "split-fashion-mini"])
def test_a_data_folder_that_is_not_there_is_refused_and_not_made(
    flashback: Command, workplace: Path, no_training: None, command: str, benchmark: str
) -> None:
    (workplace / "own.yaml").write_text(f"{{hosts: [icarl], benchmarks: [{benchmark}], seeds: [0, 1]}}")
    more = [] if command.startswith("sweep") else ["--benchmark", benchmark]
    answer = flashback(*command.split(), *more, "--data", "mistyped", "--out", "out")
    sentence = "error: there is no data folder mistyped; check the path, or make the folder\n"
    assert answer == (2, "", sentence)
    assert sorted(path.name for path in workplace.iterdir()) == ["own.yaml"]


def test_the_cache_folder_is_made(workplace: Path, monkeypatch: pytest.MonkeyPatch, served: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(workplace / "cache"))
    monkeypatch.delenv("FLASHBACK_DATA", raising=False)
    assert fetch_files(replace(BENCHMARKS["split-cifar10"].dataset, url=served, md5=MD5), None).exists()
    assert (workplace / "cache" / "flashback" / "cifar-10-binary.tar.gz").read_bytes() == bytes(1_500_000)


MD5 = "e27e438d145b668c1628c713ff1b847a"  # of as many zeros


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "archive").write_bytes(bytes(1_500_000))
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/archive"
        server.shutdown()


def test_the_size_is_said_before_a_download(
    workplace: Path, served: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = replace(BENCHMARKS["split-cifar10"].dataset, url=served, md5="0" * 32)
    with pytest.raises(FlashbackError, match="hash"):
        fetch_files(dataset, workplace)
    lines = [line for line in capsys.readouterr().err.splitlines() if served in line]
    assert lines == [f"downloading {served}, 1.5 MB, into {workplace}"]


def test_what_cannot_be_fetched_is_one_line_for_a_whole_sweep(
    flashback: Command, workplace: Path, monkeypatch: pytest.MonkeyPatch, no_training: None
) -> None:
    (workplace / "empty").mkdir()
    for scheme in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(scheme, "http://127.0.0.1:9")  # nobody answers there
    code, out, err = flashback("sweep", "baselines", "--data", "empty", "--out", "out")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: the data of cifar10 are missing; put cifar10.npz or ")
    assert not (workplace / "out").exists()


def test_an_arm_that_cannot_be_is_left_out_with_a_line(flashback: Command, workplace: Path) -> None:
    settings = "{training.epochs: 1, training.batch_size: 500, benchmark.tasks: 2}"
    (workplace / "own.yaml").write_text(f"{{hosts: [finetune], settings: {settings}}}")
    code, out, _ = flashback("sweep", "own.yaml", "--out", "out", "--device", "cpu")
    assert code == 0
    assert "1 of 1 runs done" in out
    assert [line for line in out.splitlines() if "flashback for finetune" in line]
    assert len(re.findall(r"^  finetune .*\s1\s+\d+\.\d\d ", out, re.MULTILINE)) == 2  # in both settings


def test_data_of_ones_own_are_found_in_the_data_folder(
    flashback: Command, bare: list[str], workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [word.replace("[2,2,2]", "2") for word in bare]  # to count the classes, the file is looked at
    assert flashback("run", "finetune", "--out", "out", *words)[0] == 0
    (workplace / "elsewhere").mkdir()
    monkeypatch.chdir(workplace / "elsewhere")
    code, _, err = flashback("run", "../out/config.yaml", "--out", "again")
    assert (code, err) == (
        2,
        "error: there is no file tiny.npz; check the path, or name the folder it is in (data, --data)\n",
    )
    assert flashback("run", "../out/config.yaml", "--out", "again", "--data", workplace)[0] == 0
    assert flashback("run", "finetune", "--out", "anew", "--data", workplace, *words)[0] == 0
    first, again, anew = (read_record(path) for path in ("../out", "again", "anew"))
    assert first.results == again.results == anew.results
    assert first.config == anew.config
    assert flashback("show", "finetune", "--data", workplace, *words)[0] == 0
    both = ["--seeds", "1", "--out", "both", "--set", "flashback.epochs=1"]
    assert flashback("compare", "lwf-mc", *both, "--data", workplace, *words)[0] == 0
    (workplace / "elsewhere" / "own.yaml").write_text(
        "{hosts: [finetune], arms: [host], benchmarks: [tiny.npz], "
        "settings: {benchmark.sizes: 2, training.epochs: 1, training.batch_size: 500}}"
    )
    assert flashback("sweep", "own.yaml", "--out", "many", "--data", workplace, "--dry-run")[0] == 0
    assert flashback("sweep", "own.yaml", "--out", "many", "--data", workplace)[0] == 0


@pytest.mark.slow
def test_seeds_average_over_orders_of_classes(flashback: Command, tiny: list[str]) -> None:
    order = ["--set", "benchmark.order=seed"]
    assert flashback("compare", "lwf-mc", "--seeds", "2", "--out", "out", *tiny, *order)[0] == 0
    orders = {
        (arm, seed): read_record(Path("out", arm, f"seed-{seed}")).run["class_order"]
        for arm in ("host", "flashback")
        for seed in (0, 1)
    }
    for seed in (0, 1):
        expected = np.random.RandomState(seed).permutation(6).tolist()
        assert orders["host", seed] == orders["flashback", seed] == expected
    assert orders["host", 0] != orders["host", 1]
    (pairing,) = read_report("out").pairings
    assert pairing.common_seeds == [0, 1]
    assert flashback("resume", "out/host/seed-0")[0] == 2  # finished
    assert load_trained("out/flashback/seed-1").benchmark.order == tuple(orders["host", 1])
