"""A host that breaks a promise is found out, and told which and where."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conformance_runs import few_images
from torch import Tensor, nn

from flashback.cli import main
from flashback.conformance import PROMISES, PROMISES_OF_ANY_HOST, Check, Trial, check_host, problem_with
from flashback.errors import FlashbackError
from flashback.hosts import HOSTS
from flashback.hosts.lwf_mc import LwFMC
from flashback.hosts.stages import Step
from flashback.knowledge import ImportantParameters, Support, flat


class CountsSteps(LwFMC):
    """Keeps what it remembers in a plain number."""

    steps = 0

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        self.steps += 1
        return {name: term * (1 + self.steps / 50) for name, term in super().losses(step).items()}


class ThrowsDice(LwFMC):
    """Draws from a generator that no seed of a run reaches."""

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        return {name: term * (1 + random.random()) for name, term in super().losses(step).items()}


class LooksAway(LwFMC):
    """Its distance does not depend on what it is given."""

    def distance(self, step: Step, knowledge: Any, support: Support) -> Tensor:
        return step.output.logits.sum() * 0


class ForgetsToFill(LwFMC):
    """Its room for stable knowledge stays as it was made."""

    def blank_knowledge(self) -> ImportantParameters:
        return ImportantParameters(self.trained_parameters())

    def fill_knowledge(self, knowledge: ImportantParameters) -> None: ...

    def distance(self, step: Step, knowledge: ImportantParameters, support: Support) -> Tensor:
        return knowledge.distance(self.trained_parameters())


class Fills(ForgetsToFill):
    """Filled whatever begin and allocate do."""

    def fill_knowledge(self, knowledge: ImportantParameters) -> None:
        knowledge.values.copy_(flat(self.trained_parameters()))
        knowledge.importance.fill_(100.0)

    def allocate(self) -> None:
        super().allocate()

    def begin(self) -> None: ...


class Drifts(LwFMC):
    """Writes into what it knows while it learns."""

    def after_step(self, step: Step) -> None:
        if self.stable is not None:
            next(iter(self.stable.buffers())).add_(1)


class KeepsLess(LwFMC):
    """Says that it keeps half of what it does, so that its plastic knowledge is twice as large."""

    def knowledge_bytes(self) -> dict[str, int]:
        return {"stable": super().knowledge_bytes()["stable"] // 2}


class HoldsNothing(LwFMC):
    """Keeps the old model, and has no loss that looks at it."""

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        return {"task": super().losses(step)["task"]}


class HoldsByAnotherName(LwFMC):
    def losses(self, step: Step) -> Mapping[str, Tensor]:
        return {name.replace("stability", "old answers"): term for name, term in super().losses(step).items()}


class Projects(LwFMC):
    """With a module of its own."""

    def trains_future_classes(self) -> bool:
        return True

    def build(self) -> None:
        super().build()
        self.projector = nn.Linear(self.benchmark.classes, self.benchmark.classes)

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        return {**super().losses(step), "projection": self.projector(step.output.logits).square().mean()}


class TrainsTheNetAlone(Projects):
    def trained_parameters(self) -> list[nn.Parameter]:
        return list(self.net.parameters())


class HidesAModule(LwFMC):
    """Keeps it in a list, where torch does not look."""

    def trains_future_classes(self) -> bool:
        return True

    def build(self) -> None:
        super().build()
        self.hidden = [nn.Linear(self.benchmark.classes, 5)]

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        return {**super().losses(step), "projection": self.hidden[0](step.output.logits).square().mean()}


class WrongColumn(LwFMC):
    def losses(self, step: Step) -> Mapping[str, Tensor]:
        return {"task": F.cross_entropy(step.output.logits, step.batch.y + 100)}  # out of range


class LacksNames(LwFMC):
    def losses(self, step: Step) -> Any:
        return list(super().losses(step).values())


class Stumbles(LwFMC):
    def losses(self, step: Step) -> Mapping[str, Tensor]:
        raise ZeroDivisionError("on the way")


class OneColumn(LwFMC):
    def classifiers(self) -> dict[str, Any]:
        return {"narrow": lambda x: self.net(x).logits[:, :1]}


@pytest.fixture
def registered() -> None:
    hosts = [entry for entry in globals().values() if isinstance(entry, type) and issubclass(entry, LwFMC)]
    for host in hosts:
        if host is not LwFMC:
            HOSTS.register(host.__name__)(host)


def broken(checks: list[Check]) -> dict[str, str]:
    return {check.promise: check.problem for check in checks if check.problem is not None}


def promises(*words: str) -> list[str]:
    texts = [str(promise.__doc__) for promise in PROMISES]
    return [next(text for text in texts if word in text) for word in words]


def test_every_promise_is_told_when_it_has_been_looked_into() -> None:
    reported_checks: list[Check] = []
    checks = check_host("lwf-mc", watch=reported_checks.append, benchmark=few_images())
    assert broken(checks) == {}
    assert checks == reported_checks
    assert len(checks) == len(PROMISES)


def test_promises_hold_wherever_phase_2_starts() -> None:
    assert broken(check_host("lwf-mc", settings={"flashback.start": 0.5}, benchmark=few_images())) == {}


def test_a_host_without_knowledge_is_asked_for_less() -> None:
    assert len(check_host("finetune", benchmark=few_images())) == len(PROMISES_OF_ANY_HOST)


BREAKS = [
    ("CountsSteps", ("Stopped at any moment", "back where the task began"), "belongs in its state_dict"),
    ("ThrowsDice", ("A seed decides",), "draw from self.generator"),
    (
        "LooksAway",
        ("Stable knowledge changes", "Plastic knowledge changes"),
        r"stability loss is always 0|distance\(\)",
    ),
    (
        "ForgetsToFill",
        ("Stable knowledge changes", "Plastic knowledge changes"),
        r"does anything fill the stable knowledge|distance\(\)",
    ),
    ("Drifts", ("does not change while",), r"of self\.stable changes from step to step"),
    ("KeepsLess", ("at most the bytes",), "bytes of plastic knowledge"),
    ("HoldsNothing", ("Stable knowledge changes",), r"whatever self\.stable holds, it learns the same"),
    ("TrainsTheNetAlone", ("requires gradients",), r"no stage trains projector\.bias and projector\.weight"),
    (
        "HidesAModule",
        ("requires gradients",),
        r"parameters of shape \[5\] and \[5, 7\] that the host does not know",
    ),
]
each_breaking_host = pytest.mark.parametrize(("host", "words", "problem"), BREAKS, ids=[case[0] for case in BREAKS])


@pytest.mark.usefixtures("registered")
@each_breaking_host
def test_a_broken_promise_is_named(host: str, words: tuple[str, ...], problem: str) -> None:
    trial = Trial(host, {}, few_images())
    assert problem_with(PROMISES[0], trial) is None
    for promise in PROMISES:
        if promise.__doc__ in promises(*words):
            assert re.search(problem, str(problem_with(promise, trial)))


@pytest.mark.slow
@pytest.mark.usefixtures("registered")
@each_breaking_host
def test_all_other_promises_are_kept(host: str, words: tuple[str, ...], problem: str) -> None:
    checks = list(broken(check_host(host, benchmark=few_images())))
    assert checks == promises(*words) or (host == "ThrowsDice" and set(promises(*words)) < set(checks))


@pytest.mark.slow
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("host", ["Fills", "HoldsByAnotherName", "Projects"])
def test_other_knowledge_other_names_and_modules_of_its_own_break_nothing(host: str) -> None:
    assert broken(check_host(host, benchmark=few_images())) == {}


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("Stumbles", "ZeroDivisionError"),
        ("WrongColumn", "IndexError: Target"),
        ("OneColumn", "gives [2, 1] for two images"),
        ("LacksNames", "named terms, such as {'task': loss}, not list"),
    ],
)
def test_a_host_that_cannot_be_trained_is_asked_for_no_more(host: str, message: str) -> None:
    """What happens inside torch is told with the line of the host that led there."""
    (only,) = check_host(host, benchmark=few_images())
    assert message in str(only.problem)
    places = re.findall(r"\((\S+):(\d+)\)$", str(only.problem))
    assert bool(places) == (host in ("Stumbles", "WrongColumn"))
    for file, line in places:
        assert Path(file) == Path(__file__)
        assert int(line) == line_of("out of range" if host == "WrongColumn" else "on the way")


def line_of(words: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if words in line)


def test_settings_are_those_of_the_short_runs() -> None:
    with pytest.raises(FlashbackError, match=r"training\.epochs must be at least 1"):
        check_host("lwf-mc", settings={"training.epochs": 0})
    with pytest.raises(FlashbackError, match="did you mean 'lwf-mc'"):
        check_host("lwf-mcc")


def test_the_state_at_a_moment_is_a_copy() -> None:
    """Else every moment would be the end of the run, and a wrong state would never be noticed."""
    _, states = Trial("finetune", {}, few_images()).recorded
    weights = [state.tensors["host.net.head.weight"] for state in states]
    assert len(weights) > 3
    assert not torch.equal(weights[0], weights[-1])


HOST_FILE = """
from flashback.hosts import HOSTS
from flashback.hosts.lwf_mc import LwFMC


@HOSTS.register("counting")
class Counting(LwFMC):
    steps = 0

    def losses(self, step):
        self.steps += 1
        return {name: term * (1 + self.steps / 50) for name, term in super().losses(step).items()}
"""


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, list[str]]:
    with pytest.raises(SystemExit) as end:
        main(["check", *arguments])
    return end.value.code, capsys.readouterr().out.splitlines()


def test_the_command_tells_every_promise_that_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = call(capsys, "finetune", "--set", "training.epochs=1")
    assert code == 0
    assert [line.split()[0] for line in lines[:-1]] == ["kept"] * 4
    assert lines[-1] == "finetune keeps all 4 promises."


@pytest.mark.slow
def test_the_command_ends_with_1_after_a_broken_promise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "counting.py").write_text(HOST_FILE)
    code, lines = call(capsys, "counting", "--host-file", str(tmp_path / "counting.py"))
    assert code == 1
    assert [line.split()[0] for line in lines[:-1]].count("kept") == len(PROMISES) - 2
    assert [line.split()[0] for line in lines[:-1]].count("BROKEN") == 2
    assert lines[-1] == f"counting breaks 2 of {len(PROMISES)} promises."


@pytest.mark.usefixtures("registered")
def test_the_command_stops_where_a_host_cannot_be_trained(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = call(capsys, "Stumbles")
    assert (code, lines[-1]) == (1, "Stumbles breaks 1 of 1 promise.")
    assert lines[0].startswith("BROKEN")
