"""The commands learn, history, rollback and prune, for models that keep learning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from flashback.cli import options as opt
from flashback.cli.console import say, show_line, show_table
from flashback.cli.models import report_skipped
from flashback.config import to_dict
from flashback.errors import printable, require
from flashback.records import dotted

if TYPE_CHECKING:
    from flashback.models import Learner, Version
    from flashback.training.trainer import Observer

REFUSED_EXIT = 3  # an update that the gate refused
MOST_CLASSES = 30  # that are shown after an update
HISTORY_CAPTION = (
    "again: known classes with more images; before, after: mean accuracy of known classes in percent, before and after "
    "the update; new: that of its new classes."
)
ModelFolder = Annotated[Path, Argument(metavar="MODEL", help="The folder of the model.")]


def learn(
    model: Annotated[Path, Argument(metavar="MODEL", help="The folder of the model; the first call creates it.")],
    images: Annotated[
        Path,
        Argument(metavar="IMAGES", help="A folder with one folder per class, an .npz, or a .csv of paths and labels."),
    ],
    max_drop: Annotated[
        float | None,
        Option(metavar="POINTS", help="Refuse the update if known classes lose more mean accuracy than this."),
    ] = None,
    max_class_drop: Annotated[
        float | None, Option(metavar="POINTS", help="Refuse the update if one known class loses more than this.")
    ] = None,
    host: Annotated[str | None, Option(help="New model: the method that learns; default: replay.")] = None,
    net: Annotated[str | None, Option(help="New model: the network; default: a small one on a CPU.")] = None,
    memory: Annotated[int | None, Option(metavar="IMAGES", help="New model: how many images it may keep.")] = None,
    flashback: Annotated[bool, Option("--flashback", help="New model: learn with flashback.")] = False,
    image_size: Annotated[int | None, Option(metavar="PIXELS", help="New model: the side of its images.")] = None,
    seed: Annotated[int | None, Option(help="New model: decides all randomness; default: 0.")] = None,
    holdout: Annotated[
        float | None, Option(metavar="SHARE", help="New model: the share of images held out; default: 0.1.")
    ] = None,
    settings: opt.Set = None,
    device: opt.Device = "auto",
    host_file: opt.HostFile = None,
) -> int:
    """Learn images of new and known classes.

    The first call creates the model; later calls need only the images. To continue an interrupted update, repeat the
    command. Every update is evaluated on held-out images and kept as a version. The exit code is 3 if a limit refused
    it.
    """
    from flashback.cli.progress import ProgressView
    from flashback.hosts.external import find_hosts
    from flashback.models import Learner

    find_hosts(host_file)
    options: dict[str, Any] = {
        "host": host,
        "net": net,
        "memory": memory,
        "image_size": image_size,
        "seed": seed,
        "holdout": holdout,
    }
    options = {name: value for name, value in options.items() if value is not None}
    options |= {"flashback": True} if flashback else {}
    options |= {"settings": opt.parse_settings(settings)} if settings else {}
    is_new = not is_model(model)
    learner = Learner.create(model, **options, device=device) if is_new else Learner(model, device)
    refuse_changes(learner, options)
    if learner.current is None:
        describe(learner)
    before = learner.current
    try:
        with ProgressView() as view:
            version = learner.learn(
                images,
                max_drop=max_drop,
                max_class_drop=max_class_drop,
                observers=[as_one_task(view.watch(str(model)))],
                progress=True,
            )
    finally:
        if is_new:
            learner.folder.discard_if_empty()
    if version.number == before:
        show_line(f"These images are learned already, in version {before}, which is in use.")
        return 0
    report_skipped(learner.skipped)
    show_update(version)
    if version.decision != "accepted":
        say(f"refused: {version.reason}; version {version.number} is kept, and {in_use(learner)}")
        return REFUSED_EXIT
    return 0


def history(
    model: ModelFolder,
    plot: Annotated[
        Path | None, Option(metavar="FILE", help="Draw the accuracies of all versions: .png, .pdf or .svg.")
    ] = None,
) -> None:
    """Show the versions of a model.

    Shows what each version learned, its accuracy on held-out images, and which one is in use.
    """
    from flashback.models import Learner

    learner = Learner(model, "cpu")
    versions = learner.history()
    rows = [history_row(version, learner) for version in versions]
    columns = ("no.", "decision", "date (UTC)", "images", "classes", "again", "before", "after", "new")
    if versions:
        show_table("versions", columns, rows, texts=2, caption=HISTORY_CAPTION)
    show_line(f"{in_use(learner).capitalize()}." if versions else "The model has learned nothing yet.")
    if plot is not None:
        from flashback.reports.versions import plot_versions

        plot_versions(versions, learner.current, plot)


def rollback(
    model: ModelFolder,
    version: Annotated[
        int | None, Argument(help="The number of a version; default: the one before the version in use.")
    ] = None,
) -> None:
    """Return to an earlier version of a model.

    The next update continues from it.
    """
    from flashback.models import Learner

    learner = Learner(model, "cpu")
    learner.rollback(version)
    show_line(f"{in_use(learner).capitalize()}.")


def prune(
    model: ModelFolder,
    keep: Annotated[int, Option(help="How many models to keep beside the one in use.")] = 5,
) -> None:
    """Remove old versions of a model to free space.

    Their records stay in the history.
    """
    from flashback.models import Learner

    size = Learner(model, "cpu").prune(keep)
    show_line(f"Freed {size / 1e6:.1f} MB.")


# ---------------------------------------------------------------- parts


def is_model(folder: Path) -> bool:
    from flashback.models.versions import ModelFolder as Folder

    return Folder(folder).exists


def refuse_changes(learner: Learner, arguments: Mapping[str, Any]) -> None:
    """Refuse options that differ from those that the model was made with."""
    config, model_settings = to_dict(learner.config), learner.settings
    values = dotted(config) | {"host": config["host"]["name"], "net": config["host"]["net"], "seed": config["seed"]}
    values |= {"memory": config["host"].get("memory_size"), "flashback": config["flashback"]["enabled"]}
    values |= {"image_size": model_settings.image_size, "holdout": model_settings.holdout}
    settings = {f"--set {key}": (key, value) for key, value in dotted(arguments.get("settings", {})).items()}
    options = {f"--{key.replace('_', '-')}": (key, value) for key, value in arguments.items() if key != "settings"}
    changed = [option for option, (key, value) in (options | settings).items() if values.get(key) != value]
    require(
        not changed,
        f"the model in {printable(learner.folder.path)} is made already, with another value of {', '.join(changed)}; "
        "leave out the option, or make another model",
    )


def describe(learner: Learner) -> None:
    """Say what the defaults chose, since they stay."""
    from flashback.hosts import HOSTS
    from flashback.reports.words import plural

    config = learner.config
    memory, trains = getattr(config.host, "memory_size", None), HOSTS[config.host.name].family != "frozen"
    parts = [
        f"method {config.host.name}{' with flashback' if config.flashback.enabled else ''}",
        f"network {config.host.net or 'chosen by the size of the images'}",
        *([f"a memory of {memory} images"] if memory else []),
        *([f"images of {side}x{side}"] if (side := learner.settings.image_size) else []),
        *([f"{plural(config.training.epochs, 'epoch')} per update"] if trains else []),
        f"{100 * learner.settings.holdout:g} % of the images held out",
    ]
    say(f"new model: {', '.join(parts)}; --host, --net, --memory, --set training.epochs and --holdout change it")


def as_one_task(observer: Observer) -> Observer:
    """Show an update as a run of one task, whatever came before."""
    return lambda event: observer({**event, "task": 0} | ({"tasks": 1} if "tasks" in event else {}))


def show_update(version: Version) -> None:
    """Show how every class was judged; of many classes only those that lost most, or if all are new, the worst."""
    from flashback.reports.words import plural

    columns: tuple[str, ...] = ("class", "", "images", "before, %", "after, %")
    names, title = version.classes, f"version {version.number}, on held-out images"
    if len(names) > MOST_CLASSES:
        worst = sorted(version.known, key=version.change) or sorted(version.after, key=lambda name: version.after[name])
        names, which = tuple(worst[:MOST_CLASSES]), "that lost most" if version.known else "least often right"
        show_line(f"Of {len(version.classes)} classes, those {len(names)} {which}:" if names else "No class is judged.")
    rows = []
    for name in names:
        kind = "new" if name in version.new else "again" if name in version.revisited else ""
        accuracies = (f"{values[name]:.1f}" if name in values else "" for values in (version.before, version.after))
        rows.append((name, kind, str(version.judged.get(name, 0)), *accuracies))
    if not version.before:
        columns, rows = (*columns[:3], columns[4]), [(*row[:3], row[4]) for row in rows]
    if rows:
        show_table(title, columns, rows, texts=2)
    known, new = version.accuracy(version.known), version.accuracy(version.new)
    classes = plural(len(version.new) + len(version.revisited), "class")
    parts = [f"learned {plural(version.images, 'image')} of {classes} in {version.seconds:.0f} s"]
    if version.parent is None:
        parts.append(f"all images are resized to {version.image_shape[2]}x{version.image_shape[1]}")
    if known is not None:
        parts.append(f"known classes {known:.1f} % (before {known + (version.drop or 0):.1f} %)")
    if new is not None:
        parts.append(f"new classes {new:.1f} %")
    if count_without_images := sum(name not in version.after for name in version.classes):
        parts.append(f"not judged, as no images are held out: {plural(count_without_images, 'class')}")
    show_line(f"Version {version.number}: {'; '.join(parts)}.")
    if version.copies:
        which = "image is equal to a held-out one" if version.copies == 1 else "images are equal to held-out ones"
        say(f"{version.copies} training {which}, so these accuracies are too high")


def history_row(version: Version, learner: Learner) -> tuple[str, ...]:
    def percent(value: float | None) -> str:
        return "" if value is None else f"{value:.1f}"

    known, new = version.accuracy(version.known), version.accuracy(version.new)
    decision = version.decision
    if version.number == learner.current:
        decision += ", in use"
    elif not learner.folder.has_model(version.number):
        decision += ", removed"
    return (
        *(str(version.number), decision, version.date[:16].replace("T", " "), str(version.images)),
        *(str(len(version.classes)), str(len(version.revisited))),
        *(percent(None if known is None else known + (version.drop or 0)), percent(known), percent(new)),
    )


def in_use(learner: Learner) -> str:
    return f"version {learner.current} is in use" if learner.current else "no version is in use"
