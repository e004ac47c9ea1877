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
    except (OSError, ValueError, RecursionError):
        raise FlashbackError("is not readable as JSON") from None
    require(isinstance(content, dict) and isinstance(content.get("layers"), list), "names no layers")
    host, seeds = content.get("host"), content.get("seeds")
    known = isinstance(host, str) and isinstance(seeds, dict) and all(type(seeds.get(arm)) is int for arm in ARMS)
    require(known, "does not name its host and seeds; write it again with `flashback cka`")
    layers = [str(layer) for layer in content["layers"]]
    values: dict[str, dict[str, list[float]]] = {}
    for images in ("old", "new"):
        arms = content.get(images)
        require(isinstance(arms, dict), f"holds no values for {images} images")
        values[images] = {arm: arms[arm] for arm in ARMS if arm in arms}
        for series in values[images].values():
            right = isinstance(series, list) and len(series) == len(layers) and all(is_number(v, 1.001) for v in series)
            require(right, f"does not hold one similarity for each of its layers ({images} images)")
    require(any(values.values()) and bool(layers), "holds no values")
    return Similarity(name, str(host), {arm: seeds[arm] for arm in ARMS}, layers, values)
