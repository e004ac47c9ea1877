"""The hosts: one file a method, each reads like its paper."""

from flashback.hosts import finetune, icarl, lucir, lwf_mc
from flashback.hosts.base import HOSTS, Host
from flashback.hosts.stages import Optimisation, Stage, Step

__all__ = ["HOSTS", "Host", "Optimisation", "Stage", "Step", "finetune", "icarl", "lucir", "lwf_mc"]
