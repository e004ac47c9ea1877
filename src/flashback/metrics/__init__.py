"""What a run achieved: pure functions of accuracy matrices, tests of significance, similarity of representations."""

from flashback.metrics.accuracy import (
    average_accuracies,
    average_accuracy,
    average_incremental_accuracy,
    backward_transfer,
    forgetting,
    forward_transfer,
    last_accuracy,
    mean_new_task_accuracy,
    new_task_accuracy,
    of_the_end,
    stability_plasticity_ratio,
    summarise,
)
from flashback.metrics.cka import LinearCKA, MinibatchCKA, hsic1, linear_cka
from flashback.metrics.statistics import (
    PairedTest,
    confidence_interval,
    deviation,
    mean,
    paired_over_methods,
    paired_over_tasks,
    paired_test,
    verdict,
)

__all__ = [
    "LinearCKA",
    "MinibatchCKA",
    "PairedTest",
    "average_accuracies",
    "average_accuracy",
    "average_incremental_accuracy",
    "backward_transfer",
    "confidence_interval",
    "deviation",
    "forgetting",
    "forward_transfer",
    "hsic1",
    "last_accuracy",
    "linear_cka",
    "mean",
    "mean_new_task_accuracy",
    "new_task_accuracy",
    "of_the_end",
    "paired_over_methods",
    "paired_over_tasks",
    "paired_test",
    "stability_plasticity_ratio",
    "summarise",
    "verdict",
]
