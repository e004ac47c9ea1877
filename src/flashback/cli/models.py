"""The commands predict, evaluate and export, for trained models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

import flashback as fb
from flashback.cli import options as opt
from flashback.cli.console import output, say, show_line, show_table, write_stdout
from flashback.errors import FlashbackError, printable, unknown
from flashback.files import make_folder, write_atomically

if TYPE_CHECKING:
    from flashback.models import FileEvaluation, Predictions

ModelFolder = Annotated[Path, Argument(metavar="MODEL", help="The folder of a model, or of a finished run.")]
Out = Annotated[Path | None, Option(metavar="FILE", help="The file to write; default: the terminal.")]
TABLE = "table"
PREDICTION_FORMATS = (TABLE, "csv", "jsonl")
EVALUATION_FORMATS = (TABLE, "csv", "json")
LARGEST_MATRIX = 20  # classes whose confusion matrix is printed
OTHER_COLUMNS, NAME_COLUMNS = 21, 16  # characters beside the matrix: of numbers, and at most of names
CONFUSED_PAIRS = 20  # printed instead of a larger matrix


def predict(
    model: ModelFolder,
    images: Annotated[
        Path, Argument(metavar="IMAGES", help="A folder of images at any depth, an image, or a .csv of paths.")
    ],
    top: Annotated[int, Option(help="How many classes to name for each image.")] = 3,
    form: Annotated[
        str | None, Option("--format", help="table, csv or jsonl; default: by the ending of --out, else table.")
    ] = None,
    out: Out = None,
    device: opt.Device = "auto",
    host_file: opt.HostFile = None,
) -> None:
    """Name the classes of images, with probabilities.

    Images may have any size. Those that cannot be read are named and skipped.
    """
    form = choose_format(form, out, PREDICTION_FORMATS)
    predictions = fb.predict_files(open_model(model, device, host_file), images, top=top, progress=True)
    if form == TABLE:
        show_predictions(predictions)
    else:
        write_text(predictions.as_csv() if form == "csv" else predictions.as_jsonl(), out)
    report_skipped(predictions.skipped)


def evaluate(
    model: ModelFolder,
    images: Annotated[
        Path,
        Argument(metavar="IMAGES", help="A folder with one folder per class, a .csv of paths and labels, or an .npz."),
    ],
    form: Annotated[
        str | None,
        Option("--format", help="table, csv (classes) or json (everything); default: by the ending of --out."),
    ] = None,
    out: Out = None,
    plot: Annotated[Path | None, Option(metavar="FILE", help="Draw the confusion matrix: .png, .pdf or .svg.")] = None,
    device: opt.Device = "auto",
    host_file: opt.HostFile = None,
) -> None:
    """Measure the accuracy of a model on labelled images, by class.

    Images may have any size. Those that cannot be read, and those of classes that the model has not learned, are named
    and left out.
    """
    form = choose_format(form, out, EVALUATION_FORMATS)
    if plot is not None:
        from flashback.reports.confusion import check_picture, plot_confusion_counts

        check_picture(plot)
    evaluation = fb.evaluate_files(open_model(model, device, host_file), images, progress=True)
    summary = f"{evaluation.accuracy:.1f} % of {evaluation.images} images are right"
    if form == TABLE:
        show_classes(evaluation)
        show_line(f"{summary}.")
    else:
        write_text(evaluation.as_csv() if form == "csv" else evaluation.as_json(), out)
    if plot is not None:
        plot_confusion_counts(evaluation.confusion, evaluation.class_names, summary, plot)
    for name, count in evaluation.unknown.items():
        say(f"left out: '{name}', a class that the model has not learned (images: {count})")
    report_skipped(evaluation.skipped)


def export(
    model: ModelFolder,
    file: Annotated[Path, Argument(metavar="FILE", help="The file to write: .onnx or .pt2.")],
    host_file: opt.HostFile = None,
) -> None:
    """Write a model to one file that runs without this package.

    The file takes images of the model's size, 0 to 255, and gives the probabilities of its classes. It holds the
    method's own classifier, the class names, the image size and the normalisation.
    """
    loaded = open_model(model, "cpu", host_file)
    fb.export_model(loaded, file)
    size = "x".join(map(str, reversed(loaded.image_shape[1:])))
    show_line(f"{file}: {len(loaded.class_names)} classes, images of {size}, {file.stat().st_size / 1e6:.1f} MB")


# ---------------------------------------------------------------- input and output


def open_model(folder: Path, device: str, host_file: list[Path] | None) -> fb.Model:
    opt.check_one_run(folder)
    return fb.load_model(folder, device, host_file=host_file)


def choose_format(form: str | None, out: Path | None, formats: Sequence[str]) -> str:
    """The format that is named, or that the ending of the file names; a table only goes to the terminal."""
    if form is not None and form not in formats:
        raise unknown("format", form, formats)
    form = form or (TABLE if out is None else out.suffix.removeprefix("."))
    if out is not None and form not in formats[1:]:
        raise FlashbackError(f"{printable(out)} cannot hold a table; use --format {' or '.join(formats[1:])}")
    return form


def write_text(text: str, out: Path | None) -> None:
    if out is None:
        write_stdout(text)
    else:
        make_folder(out.parent)
        write_atomically(out, text)


def report_skipped(skipped: dict[str, str]) -> None:
    for sentence in skipped.values():
        say(f"skipped: {sentence}")
    if skipped:
        say(f"skipped in all, as they cannot be read: {len(skipped)}")


# ---------------------------------------------------------------- tables


def show_predictions(predictions: Predictions) -> None:
    rows = (
        (row.path if row.rank == 1 else "", str(row.rank), row.class_name, f"{row.probability:.3f}")
        for row in predictions
    )
    show_table("predictions", ("path", "rank", "class", "probability"), rows, texts=3)


def matrix_fits(evaluation: FileEvaluation) -> bool:
    """Whether the terminal has room for the confusion matrix beside the other columns."""
    names, largest = evaluation.class_names, max(map(max, evaluation.confusion))
    others = OTHER_COLUMNS + min(max(map(len, names)), NAME_COLUMNS)
    return others + len(names) * (1 + len(str(max(largest, len(names))))) <= output().width


def show_classes(evaluation: FileEvaluation) -> None:
    """Show the accuracy of every class, and the confusion matrix, or only its largest entries if it is large."""
    names = evaluation.class_names
    is_small = len(names) <= LARGEST_MATRIX and matrix_fits(evaluation)
    numbers = [str(number) for number in range(1, len(names) + 1)]
    rows = []
    for number, entry, counts in zip(numbers, evaluation.rows(), evaluation.confusion, strict=True):
        accuracy = "" if entry["accuracy"] is None else f"{entry['accuracy']:.1f}"
        cells = [str(count) if count else "·" for count in counts] if is_small else []
        rows.append((number, entry["class"], str(entry["images"]), accuracy, *cells))
    columns = ("", "class", "images", "right, %", *(numbers if is_small else ()))
    caption = "Numbered columns: how many images were taken for the class of that number." if is_small else ""
    show_table("classes", columns, rows, texts=2, caption=caption)
    if not is_small:
        pairs = [(true, taken_for, str(count)) for true, taken_for, count in evaluation.most_confused(CONFUSED_PAIRS)]
        show_table("confused most often", ("class", "taken for", "images"), pairs, texts=2)
