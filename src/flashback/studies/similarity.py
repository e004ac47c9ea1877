"""How near a trained model stays to one that saw all tasks at once: linear CKA, layer by layer (the paper's figure)."""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flashback.benchmarks import Images
from flashback.config import RunConfig
from flashback.errors import FlashbackError, require
from flashback.files import make_folder, write_atomically
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
    """Measure the CKA of both arms with the reference, on test images of earlier tasks (old) and of the last one (new).

    Args:
        host: The run folder of the host alone.
        flashback: The run folder of the same host with flashback.
        reference: The run folder of a network trained on all tasks at once.
        data: The folder of datasets.
        device: Where to compute.
        host_file: A file or files that register hosts or networks.
        out: A folder for cka.json, which a report shows; None: write nothing.
        after_tasks: Take both arms as they were after this many tasks, and only those tasks; None: at the end.

    Returns:
        What cka.json holds: under `old` and `new`, for each arm, the similarity of every layer.

    Raises:
        FlashbackError: If the three runs do not belong together, or have fewer than two tasks.
    """
    find_hosts(host_file)
    folders = {"host": Path(host), "flashback": Path(flashback), "reference": Path(reference)}
    configs = {name: config_from_dict(read_config(folder)) for name, folder in folders.items()}
    check_roles(folders, **configs)
    similarity = {
        "host": configs["host"].host.name + ("" if after_tasks is None else f" after {after_tasks} tasks"),
        "reference": configs["reference"].host.name,
        "seeds": {name: config.seed for name, config in configs.items()},
        "folders": {name: folder.resolve().name for name, folder in folders.items()},
    }
    with torch.compiler.set_stance("force_eager"):
        anchor = load_trained(folders.pop("reference"), data, device)
        arms = {name: load_trained(path, data, device, after_tasks=after_tasks) for name, path in folders.items()}
        benchmarks = (model.benchmark for model in (anchor, *arms.values()))
        require(
            len({(benchmark.checksum, *benchmark.order, *benchmark.sizes) for benchmark in benchmarks}) == 1,
            "the runs were made on other data, another class order or other tasks; CKA needs the same",
        )
        *earlier, last = anchor.benchmark.tasks[:after_tasks]
        require(bool(earlier), "CKA on old and new classes needs at least two tasks")
        similarity["layers"] = list(layers_of(anchor))
        for name, tasks in {"old": earlier, "new": [last]}.items():
            images = [task.test for task in tasks]
            similarity[name] = {arm: layer_similarity(model, anchor, images) for arm, model in arms.items()}
    if out is not None:
        make_folder(Path(out))
        write_atomically(Path(out) / "cka.json", json.dumps(similarity, indent=1) + "\n")
    return similarity


def check_roles(folders: Mapping[str, Path], host: RunConfig, flashback: RunConfig, reference: RunConfig) -> None:
    """A host, the same host with flashback, and a network that saw all tasks at once, in this order."""
    first, second, third = folders.values()
    require(not host.flashback.enabled, f"{first} was trained with flashback; the first run is the host alone")
    message = f"{second} was trained without flashback; the second run is the same host with it"
    require(flashback.flashback.enabled, message)
    message = f"the first two runs have the hosts {host.host.name} and {flashback.host.name}; CKA needs the same host"
    require(host.host.name == flashback.host.name, message)
    require(
        not HOSTS[reference.host.name].task_by_task,
        f"{third} is a run of {reference.host.name}, which learns task by task; "
        "the reference is one that saw all tasks at once (joint)",
    )
    shares = [(run.benchmark.validation, run.seed) for run in (host, flashback, reference)]
    require(
        len({(share, share and seed) for share, seed in shares}) == 1,
        "the runs hold out other images for validation, so CKA would look at images that some of them were trained on; "
        "give runs without benchmark.validation, or with the same share and seed",
    )
    if host.seed != flashback.seed:
        seeds = f"{host.seed} and {flashback.seed}"
        warnings.warn(f"the first two runs have the seeds {seeds}: they differ by more than flashback", stacklevel=3)


def layers_of(host: Host) -> Mapping[str, nn.Module]:
    backbone = getattr(host.predictor(), "backbone", None)
    if not isinstance(backbone, Backbone):
        raise FlashbackError(f"{host.settings.name} predicts with several modules; CKA compares single networks")
    return backbone.last_stage_layers()


def layer_similarity(model: Host, anchor: Host, sets: Sequence[Images]) -> list[float]:
    layers = {host: layers_of(host) for host in (model, anchor)}
    same = layers[model].keys() == layers[anchor].keys()
    require(same, "the runs have different networks; CKA compares the same layers")
    values, size = [], anchor.config.training.evaluation_batch
    with evaluation_mode(model), evaluation_mode(anchor):
        for name in layers[anchor]:
            stream = LinearCKA()
            for raw in (raw for images in sets for raw in torch.split(images.x, size)):
                stream.update(*(output_of(layers[host][name], host, raw) for host in (model, anchor)))
            values.append(stream.value())
    return values


def output_of(layer: nn.Module, host: Host, raw: Tensor) -> Tensor:
    outputs: list[Tensor] = []
    hook = layer.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    try:
        host.scores(host.views.plain(raw.to(host.device)))
    finally:
        hook.remove()
    return outputs[-1]
