"""Metrics of accuracy matrices, significance tests, and similarity of representations."""

from flashback.metrics.accuracy import (
    average_accuracy,
    average_incremental_accuracy,
    backward_transfer,
    class_accuracies,
    forgetting,
    forward_transfer,
    last_accuracy,
    mean_new_task_accuracy,
    new_task_accuracy,
    stability_plasticity_ratio,
    summarise,
)
from flashback.metrics.cka import LinearCKA, linear_cka
from flashback.metrics.frontier import Gap, TradeOff, dominated, gap, height, outline, trade_off
from flashback.metrics.statistics import PairedTest, holm, paired_over_methods, paired_over_tasks, paired_test, verdict

__all__ = [
    "Gap",
    "LinearCKA",
    "PairedTest",
    "TradeOff",
    "average_accuracy",
    "average_incremental_accuracy",
    "backward_transfer",
    "class_accuracies",
    "dominated",
    "forgetting",
    "forward_transfer",
    "gap",
    "height",
    "holm",
    "last_accuracy",
    "linear_cka",
    "mean_new_task_accuracy",
    "new_task_accuracy",
    "outline",
    "paired_over_methods",
    "paired_over_tasks",
    "paired_test",
    "stability_plasticity_ratio",
    "summarise",
    "trade_off",
    "verdict",
]
