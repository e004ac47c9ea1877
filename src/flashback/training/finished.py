"""Find out whether a folder holds the finished run of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashback.config import RunConfig, to_dict
from flashback.errors import require
from flashback.files import ANOTHER_FOLDER
from flashback.hosts.external import external_code
from flashback.recipes import comparable, config_from_dict, resolved
from flashback.records import RunRecord, check_settings, is_begun, is_finished, read_record
from flashback.training.building import open_benchmark
from flashback.training.checkpoints import digest_of

IGNORED = ("checkpoint",)  # sections of a configuration that do not change results


def run_digest(config: RunConfig, checksum: str) -> str:
    """What the checkpoints of a run are bound to: its seed, host, settings and data."""
    settings = {key: value for key, value in comparable(to_dict(config)).items() if key not in IGNORED}
    return digest_of([settings, checksum])


def finished_run(
    folder: Path, config: Mapping[str, Any], checksum: str | None = None, data: str | Path | None = None
) -> RunRecord | None:
    """The record of this run, or None if it is not finished; another run in the folder is an error.

    A run is the same if its settings, the code of a host or net from outside, and the data are the same. Without a
    checksum, the data are opened only if their path has changed.
    """
    if not is_begun(folder):
        return None
    check_settings(folder, config, IGNORED, comparable)
    if not is_finished(folder):
        return None
    record = read_record(folder)
    if checksum is None and resolved(record.config)["benchmark"]["name"] != config["benchmark"]["name"]:
        checksum = open_benchmark(config_from_dict(config), data, labels_only=True).checksum
    must_match = record.run.get("must_match")
    before = must_match.get("code") if isinstance(must_match, dict) else None
    now = external_code(config["host"]["name"], config["host"]["net"]).get("code")
    require(before == now, f"{folder} was made with other code of this host or net; {ANOTHER_FOLDER}")
    require(
        checksum in (None, record.run.get("data_checksum")), f"{folder} holds a run on other data; {ANOTHER_FOLDER}"
    )
    return record
