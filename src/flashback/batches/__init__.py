"""Batches of images: uint8 on the device, with batched augmentation there."""

from flashback.batches.streams import NOT_STORED, Batch, Stream, count_batches, prefetch, split_batches
from flashback.batches.views import Views

__all__ = ["NOT_STORED", "Batch", "Stream", "Views", "count_batches", "prefetch", "split_batches"]
