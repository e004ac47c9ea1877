"""How images reach the model: on the device as uint8, batched augmentation there."""

from flashback.batches.streams import NOT_STORED, Batch, Stream, count_batches, fetch, split_batches
from flashback.batches.views import Views

__all__ = ["NOT_STORED", "Batch", "Stream", "Views", "count_batches", "fetch", "split_batches"]
