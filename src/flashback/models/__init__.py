"""Models in use: predict, evaluate and export, for image files of any size; and models that keep learning."""

from flashback.models.evaluation import FileEvaluation, evaluate_files
from flashback.models.export import export_model
from flashback.models.learner import Learner
from flashback.models.model import Model, load_model
from flashback.models.prediction import Prediction, Predictions, predict_files
from flashback.models.versions import Version

__all__ = [
    "FileEvaluation",
    "Learner",
    "Model",
    "Prediction",
    "Predictions",
    "Version",
    "evaluate_files",
    "export_model",
    "load_model",
    "predict_files",
]
