"""Training: the trainer, the step, evaluation, checkpoints."""

from flashback.training.building import build_host, build_method, open_benchmark
from flashback.training.checkpoints import Checkpoints, Interrupted
from flashback.training.environment import select_device
from flashback.training.evaluation import evaluate
from flashback.training.result import TrainingResult
from flashback.training.running import load_trained, resume, run, train
from flashback.training.trainer import Trainer

__all__ = [
    "Checkpoints",
    "Interrupted",
    "Trainer",
    "TrainingResult",
    "build_host",
    "build_method",
    "evaluate",
    "load_trained",
    "open_benchmark",
    "resume",
    "run",
    "select_device",
    "train",
]
