"""Bad input gets one clear sentence and exit code 2, before any training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from flashback.training.trainer import Trainer

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(self: Trainer) -> None:
        pytest.fail("a run was started in spite of bad input")

    monkeypatch.setattr(Trainer, "run", train)


def refused(answer: tuple[int, str, str], *words: str) -> None:
    code, out, err = answer
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("run iCaRL", ["unknown host 'iCaRL'; did you mean 'icarl'?"]),
        (
            "run icarl --lr 0.1",
            ["No such option", "--lr", "A setting is given by its key, such as --set"],
        ),
        ("report --lr 3", ["No such option"]),
        ("run icral", ["unknown host 'icral'", "did you mean 'icarl'?"]),
        (
            "compare icral",
            ["unknown host 'icral'", "import a file with your own hosts first, on the command line with --host-"],
        ),
        ("run nobody", ["unknown host 'nobody'; known: afec, ", "on the command line with --host-file"]),
        ("run icarl --benchmark split-fashion-min", ["did you mean 'split-fashion-mini'?"]),
        ("run icarl --set training.epoch=3", ["unknown key 'training.epoch'", "did you mean 'training.epochs'?"]),
        ("run icarl --set training.foo=3", ["unknown key 'training.foo'; known: training.average, "]),
        ("run icarl --set host.memorysize=3", ["did you mean 'host.memory_size'?"]),
        ("run icarl --set batch_size=3", ["unknown key 'batch_size'; did you mean 'training.batch_size'?"]),
        ("run icarl --set memory_size=3", ["unknown key 'memory_size'; did you mean 'host.memory_size'?"]),
        ("run icarl --set epochs=3", ["'training.epochs' or 'flashback.epochs'"]),
        ("run icarl --set host.net=resnet50", ["unknown net 'resnet50'", "timm:resnet50"]),
        ("run icarl --set benchmark.sizes=2,2,6", ["benchmark.sizes", "not '2,2,6'"]),
        (
            "run icarl --set benchmark.sizes=3",
            ["equal tasks of 3; give a size among 1, 2, 5, 10"],
        ),
        ("run icarl --set benchmark.sizes=2.5", ["a list such as [4, 3, 3], a number such as 2", "not 2.5\n"]),
        ("run icarl --set benchmark.sizes=5by2", ["a text such as 5x2 or 50+5x10, not '5by2'"]),
        ("run icarl --set benchmark.sizes=4x2", ["sum to 8", "10 classes"]),
        ("run icarl --benchmark missing.npz --set benchmark.sizes=2", ["there is no file missing.npz"]),
        ("run icarl --set training.views=[none,crop]", ["cannot be combined with other views"]),
        (
            "run icarl --set training.views=crop,flip",
            ["must be a list, not 'crop,flip'; write [crop,flip]"],
        ),
        ("run icarl --set training.milestones=late", ["training.milestones must be a list, not 'late'\n"]),
        ("run .", [". is a folder", "`flashback resume .`", "`flashback run ./config.yaml`"]),
        ("run icarl --set trainin.epochs=3", ["did you mean 'training'?"]),
        ("run icarl --set training.lr.x=3 --set training.lr=1", ["training.lr"]),
        ("run icarl --set training.epochs", ["key=value"]),
        ("run icarl --set training.epochs=many", ["training.epochs", "a whole number", "'many'"]),
        ("run icarl --set training.epochs=2.5", ["training.epochs", "a whole number"]),
        ("run icarl --set training.epochs=0", ["training.epochs must be at least 1"]),
        ("run icarl --set training.lr=nan", ["training.lr", "finite"]),
        ("run icarl --set training.nesterov=maybe", ["training.nesterov", "true or false"]),
        ("run icarl --set training.schedule=steps", ["none, step, cosine"]),
        ("run icarl --set training.optimiser=Adam", ["sgd, adam, adamw", "'Adam'"]),
        (
            "run icarl --set training.optimiser=adam --set training.momentum=0.9",
            ["training.momentum and training.nesterov do nothing with adam; set training.momentum=0 and"],
        ),
        ("run icarl --set training.eps=1e-6", ["training.betas and training.eps do nothing with sgd"]),
        ("run icarl --set training.milestones=0.5", ["training.milestones", "a list"]),
        ("run icarl --set training.lr=!!python/name:os.system", ["the value of training.lr", "not valid YAML"]),
        ("run icarl --flashback --set training.epochs=2 --set flashback.epochs=2", ["E1 = 2", "second_epochs"]),
        ("run icarl --flashback --set training.epochs=1", ["phase 2 of the host's 1 epoch; lower it"]),
        ("compare icarl --set training.epochs=2 --set flashback.epochs=3", ["E1 = 3", "second_epochs"]),
        (
            "run icarl --flashback --set flashback.enabled=false",
            ["--flashback and --set flashback.enabled disagree; give one"],
        ),
        ("run icarl --seed 1 --set seed=2", ["--seed and --set seed disagree"]),
        ("run icarl --precision bf16 --set training.precision=fp32", ["--precision and --set training.precision"]),
        ("run icarl --benchmark a.npz --set benchmark.name=b.npz", ["--benchmark and --set benchmark.name"]),
        ("run lwf-mc --set flashback.alpha=0.5", ["flashback.alpha has no effect", "add --flashback"]),
        ("run icarl --set host.memory_size=9", ["host.memory_size is 9", "10 classes"]),
        ("compare icarl --set host.memory_size=9", ["host.memory_size is 9", "10 classes"]),
        ("run finetune --flashback", ["finetune keeps no knowledge"]),
        ("run joint --flashback", ["joint keeps no knowledge"]),
        ("compare finetune", ["finetune keeps no knowledge"]),
        ("tune icarl --forms --trials 3", ["--trials and --over do not go with --forms"]),
        ("tune icarl --budget 3", ["--form and --budget need --forms"]),
        ("tune icarl --forms --budget 3", ["a budget (--budget) of 3 runs is too small"]),
        ("tune icarl --forms --budget nan", ["a budget (--budget) is a number of runs, not nan"]),
        ("tune icarl --forms --budget inf", ["a budget (--budget) is a number of runs, not inf"]),
        ("frontier er", ["training.stability scales the loss term 'stability'", "er does not have"]),
        ("frontier finetune", ["training.stability scales the loss term 'stability'", "finetune does not have"]),
        ("frontier icarl --weights 1", ["two or more different weights"]),
        ("frontier icarl --weights 1,much", ["--weights takes numbers", "'1,much'"]),
        ("frontier icarl --weights 1,-1", ["training.stability must not be negative"]),
        ("frontier icarl --weights 1,nan", ["training.stability must be a finite number"]),
        ("frontier icarl --set training.stability=2", ["chooses training.stability itself"]),
        ("frontier icarl --form training.stability=2", ["chooses training.stability itself"]),
        ("frontier icarl --form prited", ["unknown form 'prited'; did you mean 'printed'?"]),
        ("frontier icarl --form printed --form printed", ["each form counts once"]),
        ("frontier icarl --form flashback.alpha", ["unknown form 'flashback.alpha'"]),
        ("frontier icarl --form flashback.alpha=0.1,flashback.epochs=7", ["E1 = 7"]),
        ("frontier icarl --set benchmark.tasks=1", ["at least two tasks"]),
        ("run icarl --device gpu", ["auto, cpu or cuda"]),
        ("run icarl --precision fp16", ["training.precision", "fp32, tf32, bf16"]),
        ("run icarl --precision bf16 --device cpu", ["bf16 needs a CUDA device"]),
        ("run icarl --recipe best", ["controlled, anchor, as-published"]),
        ("run finetune --recipe as-published", ["no as-published recipe for finetune"]),
        ("run icarl --seed one", ["--seed"]),
        ("run icarl --seed -1", ["seed must not be negative, not -1"]),
        ("run icarl --sed 1", ["--sed"]),
        ("run", ["Missing argument"]),
        ("rnu icarl", ["rnu"]),
        ("list host", ["did you mean 'hosts'?"]),
        ("compare icarl --seeds 0", ["at least one seed"]),
        ("compare icarl --seeds 100000000000", ["at most 10000 seeds, not 100000000000; a list names them"]),
        ("frontier icarl --seeds 100000000000", ["at most 10000 seeds, not 100000000000; a list names them"]),
        ("compare icarl --seed-list 1,1", ["each seed counts once"]),
        ("compare icarl --seed-list 1;2", ["--seed-list"]),
        ("compare icarl --seeds 2 --seed-list 1,2", ["not both"]),
        ("compare icarl --set seed=3", ["chooses seed itself"]),
        ("compare icarl --set flashback.enabled=true", ["chooses flashback.enabled itself"]),
        ("run icarl --set training.image_size=100", ["training.image_size is 100"]),
        ("sweep nosuch --out runs", ["unknown sweep 'nosuch'; known: alpha, ", "there is no file of that name either"]),
        ("sweep baseline --out runs", ["did you mean 'baselines'?"]),
        ("compare icarl --jobs 0", ["jobs (--jobs) is at least 1"]),
        ("run missing.yaml", ["missing.yaml"]),
        ("resume nowhere", ["nowhere"]),
        ("run icarl --benchmark missing.npz", ["there is no file missing.npz"]),
        (
            "run icarl --benchmark nothing-like-it",
            [
                "unknown benchmark 'nothing-like-it'; known: cifar100-b0-10",
                "(there is no file or folder of that name either)",
            ],
        ),
        ("run foster --benchmark imagenet100-b0-10 --data .", ["imagenet100 are missing"]),
        ("run icarl --set benchmark.sizes=[2,2]", ["sum to 4", "10 classes"]),
        ("run icarl --set benchmark.tasks=6", ["5 tasks"]),
    ],
)
def test_one_sentence_and_code_2(flashback: Command, command: str, words: list[str]) -> None:
    refused(flashback(*command.split()), *words)
    assert not Path("runs").exists()


def test_a_device_that_is_not_there(flashback: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused(flashback("run", "icarl", "--device", "cuda"), "no CUDA device")
    refused(flashback("compare", "icarl", "--device", "cuda"), "no CUDA device")


# ---------------------------------------------------------------- data


def write_data(path: str | Path = "own.npz", **changes: object) -> None:
    arrays: dict[str, object] = {
        "x_train": np.zeros((8, 12, 12), np.uint8),
        "y_train": np.arange(4).repeat(2),
        "x_test": np.zeros((4, 12, 12), np.uint8),
        "y_test": np.arange(4),
    }
    np.savez(path, **(arrays | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x_train": np.zeros((8, 12, 12), np.float32)}, ["'x_train' is float32", "uint8"]),
        ({"x_train": np.zeros((8, 12, 12, 2), np.uint8)}, ["[8, 12, 12, 2]", "1 or 3 channels"]),
        ({"x_test": np.zeros((4, 10, 12), np.uint8)}, ["test images [10, 12, 1]"]),
        ({"y_train": np.arange(4.0).repeat(2)}, ["'y_train' is float64", "integers"]),
        ({"y_train": np.arange(4)}, ["8 images", "4 labels"]),
        ({"y_test": np.array([0, 1, 2, 4])}, ["labels from 0 to 4"]),
        ({"y_test": np.array([-1, 1, 2, 3])}, ["labels from -1"]),
        ({"y_test": np.array([0, 1, 1, 0])}, ["task 2 has no test images"]),
        ({"x_train": np.zeros((0, 12, 12), np.uint8), "y_train": np.zeros(0, int)}, ["not empty"]),
    ],
)
def test_data_that_does_not_fit(flashback: Command, changes: dict[str, object], words: list[str]) -> None:
    write_data(**changes)
    options = ("--benchmark", "own.npz", "--recipe", "defaults", "--set", "benchmark.sizes=[2,2]")
    refused(flashback("run", "finetune", *options), "own.npz" if "task" not in words[0] else "", *words)


def test_a_task_without_training_images(flashback: Command) -> None:
    Path("data").mkdir()
    shape = (10, 32, 32, 3)
    labels = np.array([0, 1, 2, 3, 4, 5, 6, 7, 7, 7])  # nothing of the last task
    write_data("data/cifar10.npz", x_train=np.zeros(shape, np.uint8), x_test=np.zeros(shape, np.uint8),
               y_train=labels, y_test=labels)  # fmt: skip
    refused(flashback("run", "finetune", "--benchmark", "split-cifar10", "--data", "data"), "task 5", "'ship'")


def test_truncated_files(flashback: Command) -> None:
    write_data()
    whole = Path("own.npz").read_bytes()
    Path("own.npz").write_bytes(whole[: len(whole) // 2])
    options = ("--benchmark", "own.npz", "--recipe", "defaults", "--set", "benchmark.sizes=[2,2]")
    refused(flashback("run", "finetune", *options), "own.npz", "truncated")
    Path("cifar-10-binary.tar.gz").write_bytes(b"\x1f\x8b\x08\x00 half of an archive")
    refused(flashback("run", "finetune", "--benchmark", "split-cifar10", "--data", "."), "cifar-10-binary", "truncated")


def test_an_own_benchmark_needs_task_sizes(flashback: Command) -> None:
    write_data()
    refused(
        flashback("run", "finetune", "--benchmark", "own.npz", "--recipe", "defaults"),
        "own.npz",
        "--set benchmark.sizes=2 (in Python sizes=2)",
    )


# ---------------------------------------------------------------- files the user names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def broken(:\n", ["syntax error in line 1"]),
        ("x = 1\n", ["registers no host", "@HOSTS.register"]),
        ("import nothing_of_this_name\n", ["ModuleNotFoundError", "nothing_of_this_name"]),
        ("raise SystemExit(0)\n", ["SystemExit"]),
        ("raise ValueError('one\\ntwo')\n", ["ValueError: one two"]),
        (
            "from flashback.hosts import HOSTS, Host\n@HOSTS.register('icarl')\nclass Own(Host): pass\n",
            ["the host name 'icarl' is taken"],
        ),
    ],
)
def test_a_broken_host_file(flashback: Command, text: str, words: list[str]) -> None:
    Path("own.py").write_text(text)
    refused(flashback("run", "icarl", "--host-file", "own.py"), "--host-file own.py", *words)
    refused(flashback("compare", "icarl", "--host-file", "own.py"), "--host-file own.py", *words)


def test_a_missing_host_file(flashback: Command) -> None:
    refused(flashback("run", "icarl", "--host-file", "own.py"), "--host-file own.py", "cannot be read")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("!!python/object/apply:os.system ['touch hacked']\n", ["not valid YAML", "line 1"]),
        ("host: {name: !!python/name:os.system }\n", ["not valid YAML", "line 1"]),
        ("host: {name: icarl\n", ["not valid YAML"]),
        ("- icarl\n", ["no mapping"]),
        ("seed: 1\n", ["host.name is missing"]),
        ("host: {name: icarl}\nsede: 1\n", ["unknown key 'sede'", "did you mean 'seed'?"]),
    ],
)
def test_a_config_that_cannot_be_trusted(flashback: Command, text: str, words: list[str]) -> None:
    Path("config.yaml").write_text(text)
    refused(flashback("run", "config.yaml", "--out", "out"), *words)
    assert not Path("hacked").exists()
    assert not Path("out").exists()


def test_resume_takes_a_folder(flashback: Command) -> None:
    Path("mine").mkdir()
    Path("mine/config.yaml").write_text("seed: 1\n")
    refused(flashback("resume", "mine/config.yaml"), "mine/config.yaml is a file; give the folder of the run, mine")


def test_resume_and_show_want_one_run(flashback: Command) -> None:
    for name in ("mine/host/seed-0", "many/some/benchmark/host/seed-0"):
        Path(name).mkdir(parents=True)
        (Path(name) / "config.yaml").write_text("seed: 1\n")
    for command in ("resume", "show"):
        refused(flashback(command, "mine"), "mine holds many runs", "the command that made them (compare, sweep, tune)")
        refused(flashback(command, "many"), "many holds many runs", "`flashback report many`")
        refused(flashback(command, "mine/host"), "mine/host holds many runs", "the folder of one run")
        Path("empty").mkdir(exist_ok=True)
        refused(flashback(command, "empty"), "empty is not a run record: config.yaml is missing")


def test_a_recipe_does_not_go_with_a_config(flashback: Command) -> None:
    Path("config.yaml").write_text("host: {name: icarl}\n")
    refused(flashback("run", "config.yaml", "--recipe", "anchor"), "--recipe")


def test_records_with_tags_are_not_run(flashback: Command) -> None:
    """Neither resume nor a comparison that finds runs in its folder evaluates what a config.yaml holds."""
    folder = Path("out/host/seed-0")
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("!!python/object/apply:os.system ['touch hacked']\n")
    refused(flashback("resume", folder), "not valid YAML")
    refused(flashback("compare", "icarl", "--out", "out"), "not valid YAML")
    assert not Path("hacked").exists()


def test_out_that_is_a_file(flashback: Command) -> None:
    Path("out").write_text("precious")
    for command in ("run finetune", "compare lwf-mc"):
        refused(
            flashback(*command.split(), "--out", "out"),
            "out cannot be used as a folder",
            "choose another folder (out, ",
        )
    assert Path("out").read_text() == "precious"
