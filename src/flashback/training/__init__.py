"""Training: the trainer, the step, evaluation, checkpoints."""

from flashback.training.evaluation import evaluate
from flashback.training.run import build_host, run, select_device
from flashback.training.trainer import Trainer, TrainingResult, train

__all__ = ["Trainer", "TrainingResult", "build_host", "evaluate", "run", "select_device", "train"]
