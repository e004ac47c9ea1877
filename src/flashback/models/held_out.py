"""Which images of an update are held out to judge it, and which of them are kept.

Every image has a place from 0 to 1, which depends on its pixels, and every class has a cut: what lies below it is held
out. So an image that comes again in a later update is trained on in both, or in none.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from flashback.benchmarks import Images
from flashback.files import sha256
from flashback.memory import Memory
from flashback.seeds import seeded_generator


def split(
    images: Images, earlier: Images, classes: Sequence[str], cuts: Mapping[str, float], share: float, seed: int
) -> tuple[Images, Images, dict[str, float]]:
    """Hold out the same share of every new class, and at least one image of a new class with two or more.

    Args:
        images: The images of an update.
        earlier: The images that were held out before; if they come again, they are held out again.
        classes: The names of all classes, by label.
        cuts: The cuts of the classes that were learned before.
        share: The share to hold out; 0 trains on all.
        seed: Decides the places.

    Returns:
        The images to train on, at least one of each class, the others, and the cuts of all classes.
    """
    contents, known, cuts = digests(images.x), set(digests(earlier.x)), dict(cuts)
    places = [place(seed, content) for content in contents]
    held_out = torch.zeros(len(images), dtype=torch.bool)
    for label in torch.unique(images.y).tolist():
        rows = sorted(torch.nonzero(images.y == label).flatten().tolist(), key=places.__getitem__)
        name, least = classes[label], 0
        if name not in cuts:
            cuts[name] = cut([places[row] for row in rows], share)
            least = int(share > 0)
        rows.sort(key=lambda row: contents[row] not in known)
        count = sum(places[row] < cuts[name] or contents[row] in known for row in rows) if share else 0
        held_out[rows[: min(max(count, least), len(rows) - 1)]] = True
    return Images(images.x[~held_out], images.y[~held_out]), Images(images.x[held_out], images.y[held_out]), cuts


def digests(pixels: Tensor) -> list[str]:
    """A digest of each image."""
    return [sha256(image.tobytes()) for image in pixels.cpu().numpy()]


def place(seed: int, content: str) -> float:
    """A number from 0 to 1 that looks random, but is always the same for an image."""
    return int(sha256(f"{seed} {content}")[:12], 16) / 16**12


def cut(places: Sequence[float], share: float) -> float:
    """The value below which a share of the places lies, near that share; `places` are in ascending order."""
    count = min(round(share * len(places)), len(places) - 1)
    least = math.nextafter(places[count - 1], 1) if count else 0.0
    return min(max(share, least), places[count])


def count_copies(train: Images, memory: Memory | None, others: Images) -> int:
    """How many images that are trained on, now or from the memory, are equal to one of the others."""
    known, trained = set(digests(others.x)), digests(train.x)
    replayed = set() if memory is None else set(digests(memory.images[: memory.filled]))
    return sum(content in known for content in trained) + len((replayed - set(trained)) & known)


def joined(first: Images, second: Images) -> Images:
    return Images(torch.cat([first.x, second.x]), torch.cat([first.y, second.y]))


def without(images: Images, others: Images) -> Images:
    """The images that are not among the others with the same label."""
    known = set(zip(digests(others.x), others.y.tolist(), strict=True))
    pairs = zip(digests(images.x), images.y.tolist(), strict=True)
    rows = torch.tensor([pair not in known for pair in pairs], dtype=torch.bool)
    return Images(images.x[rows], images.y[rows])


def limited(images: Images, per_class: int, seed: int, number: int) -> Images:
    """Keep at most `per_class` images of each class, drawn at random."""
    parts = []
    for label in torch.unique(images.y).tolist():
        rows = torch.nonzero(images.y == label).flatten()
        order = torch.randperm(len(rows), generator=seeded_generator(seed, number, label, "kept"))
        parts.append(rows[order[:per_class].sort().values])
    rows_to_keep = torch.cat(parts).sort().values if parts else torch.zeros(0, dtype=torch.int64)
    return Images(images.x[rows_to_keep], images.y[rows_to_keep])


def no_images(like: Tensor) -> Images:
    return Images(like[:0], torch.zeros(0, dtype=torch.int64))
