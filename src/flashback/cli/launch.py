"""Start one run on several devices of this machine, as torchrun would."""

import logging
import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from flashback.cli.console import say
from flashback.ranks import check_gpus
from flashback.training import select_device

FAILED, INTERRUPTED = 1, 130


def start_ranks(count: int, device: str) -> int:
    """Start this command again in `count` processes, and wait for them.

    Args:
        count: The processes; each has a GPU of its own, unless the run is on a CPU.
        device: "cpu", "cuda", or "auto".

    Returns:
        The exit code of the first process, or of the one that failed.
    """
    if select_device(device).type == "cuda":
        check_gpus(count)
    logging.disable()  # torch would add pages to what the ranks say
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id="flashback",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "flashback", *sys.argv[1:])
    except SignalException:
        return INTERRUPTED
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        if failure.exitcode < 0:
            say(
                f"rank {rank} was ended by {failure.signal_name()}; the same command continues from the last checkpoint"
            )
            return FAILED
        return int(failed.failures.get(0, failure).exitcode)
    return 0
