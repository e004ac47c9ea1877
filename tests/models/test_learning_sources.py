"""Images from Python: data sets with the interfaces of torchvision and Hugging Face, and arrays."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pictures
from torch.utils.data import Dataset, Subset

from flashback.errors import FlashbackError, printable
from flashback.models.learner import Learner
from flashback.models.sources import collect, list_parts, list_source

QUICK: dict[str, Any] = {"training.epochs": 1, "training.batch_size": 8}
RANDOM = np.random.default_rng(5)


def pictures(count: int) -> list[Pictures.Image]:
    return [Pictures.fromarray(RANDOM.integers(0, 256, (12, 12, 3), dtype=np.uint8)) for _ in range(count)]


class VisionFolder(Dataset[Any]):
    """As torchvision.datasets.ImageFolder: items (image, number), `classes`, `targets` and `samples`."""

    def __init__(self, images: Sequence[Any], targets: Sequence[int], classes: Sequence[str] = ("cup", "fork")) -> None:
        self.images, self.targets, self.labels, self.classes = images, list(targets), list(targets), list(classes)
        self.samples = [(f"photos/{row}.png", target) for row, target in enumerate(targets)]
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        self.read.append(row)
        if self.images[row] is None:
            raise OSError("cannot identify image file")
        return self.images[row], self.labels[row]


class Image:
    """A feature of Hugging Face, known by the name of its class."""


class ClassLabel:
    def __init__(self, names: Sequence[str] | None) -> None:
        self.names = names


class Value:
    pass


class Columns:
    """As datasets.Dataset: items are mappings, columns are read by name, `features` describes them."""

    def __init__(self, features: Mapping[str, Any], **columns: Sequence[Any]) -> None:
        self.features, self.columns = dict(features), columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key: Any) -> Any:
        return iter(self.columns[key]) if isinstance(key, str) else {n: c[key] for n, c in self.columns.items()}


def hugging_face(labels: Sequence[Any], column: str = "label", feature: Any = None) -> Columns:
    features = {"img": Image(), column: feature or ClassLabel(["pen", "ink"])}
    return Columns(features, **{"img": pictures(len(labels)), column: labels})


def test_a_torchvision_data_set_is_learned_and_judged_and_its_files_are_named(tmp_path: Path) -> None:
    images: list[Any] = pictures(9)
    images[3] = None
    model = Learner.create(tmp_path / "m", settings=QUICK)
    version = model.learn(VisionFolder(images, [0, 1, 0, 1, 0, 1, 0, 1, 0]))
    assert (version.classes, version.images + version.held_out) == (("cup", "fork"), 8)
    ((path, reason),) = model.skipped.items()
    assert path == "photos/3.png"
    assert reason.startswith("cannot read photos/3.png: the file is damaged")
    assert model.evaluate(VisionFolder(images, [0, 1] * 4 + [0])).images == 8
    assert {row.path for row in model.predict(VisionFolder(images[:2], [0, 0]))} == {"photos/0.png", "photos/1.png"}


def test_labels_are_read_without_the_images_where_a_data_set_has_them() -> None:
    dataset = VisionFolder(pictures(4), [0, 1, 0, 1])
    assert [image.label for image in list_source(dataset, labelled=True)] == ["cup", "fork", "cup", "fork"]
    assert dataset.read == []
    subset = list_source(Subset(dataset, [1, 3]), labelled=True)
    assert [(image.name, image.label) for image in subset] == [("photos/1.png", "fork"), ("photos/3.png", "fork")]
    assert dataset.read == []
    subset[1].read(None)
    assert dataset.read == [3]
    del dataset.targets  # the classes are still those of the whole
    assert [image.label for image in list_source(Subset(dataset, [1, 2]), labelled=True)] == ["fork", "cup"]


def test_classes_without_names_are_numbers_and_synonyms_give_the_first_name() -> None:
    tensors = VisionFolder(pictures(2), [4, 7], classes=())
    tensors.targets = torch.tensor([4, 7])  # type: ignore[assignment]  # as MNIST has them
    assert [image.label for image in list_source(tensors, labelled=True)] == [4, 7]
    synonyms: Any = [("tench", "Tinca tinca"), ("goldfish",)]
    images = list_source(VisionFolder(pictures(2), [1, 0], synonyms), labelled=True)
    assert [image.label for image in images] == ["goldfish", "tench"]


def test_transformed_labels_have_no_names() -> None:
    dataset: Any = VisionFolder(pictures(4), [0, 1, 2, 3], ("cat", "dog", "owl", "emu"))
    dataset.target_transform = lambda label: int(label >= 2)
    dataset.labels = [0, 0, 1, 1]
    assert [image.label for image in list_source(dataset, labelled=True)] == [0, 0, 1, 1]
    assert [image.label for image in list_source(Subset(dataset, [3, 0]), labelled=True)] == [1, 0]
    del dataset.targets
    assert [image.label for image in list_source(Subset(dataset, [3, 0]), labelled=True)] == [1, 0]


@pytest.mark.parametrize("source", [VisionFolder(pictures(4), [1, 0, 1, 0]), hugging_face([1, 0, 1, 0])])
def test_new_classes_are_columns_in_the_order_of_their_numbers(source: Any) -> None:
    images, _ = list_parts(source)
    assert [image.label for image in images[:2]] == [image.label for image in images[2:]]
    assert collect(images, (3, 12, 12), ()).new == (images[1].label, images[0].label)


def test_a_transformed_data_set_is_a_sentence(tmp_path: Path) -> None:
    tensors = VisionFolder([torch.zeros(3, 8, 8)] * 4, [0, 1, 0, 1])
    with pytest.raises(FlashbackError, match="are not PIL images; leave out the transform or format of the data set"):
        Learner.create(tmp_path / "m", settings=QUICK).learn(tensors)


def test_pictures_are_turned_upright_and_not_changed() -> None:
    pixels = np.zeros((8, 12, 3), np.uint8)
    pixels[0] = 255  # the upper edge
    exif, file = Pictures.Exif(), io.BytesIO()
    exif[0x0112] = 6  # the upper edge of the pixels is the right one of the picture
    Pictures.fromarray(pixels).save(file, "PNG", exif=exif)
    picture = Pictures.open(file)
    (image,) = list_source(VisionFolder([picture], [0]))
    assert image.read(None).shape == (3, 12, 8)
    assert image.read(None)[0, :, -1].min() == 255
    assert picture.size == (12, 8)
    deep = Pictures.fromarray(np.zeros((8, 8), np.uint16))
    with pytest.raises(FlashbackError, match="more than 8 bits a channel"):
        list_source(VisionFolder([deep], [0]))[0].read(None)


def test_a_hugging_face_data_set_with_its_splits_is_learned(tmp_path: Path) -> None:
    model = Learner.create(tmp_path / "m", settings=QUICK)
    splits = {"train": hugging_face([0, 1] * 4, "fine"), "validation": hugging_face([1, 0, 0], "fine")}
    version = model.learn(splits)
    assert (version.classes, version.images, version.held_out) == (("pen", "ink"), 8, 3)
    assert model.evaluate(splits).images == 3
    unlabelled = Columns({"img": Image()}, img=pictures(2))
    assert {row.path for row in model.predict(unlabelled)} == {"image 0", "image 1"}
    texts = hugging_face(["Stift", "pen"], feature=Value())
    assert [image.label for image in list_source(texts, labelled=True)] == ["Stift", "pen"]
    with pytest.raises(FlashbackError, match="these data sets are test; name the one to learn 'train'"):
        list_parts({"test": hugging_face([0])})


def no_length() -> Any:
    class Stream:
        def __iter__(self) -> Iterator[Any]:
            return iter([])

    return Stream()


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (no_length, "a mapping of class names to arrays, or a data set, not Stream"),
        (lambda: np.zeros((2, 8, 8), np.uint8), "a mapping of class names to arrays, or a data set, not ndarray"),
        (lambda: VisionFolder([], []), "this data set has no images"),
        (lambda: hugging_face([0, -1]), "image 1 of this data set has no class, but the label -1"),
        (
            lambda: Columns({"img": Image(), "fine": ClassLabel(["a"]), "coarse": ClassLabel(["b"])}, img=pictures(1)),
            "columns of this data set: img, fine, coarse; rename the right one to 'label' with rename_column",
        ),
        (lambda: Columns({"text": Value()}, text=["a"]), "text; rename the right one to 'image' with rename_column"),
        (dict, "there are no images in this mapping"),
    ],
)
def test_what_is_no_data_set_of_images_is_a_sentence(source: Any, sentence: str) -> None:
    with pytest.raises(FlashbackError, match=sentence):
        list_parts(source())


@pytest.mark.parametrize("names", [("cup", "fork"), ("c\tup", "fork\x1b[2J")])
def test_arrays_are_evaluated_as_they_are_learned(tmp_path: Path, names: Sequence[str]) -> None:
    arrays = {name: np.stack([np.asarray(each) for each in pictures(4)]) for name in names}
    model = Learner.create(tmp_path / "m", settings=QUICK)
    assert model.learn(arrays).classes == tuple(map(printable, names))
    assert model.evaluate(arrays).images == 8
    assert model.predict({"anything": arrays[names[0]]}, top=1).rows[0].path == "anything[0]"


def test_classes_that_are_numbers_are_judged_by_their_numbers_in_any_order(tmp_path: Path) -> None:
    """Columns count classes in the order learned, so a number is a name and no column."""
    patterns = RANDOM.integers(0, 200, (3, 8, 8, 3))
    for name, labels in (("first", [1, 2]), ("second", [0]), ("all", [0, 1, 2])):
        y = np.repeat(labels, 8)
        x = patterns[y] + RANDOM.integers(0, 10, (len(y), 8, 8, 3))
        np.savez(tmp_path / f"{name}.npz", x=x.astype(np.uint8), y=y)
    model = Learner.create(tmp_path / "m", host="simplecil", settings={"host.net": "smallcnn"})
    for name in ("first", "second"):
        model.learn(tmp_path / f"{name}.npz")
    assert model.evaluate(tmp_path / "all.npz").accuracy == 100
