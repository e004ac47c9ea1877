"""Finished runs, the methods they belong to, and paired comparisons of any two methods."""

from flashback.results.comparison import Comparison, Row, compare_methods, pair_arms
from flashback.results.frontier import Frontier
from flashback.results.method import Cost, Method, Sample, group_methods
from flashback.results.reading import Runs, Similarity, read_run, read_runs
from flashback.results.run import Epoch, Run

__all__ = [
    "Comparison",
    "Cost",
    "Epoch",
    "Frontier",
    "Method",
    "Row",
    "Run",
    "Runs",
    "Sample",
    "Similarity",
    "compare_methods",
    "group_methods",
    "pair_arms",
    "read_run",
    "read_runs",
]
