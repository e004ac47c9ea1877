"""Where a distance acts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Support:
    """The columns, the samples and the weight of a distance.

    Theorems 1 to 4 hold as printed where stability and plasticity have the same support; elsewhere column by column.

    Attributes:
        columns: The columns of the answers that the distance looks at; all of them by default.
        samples: "all" samples of the batch, or only those from the "memory".
        weight: The factor of the distance in the loss.
    """

    columns: slice = field(default_factory=lambda: slice(None))
    samples: Literal["all", "memory"] = "all"
    weight: float = 1.0
