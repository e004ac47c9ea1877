"""AANets, adaptive aggregation networks (Liu et al. 2021), on the two hosts of the paper's comparison."""

from __future__ import annotations

from dataclasses import dataclass

from flashback.hosts.aggregating import AggregatingHost, AggregatingSettings
from flashback.hosts.base import HOSTS
from flashback.hosts.icarl import ICaRL, ICaRLSettings
from flashback.hosts.lucir import LUCIR, LUCIRSettings


@dataclass(frozen=True)
class ICaRLAANetsSettings(ICaRLSettings, AggregatingSettings):
    pass


@dataclass(frozen=True)
class LUCIRAANetsSettings(LUCIRSettings, AggregatingSettings):
    pass


@HOSTS.register("icarl-aanets")
class ICaRLAANets(AggregatingHost, ICaRL):
    """iCaRL, whose means and outputs come from mixed features."""

    Settings = ICaRLAANetsSettings


@HOSTS.register("lucir-aanets")
class LUCIRAANets(AggregatingHost, LUCIR):
    """LUCIR, which keeps the direction of mixed features."""

    Settings = LUCIRAANetsSettings
