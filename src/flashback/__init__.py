"""Flashback: continual learning in PyTorch, built around Flashback Learning."""

from flashback.benchmarks import Benchmark, load_benchmark
from flashback.config import RunConfig
from flashback.errors import FlashbackError
from flashback.hosts import HOSTS, Host
from flashback.nets import NETS, Backbone
from flashback.plugin import Flashback
from flashback.recipes import configure
from flashback.training import Trainer, TrainingResult, build_host, evaluate, run, train
from flashback.training.similarity import load_trained

__version__ = "0.1.0"

__all__ = [
    "HOSTS",
    "NETS",
    "Backbone",
    "Benchmark",
    "Flashback",
    "FlashbackError",
    "Host",
    "RunConfig",
    "Trainer",
    "TrainingResult",
    "build_host",
    "configure",
    "evaluate",
    "load_benchmark",
    "load_trained",
    "run",
    "train",
]
