"""A Slurm of one node on this machine, from Debian's slurm-wlm and munge; it needs to be started by root."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "runuser")
KEY = Path("/etc/munge/munge.key")
# cred_expire is also how long a requeued job waits.
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={next_port}
AuthType=auth/munge
AuthInfo=socket={munge}/socket,cred_expire=10
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
KillWait=20
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=2000
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""


def reason_not_to_start() -> str:
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"Slurm needs {', '.join(missing)} (Debian: apt install slurm-wlm munge)"
    if os.geteuid() != 0 or not KEY.exists():
        return f"Slurm has to be started by root, with a key in {KEY}"
    return ""


@contextmanager
def slurm(folder: Path, port: int = 16817) -> Iterator[None]:
    """Start the daemons, and stop them in the end; SLURM_CONF has to name `folder`/slurm.conf."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    munge = Path(tempfile.mkdtemp(prefix="flashback-munge-"))  # where the user munge can get
    munge.chmod(0o755)
    shutil.chown(munge, "munge", "munge")
    values = {"host": platform.node(), "port": port, "next_port": port + 1, "folder": folder, "munge": munge}
    (folder / "slurm.conf").write_text(CONFIG.format(**values))
    names = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    files = [f"--{option}={munge / name}" for option, name in names.items()]
    pids = [folder / "slurmd.pid", folder / "slurmctld.pid", munge / "pid"]
    try:
        subprocess.run(["runuser", "-u", "munge", "--", "munged", f"--key-file={KEY}", *files], check=True)
        subprocess.run(["slurmctld"], check=True)
        subprocess.run(["slurmd"], check=True)
        deadline = time.monotonic() + 30
        while "idle" not in subprocess.run(["sinfo"], capture_output=True, text=True).stdout:
            if time.monotonic() > deadline:
                raise TimeoutError("no node of Slurm is idle")
            time.sleep(0.2)
        yield
    finally:
        for pid in pids:
            with suppress(OSError, ValueError):
                os.kill(int(pid.read_text()), signal.SIGTERM)
        shutil.rmtree(munge, ignore_errors=True)
