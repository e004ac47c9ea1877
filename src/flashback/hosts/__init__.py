"""The hosts: one file per method. Importing this package registers them all."""

from importlib import import_module

from flashback.hosts.base import HOSTS, Host
from flashback.hosts.stages import Optimisation, Stage, Step

METHODS = """
    aanets afec agem beef beef_compress bic caf connector der der_expansion dytox er ewc exemplar_replay finetune foster
    icarl lucir lwf lwf_mc mas pnc podnet ranpac si simplecil wa xder
"""
for method in METHODS.split():
    import_module(f"{__name__}.{method}")

__all__ = ["HOSTS", "Host", "Optimisation", "Stage", "Step"]
