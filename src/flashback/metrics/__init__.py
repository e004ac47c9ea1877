"""Metrics of accuracy matrices, significance tests, and similarity of representations."""

from flashback.metrics.accuracy import (
    average_accuracies,
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
    without_history,
)
from flashback.metrics.cka import LinearCKA, MinibatchCKA, hsic1, linear_cka
from flashback.metrics.statistics import (
    PairedTest,
    confidence_interval,
    deviation,
    holm,
    mean,
    paired_over_methods,
    paired_over_tasks,
    paired_test,
    verdict,
)
