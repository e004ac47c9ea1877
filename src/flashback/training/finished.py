"""Is the finished run that is asked for there already? One answer for a single run, a comparison and a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashback.errors import require
from flashback.files import ANOTHER_FOLDER
from flashback.hosts.external import external_code
from flashback.recipes import comparable, config_from_dict, resolved
from flashback.records import RunRecord, check_settings, is_begun, is_finished, read_record
from flashback.training.building import open_benchmark

IGNORED = ("checkpoint",)  # sections of a configuration that change nothing of a run


def finished_run(
    folder: Path, config: Mapping[str, Any], checksum: str | None = None, data: str | Path | None = None
) -> RunRecord | None:
    """The record of this very run, None where it is still to be made; any other run in the folder is an error.

    The same run has the same settings, the same code where its host or net comes from a file, and the same data where
    their checksum is given. Where it is not, they are looked at only if the path of one's own is another than then.
    """
    if not is_begun(folder):
        return None
    check_settings(folder, config, IGNORED, comparable)
    if not is_finished(folder):
        return None
    record = read_record(folder)
    if checksum is None and resolved(record.config)["benchmark"]["name"] != config["benchmark"]["name"]:
        checksum = open_benchmark(config_from_dict(config), data, labels_only=True).checksum
    known = record.run.get("must_match")
    before = known.get("code") if isinstance(known, dict) else None
    now = external_code(config["host"]["name"], config["host"]["net"]).get("code")
    require(before == now, f"{folder} was made with other code of this host or net; {ANOTHER_FOLDER}")
    require(
        checksum in (None, record.run.get("data_checksum")), f"{folder} holds a run on other data; {ANOTHER_FOLDER}"
    )
    return record
