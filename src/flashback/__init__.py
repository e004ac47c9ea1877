"""Flashback: continual learning in PyTorch, built around Flashback Learning.

What is exported here is imported on first use, so that `import flashback` and the command line start without torch.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flashback.benchmarks import Benchmark, load_benchmark
    from flashback.config import RunConfig
    from flashback.errors import FlashbackError
    from flashback.hosts import HOSTS, Host
    from flashback.models import Learner, Model, evaluate_files, export_model, load_model, predict_files
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
    "Learner",
    "Model",
    "RunConfig",
    "Trainer",
    "TrainingResult",
    "build_host",
    "compare",
    "configure",
    "evaluate",
    "evaluate_files",
    "export_model",
    "load_benchmark",
    "load_model",
    "load_trained",
    "predict_files",
    "resume",
    "run",
    "run_sweep",
    "train",
    "tune",
]

_EXPORTS = {
    "benchmarks": ("Benchmark", "load_benchmark"),
    "config": ("RunConfig",),
    "errors": ("FlashbackError",),
    "hosts": ("HOSTS", "Host"),
    "models": ("Learner", "Model", "evaluate_files", "export_model", "load_model", "predict_files"),
    "nets": ("NETS", "Backbone"),
    "plugin": ("Flashback",),
    "recipes": ("configure",),
    "studies": ("compare", "run_sweep", "tune"),
    "training": (
        "Trainer", "TrainingResult", "build_host", "evaluate", "load_trained", "resume", "run", "train",
    ),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        return value
    if not name.startswith("_") and find_spec(f"{__name__}.{name}"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
