"""What one device and the ranks of a run compute alike. As a program: one of the ranks but the first."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from flashback import ranks
from flashback.errors import FlashbackError
from flashback.hosts import HOSTS
from flashback.knowledge.importance import fisher_diagonal
from flashback.nets import Backbone, Net, build_backbone, joint_forward
from flashback.training import Trainer, build_method
from flashback.training.environment import prepare_device
from helpers import quick_config, quick_host, small_settings, tiny_benchmark

Values = dict[str, Any]
SHAPE = (1, 12, 12)
PATIENCE = timedelta(seconds=60)


@dataclass
class Run:
    """A short run of a host, over two tasks of unequal size: weights, memory, losses and accuracies."""

    name: str
    flashback: bool = False
    device: str = "cpu"
    settings: tuple[tuple[str, Any], ...] = ()

    def __call__(self) -> Values:
        epochs = 2 if self.flashback else 1
        settings = {
            "training__momentum": 0.9,
            "training__epochs": epochs,
            **small_settings(self.name),
            **dict(self.settings),
        }
        config = quick_config(self.name, self.flashback, **settings)
        prepare_device(config, torch.device(self.device), "fp32")
        benchmark = tiny_benchmark((2, 3), per_class=4, test_per_class=2)
        events: list[Any] = []
        trainer = Trainer(build_method(config, benchmark, self.device), benchmark, [events.append])
        results = trainer.run().as_dict()
        losses = {
            f"{event['task']} {event['stage']} {event['epoch']} {name}": torch.tensor(value)
            for event in events
            if event["event"] == "epoch"
            for name, value in event["losses"].items()
        }
        state = {name: tensor.cpu() for name, tensor in trainer.host.state_dict().items()}
        return {"results": results, **losses, **state}


def new_net(name: str = "smallcnn") -> tuple[Net, Tensor]:
    torch.manual_seed(3)
    backbone = build_backbone(name, SHAPE)
    return Net(backbone, nn.Linear(backbone.width, 4)).train(), torch.randn(11, *SHAPE)


def gradients(net: nn.Module, loss: Tensor) -> Values:
    named = dict(net.named_parameters())
    means = ranks.average(torch.autograd.grad(loss, list(named.values())))
    return {f"gradient of {name}": mean for name, mean in zip(named, means, strict=True)}


def parts_of_a_batch() -> Values:
    """Parts with statistics of their own; the second has an image for one of the ranks alone."""
    net, x = new_net()
    parts = x.split([6, 1, 4])
    outputs = joint_forward(net, parts[:2], untracked=parts[2:])
    penalty = sum(parameter.square().sum() for parameter in net.parameters())
    loss = sum((k + 1) * output.logits.square().mean() for k, output in enumerate(outputs)) + penalty
    features = {f"features {k}": output.features for k, output in enumerate(outputs)}
    return {**features, **gradients(net, loss), **dict(net.named_buffers())}


def gradient_of_images() -> Values:
    net, x = new_net()
    x.requires_grad_()
    (slope,) = torch.autograd.grad(net(x).logits.square().sum(), x)
    return {"slope": slope}


def dropout() -> Values:
    net, x = new_net("cnn6")
    output = net(x)
    return {"features": output.features, "next draw": torch.rand(3), **gradients(net, output.logits.square().mean())}


def fewer_images_than_ranks() -> Values:
    net, x = new_net()
    return {"features": net.eval()(x[:1]).features}


def fisher() -> Values:
    net, _ = new_net()
    train = tiny_benchmark((4,), per_class=2).tasks[0].train
    return {"fisher": fisher_diagonal(net.eval(), train.x, train.y, lambda raw: raw / 255, "mammoth")}


def state_of_one_rank() -> Values:
    host = quick_host("finetune")
    host.net.head.weight.data.add_(ranks.rank())
    return {"message": message_of(Trainer(host, host.benchmark).check_ranks)}


def random_layer() -> Values:
    class Noisy(Backbone):
        width = 144

        def forward(self, x: Tensor) -> Tensor:
            return (x + torch.rand_like(x)).flatten(1)

    return {"message": message_of(lambda: Noisy()(torch.zeros(4, *SHAPE)))}


def message_of(function: Callable[[], Any]) -> str:
    try:
        function()
    except FlashbackError as error:
        return str(error)
    return ""


EXPERIMENTS: dict[str, Callable[[], Values]] = {
    function.__name__: function
    for function in (
        *(parts_of_a_batch, gradient_of_images, dropout, fewer_images_than_ranks, fisher),
        *(state_of_one_rank, random_layer),
    )
}
EXPERIMENTS |= {
    f"{name}, {'with flashback' if flashback else 'alone'}": Run(name, flashback)
    for name in HOSTS
    for flashback in ([False, True] if HOSTS[name].has_knowledge else [False])
}
EXPERIMENTS["averaged"] = Run("finetune", settings=(("training__average", 0.9),))  # measures batch norm anew
EXPERIMENTS["statistics of the batch"] = Run(
    "lwf-mc", True, settings=(("training__teacher_statistics", "batch"), ("flashback__distance", "logits"))
)
FAMILIES = ("icarl", "der++", "ewc", "foster")
EXPERIMENTS |= {f"{name} on a GPU": Run(name, True, "cuda", (("capture", False),)) for name in FAMILIES}


def together(names: Sequence[str], count: int = 2) -> dict[str, Values]:
    """Run experiments as rank 0 of so many; the other ranks are processes of their own."""
    port = free_port()
    with other_ranks(count, port, *names), as_rank(0, count, MASTER_PORT=port), ranks.process_group("gloo"):
        return {name: EXPERIMENTS[name]() for name in names}


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@contextmanager
def other_ranks(count: int, *arguments: str, program: str = __file__) -> Iterator[None]:
    started = []
    for rank in range(1, count):
        with as_rank(rank, count):
            started.append(subprocess.Popen([sys.executable, program, *arguments]))
    try:
        yield
        assert [process.wait(60) for process in started] == [0] * len(started)
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextmanager
def as_rank(rank: int, count: int, **others: str) -> Iterator[None]:
    """Set what torchrun would, but for the name of its job."""
    values = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    before, patience = dict(os.environ), ranks.LONGEST_SILENCE
    os.environ |= {name: str(value) for name, value in values.items()} | {"MASTER_ADDR": "127.0.0.1"} | others
    ranks.LONGEST_SILENCE = PATIENCE
    try:
        yield
    finally:
        ranks.LONGEST_SILENCE = patience
        os.environ.clear()
        os.environ |= before


if __name__ == "__main__":
    torch.set_num_threads(1)
    ranks.LONGEST_SILENCE = PATIENCE
    os.environ["MASTER_PORT"] = sys.argv[1]
    with ranks.process_group("gloo"):
        for experiment in sys.argv[2:]:
            EXPERIMENTS[experiment]()
