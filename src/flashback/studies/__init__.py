"""Many runs, one answer: comparisons, sweeps, tuning, representations."""

from flashback.results import Comparison
from flashback.studies.choosing import FormChoice, choose_form
from flashback.studies.comparison import compare
from flashback.studies.frontier import trace_frontier
from flashback.studies.on_ray import Ray
from flashback.studies.on_slurm import Slurm
from flashback.studies.similarity import compare_representations
from flashback.studies.sweeps import Outcome, Sweep, parse_sweep, read_sweep, run_sweep
from flashback.studies.tuning import TuningResult, tune

__all__ = [
    "Comparison",
    "FormChoice",
    "Outcome",
    "Ray",
    "Slurm",
    "Sweep",
    "TuningResult",
    "choose_form",
    "compare",
    "compare_representations",
    "parse_sweep",
    "read_sweep",
    "run_sweep",
    "trace_frontier",
    "tune",
]
