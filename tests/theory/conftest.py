"""The theory is checked in float64, on the losses that training runs."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor

from flashback.batches import Views
from flashback.hosts import xder


@pytest.fixture(autouse=True)
def in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Views give float64, and what nets bring to float32, so that autocast cannot reach it, stays float64."""
    to_float, plain, weak, strong = torch.Tensor.float, Views.plain, Views.weak, xder.strong_view

    def keep_float64(x: Tensor) -> Tensor:
        return x if x.dtype == torch.float64 else to_float(x)

    def plain64(views: Views, raw: Tensor) -> Tensor:
        return plain(views, raw).double()

    def weak64(views: Views, raw: Tensor, generator: Generator) -> Tensor:
        return weak(views, raw, generator).double()

    def strong64(views: Views, raw: Tensor, generator: Generator) -> Tensor:
        return strong(views, raw, generator).double()

    monkeypatch.setattr(torch.Tensor, "float", keep_float64)
    monkeypatch.setattr(Views, "plain", plain64)
    monkeypatch.setattr(Views, "weak", weak64)
    monkeypatch.setattr(xder, "strong_view", strong64)
