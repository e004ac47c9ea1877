"""Export a model to one file that other software runs without this package."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flashback.errors import FlashbackError, import_extra, printable, require
from flashback.files import make_folder, write_atomically
from flashback.models.model import Model, load_model

INPUT, OUTPUT, METADATA = "images", "probabilities", "metadata.json"
TOLERANCE = 1e-4  # largest difference between the probabilities of the model and of the file
CHECKED_IMAGES = 4
LONGEST_REASON = 200  # characters of an exporter's message
RESIZING = "cut the centre with the proportions of image_size out of the image, resize it (bilinear, antialiased)"

Run = Callable[[Tensor], Tensor]


def export_model(model: Model | str | Path, file: str | Path) -> Path:
    """Write a model with its classifier and normalisation to a file, and check that it gives the same answers.

    The graph takes `images`, uint8 [n, C, H, W] of the model's size for any n, and gives `probabilities`, float32
    [n, classes]. It normalises the images itself. Class names, image size and normalisation are in the file: in ONNX as
    metadata properties whose values are JSON, in a .pt2 as the extra file metadata.json.

    Args:
        model: What `load_model` returns, on the CPU, or the folder of a finished run.
        file: The file to write: .onnx (needs the extra `onnx`) or .pt2 (`torch.export`).

    Returns:
        The file.

    Raises:
        FlashbackError: If the file has another ending, a package is missing, the network cannot be exported, or the
            exported one gives other answers.
    """
    path = Path(file).expanduser()
    write = WRITERS.get(path.suffix)
    if write is None:
        raise FlashbackError(f"the ending of {printable(path)} names no format to export to; use .onnx or .pt2")
    model = model if isinstance(model, Model) else load_model(model, "cpu")
    require(model.host.device.type == "cpu", "only a model on the CPU is exported; load it with device='cpu'")
    module = model.probabilities()
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (CHECKED_IMAGES, *model.image_shape), dtype=torch.uint8, generator=generator)
    with torch.no_grad(), without_notes(), torch.compiler.set_stance("force_eager"):
        expected = module(images)
        content, run = write(module, images, describe(model))
        if run is not None:
            difference = float((run(images) - expected).abs().max())
            require(difference <= TOLERANCE, f"the exported model differs from this one by {difference:.1g}; report it")
    make_folder(path.parent)
    write_atomically(path, content)
    return path


def describe(model: Model) -> dict[str, Any]:
    """What a user of the file needs to know."""
    views, (channels, height, width) = model.host.views, model.image_shape
    return {
        "class_names": list(model.class_names),
        "image_size": [height, width],
        "channels": channels,
        "input": f"{INPUT}, uint8 [n, {channels}, {height}, {width}], {'grey' if channels == 1 else 'RGB'}, 0 to 255",
        "output": f"{OUTPUT}, float32 [n, {len(model.class_names)}], in the order of class_names",
        "resizing": RESIZING,
        "normalisation": {"inside": True, "mean": list(views.mean), "std": list(views.std)},
        "host": model.host.config.host.name,
        "classifier": next(iter(model.host.classifiers())),
    }


def exported_program(module: nn.Module, images: Tensor) -> torch.export.ExportedProgram:
    with explaining_failures("this network cannot be exported"):
        program = torch.export.export(module, (images[:2],), dynamic_shapes=any_number_of_images())
        program.graph_module.graph.eliminate_dead_code()  # a block that is not used can be saved but not loaded again
        program.graph_module.recompile()
    return program


@contextmanager
def explaining_failures(sentence: str) -> Iterator[None]:
    """Exporters raise nearly every kind of exception, for what a network does or a version lacks."""
    try:
        yield
    except Exception as problem:
        reason = " ".join(str(problem).split())[:LONGEST_REASON]
        raise FlashbackError(f"{sentence} ({type(problem).__name__}: {reason})") from None


def any_number_of_images() -> dict[str, Any]:
    return {"raw": {0: torch.export.Dim("n")}}


def to_pt2(module: nn.Module, images: Tensor, metadata: dict[str, Any]) -> tuple[bytes, Run]:
    stream = io.BytesIO()
    torch.export.save(exported_program(module, images), stream, extra_files={METADATA: json.dumps(metadata)})
    content = stream.getvalue()
    return content, torch.export.load(io.BytesIO(content)).module()


def to_onnx(module: nn.Module, images: Tensor, metadata: dict[str, Any]) -> tuple[bytes, Run | None]:
    for package in ("onnx", "onnxscript"):
        import_extra(package, "onnx", f"exporting to .onnx needs {package}")
    exported = exported_program(module, images)
    with explaining_failures(f"torch {torch.__version__} cannot export it to ONNX; try another version of onnxscript"):
        program = torch.onnx.export(
            exported,
            dynamo=True,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=any_number_of_images(),
            verbose=False,
        )
    assert program is not None
    program.model.metadata_props.update({key: json.dumps(value) for key, value in metadata.items()})
    content: bytes = program.model_proto.SerializeToString()
    return content, onnx_runner(content) if find_spec("onnxruntime") else None


def onnx_runner(content: bytes) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run([OUTPUT], {INPUT: images.numpy()})[0])


WRITERS: dict[str, Callable[[nn.Module, Tensor, dict[str, Any]], tuple[bytes, Run | None]]] = {
    ".pt2": to_pt2,
    ".onnx": to_onnx,
}


@contextmanager
def without_notes() -> Iterator[None]:
    """Silence what exporters say about packages that are not needed and about their own deprecations."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
