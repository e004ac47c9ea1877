"""Flashback: continual learning in PyTorch, built around Flashback Learning."""

from flashback.benchmarks import Benchmark, load_benchmark
from flashback.config import RunConfig
from flashback.errors import FlashbackError
from flashback.hosts import HOSTS, Host
from flashback.nets import NETS, Backbone
from flashback.plugin import Flashback
from flashback.recipes import configure
from flashback.studies import compare, run_sweep, tune
from flashback.training import Trainer, TrainingResult, build_host, evaluate, load_trained, resume, run, train

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
    "compare",
    "configure",
    "evaluate",
    "load_benchmark",
    "load_trained",
    "resume",
    "run",
    "run_sweep",
    "train",
    "tune",
]
