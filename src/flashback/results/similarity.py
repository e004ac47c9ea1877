"""Similarity of representations with joint training, as `flashback cka` writes it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from flashback.errors import FlashbackError, require
from flashback.files import LARGEST_RECORD, read_file
from flashback.records.terms import ARMS
from flashback.results.run import is_number

SIMILARITY = "cka.json"


@dataclass(frozen=True)
class Similarity:
    """Linear CKA with a jointly trained reference by layer, on images of the old tasks and of the last one."""

    name: str
    host: str
    seeds: dict[str, int]  # by arm
    layers: list[str]
    values: dict[str, dict[str, list[float]]]  # by old or new, then by arm

    @property
    def title(self) -> str:
        seeds = list(dict.fromkeys(self.seeds.values()))
        return f"{self.host}, {'seed' if len(seeds) == 1 else 'seeds'} {' and '.join(map(str, seeds))}"


def read_similarity(path: Path, name: str) -> Similarity:
    try:
        content = json.loads(read_file(path / SIMILARITY, LARGEST_RECORD))
        host, seeds = str(content["host"]), {arm: int(content["seeds"][arm]) for arm in ARMS}
        layers = [str(layer) for layer in content["layers"]]
        values = {key: {arm: content[key][arm] for arm in ARMS if arm in content[key]} for key in ("old", "new")}
    except (OSError, ValueError, RecursionError):
        raise FlashbackError("is not readable as JSON") from None
    except (KeyError, TypeError) as error:
        raise FlashbackError(f"is not complete ({error}); write it again with `flashback cka`") from None
    every = [series for arms in values.values() for series in arms.values()]
    lists = all(isinstance(series, list) and len(series) == len(layers) for series in every)
    right = lists and all(is_number(value, 1.001) for series in every for value in series)
    require(right and bool(every) and bool(layers), "does not hold one similarity for each of its layers")
    return Similarity(name, host, seeds, layers, values)
