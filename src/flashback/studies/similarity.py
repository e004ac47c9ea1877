"""How near a trained model stays to one that saw all tasks at once: linear CKA, layer by layer (the paper's figure)."""

from __future__ import annotations

import json
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flashback.benchmarks import Benchmark, Images, canonical_name
from flashback.config import RunConfig
from flashback.errors import FlashbackError, require
from flashback.files import write_atomically
from flashback.hosts.base import HOSTS, Host
from flashback.hosts.external import HostFiles, find_hosts
from flashback.metrics import LinearCKA
from flashback.nets import Backbone
from flashback.recipes import config_from_dict
from flashback.records import read_config
from flashback.training.evaluation import evaluation_mode
from flashback.training.running import load_trained


def compare_representations(
    host: str | Path,
    flashback: str | Path,
    reference: str | Path,
    *,
    data: str | Path | None = None,
    device: str | torch.device = "auto",
    host_file: HostFiles = None,
    out: str | Path | None = None,
    after_tasks: int | None = None,
) -> dict[str, Any]:
    """CKA of both arms with the reference, on test images of earlier tasks (old) and of the last one (new).

    With `out`, leave cka.json there, which a report shows. With `after_tasks`, both arms are taken as they were after
    so many tasks, and the tasks are those.
    """
    find_hosts(host_file)
    folders = {"host": Path(host), "flashback": Path(flashback), "reference": Path(reference)}
    configs = {name: config_from_dict(read_config(folder)) for name, folder in folders.items()}
    check_roles(folders, configs)
    with torch.compiler.set_stance("force_eager"):
        values = _similarity(folders, data, device, after_tasks)
    when = "" if after_tasks is None else f" after {after_tasks} tasks"
    similarity = {
        "host": configs["host"].host.name + when,
        "reference": configs["reference"].host.name,
        "seeds": {name: config.seed for name, config in configs.items()},
        "folders": {name: folder.resolve().name for name, folder in folders.items()},
        **values,
    }
    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)
        write_atomically(Path(out) / "cka.json", json.dumps(similarity, indent=1) + "\n")
    return similarity


def check_roles(folders: Mapping[str, Path], configs: Mapping[str, RunConfig]) -> None:
    """A host, the same host with flashback, and a network that saw all tasks at once, in this order."""
    host, flashback, reference = configs["host"], configs["flashback"], configs["reference"]
    require(
        not host.flashback.enabled, f"{folders['host']} was trained with flashback; the first run is the host alone"
    )
    require(
        flashback.flashback.enabled,
        f"{folders['flashback']} was trained without flashback; the second run is the same host with it",
    )
    for what, (first, second) in {
        "host": (host.host.name, flashback.host.name),
        "benchmark": (canonical_name(host.benchmark.name), canonical_name(flashback.benchmark.name)),
    }.items():
        require(first == second, f"the first two runs have the {what}s {first} and {second}; CKA needs the same {what}")
    require(
        not HOSTS[reference.host.name].task_by_task,
        f"{folders['reference']} is a run of {reference.host.name}, which learns task by task; "
        "the reference is one that saw all tasks at once (joint)",
    )
    shares = {name: config.benchmark.validation for name, config in configs.items()}
    held_out = {(share, configs[name].seed if share else None) for name, share in shares.items()}
    require(
        len(held_out) == 1,
        "the runs hold out other images for validation, so CKA would look at images that some of them were trained on; "
        "give runs without benchmark.validation, or with the same share and seed",
    )
    if host.seed != flashback.seed:
        warnings.warn(
            f"the first two runs have the seeds {host.seed} and {flashback.seed}: they differ by more than flashback",
            stacklevel=3,
        )


def _similarity(
    folders: Mapping[str, Path], data: str | Path | None, device: str | torch.device, after_tasks: int | None
) -> dict[str, Any]:
    learned = {"host": after_tasks, "flashback": after_tasks, "reference": None}
    models = {name: load_trained(folders[name], data, device, after_tasks=tasks) for name, tasks in learned.items()}
    anchor = models.pop("reference")
    for model in models.values():
        check_same_images(model.benchmark, anchor.benchmark)
    tasks = anchor.benchmark.tasks[:after_tasks]
    if len(tasks) < 2:
        raise FlashbackError("CKA on old and new classes needs at least two tasks")
    sets = {"old": [task.test for task in tasks[:-1]], "new": [tasks[-1].test]}
    similarity: dict[str, Any] = {"layers": list(layers_of(anchor))}
    for name, images in sets.items():
        similarity[name] = {arm: layer_similarity(model, anchor, images) for arm, model in models.items()}
    return similarity


def check_same_images(first: Benchmark, second: Benchmark) -> None:
    same = (first.checksum, first.order, first.sizes) == (second.checksum, second.order, second.sizes)
    if not same:
        raise FlashbackError("the runs were made on other data, another class order or other tasks; CKA needs the same")


def layers_of(host: Host) -> Mapping[str, nn.Module]:
    """The layers of the last stage of the network that the host predicts with."""
    backbone = getattr(host.predictor(), "backbone", None)
    if not isinstance(backbone, Backbone):
        raise FlashbackError(
            f"{host.settings.name} predicts with several modules; CKA compares networks with one backbone"
        )
    return backbone.last_stage_layers()


def layer_similarity(model: Host, anchor: Host, sets: Sequence[Images]) -> list[float]:
    """CKA of every layer with the same layer of the anchor, exactly, over all images.

    One layer after the other: the features of all images are large, a pass over test images is short.
    """
    mine, theirs = layers_of(model), layers_of(anchor)
    if mine.keys() != theirs.keys():
        raise FlashbackError("the runs have different networks; CKA compares the same layers")
    with evaluation_mode(model), evaluation_mode(anchor):
        return [similarity_of(model, anchor, mine[name], theirs[name], sets) for name in mine]


def similarity_of(
    model: Host, anchor: Host, own_layer: nn.Module, same_layer: nn.Module, sets: Sequence[Images]
) -> float:
    stream = LinearCKA()
    with recorded(own_layer) as x, recorded(same_layer) as y:
        for images in sets:
            for raw in torch.split(images.x, anchor.config.training.evaluation_batch):
                for host in (model, anchor):
                    host.scores(host.views.plain(raw.to(host.device)))
                stream.update(x[-1], y[-1])
    return stream.value()


@contextmanager
def recorded(layer: nn.Module) -> Iterator[deque[Tensor]]:
    """What a layer put out in the latest pass."""
    outputs: deque[Tensor] = deque(maxlen=1)
    hook = layer.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    try:
        yield outputs
    finally:
        hook.remove()
