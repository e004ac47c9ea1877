"""The second rank of runs that the tests take part in as the first: `second_rank.py CONFIG (PORT FOLDER)...`."""

import sys
from contextlib import suppress
from pathlib import Path

import flashback as fb
from flashback import ranks
from flashback.config import RunConfig
from flashback.plain_yaml import read_yaml
from flashback.recipes import config_from_dict
from rank_runs import as_rank


def take_part(config: RunConfig, port: str, folder: str) -> None:
    with as_rank(1, 2, MASTER_PORT=port, TORCHELASTIC_RUN_ID="test"), suppress(ranks.AnotherRankFailedError):
        fb.run(config, out=folder, device="cpu")


if __name__ == "__main__":
    configuration = config_from_dict(read_yaml(Path(sys.argv[1]).read_text(), sys.argv[1]))
    for place in range(2, len(sys.argv), 2):
        take_part(configuration, *sys.argv[place : place + 2])
