"""Two bounds. Finetune learns each task and keeps nothing; joint learns all tasks at once."""

from collections.abc import Mapping

from torch import Tensor

from flashback.batches import Stream
from flashback.hosts.base import HOSTS, Host, cross_entropy
from flashback.hosts.stages import Stage, Step


@HOSTS.register("finetune")
class Finetune(Host):
    """Cross-entropy over all columns on the new task alone: the lower bound."""

    has_knowledge = False
    accumulates_structure = False

    def can_revisit(self) -> bool:
        return True

    def trains_future_classes(self) -> bool:
        return True

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        return {"task": cross_entropy(step.output.logits, step.batch.y)}


@HOSTS.register("joint")
class Joint(Finetune):
    """Trains once, at the last task, on the images of all tasks: the upper bound."""

    task_by_task = False

    def stages(self) -> list[Stage]:
        is_last = self.task.index == len(self.benchmark.tasks) - 1
        return [self.main_stage()] if is_last else []

    def stream(self) -> Stream:
        first, *others = (Stream.of(task.train, self.device) for task in self.benchmark.tasks)
        return first.joined(*others)
