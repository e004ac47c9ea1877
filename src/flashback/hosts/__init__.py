"""The hosts: one file a method, each reads like its paper."""

from flashback.hosts import beef, beef_compress, der, ewc, finetune, foster, icarl, lucir, lwf_mc, xder
from flashback.hosts.base import HOSTS, Host
from flashback.hosts.stages import Optimisation, Stage, Step

__all__ = [
    "HOSTS",
    "Host",
    "Optimisation",
    "Stage",
    "Step",
    "beef",
    "beef_compress",
    "der",
    "ewc",
    "finetune",
    "foster",
    "icarl",
    "lucir",
    "lwf_mc",
    "xder",
]
