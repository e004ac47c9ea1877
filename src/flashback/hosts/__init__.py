"""The hosts: one file a method, each reads like its paper."""

from flashback.hosts import (
    afec,
    beef,
    beef_compress,
    bic,
    der,
    der_expansion,
    ewc,
    finetune,
    foster,
    icarl,
    lucir,
    lwf_mc,
    plain_replay,
    podnet,
    wa,
    xder,
)
from flashback.hosts.base import HOSTS, Host
from flashback.hosts.stages import Optimisation, Stage, Step

__all__ = [
    "HOSTS",
    "Host",
    "Optimisation",
    "Stage",
    "Step",
    "afec",
    "beef",
    "beef_compress",
    "bic",
    "der",
    "der_expansion",
    "ewc",
    "finetune",
    "foster",
    "icarl",
    "lucir",
    "lwf_mc",
    "plain_replay",
    "podnet",
    "wa",
    "xder",
]
