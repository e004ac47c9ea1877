"""Training: the trainer, the step, evaluation, checkpoints."""

from flashback.training.checkpoints import Checkpoints, Interrupted
from flashback.training.evaluation import evaluate
from flashback.training.run import build_host, build_method, open_benchmark, resume, run, select_device, train
from flashback.training.trainer import Trainer, TrainingResult

__all__ = [
    "Checkpoints",
    "Interrupted",
    "Trainer",
    "TrainingResult",
    "build_host",
    "build_method",
    "evaluate",
    "open_benchmark",
    "resume",
    "run",
    "select_device",
    "train",
]
