"""The loop of docs/your-own-loop.md trains as the trainer does, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from doc_pages import DOCS, blocks

import flashback as fb
from helpers import tiny_benchmark

SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("der++", "lucir", "foster")]


@pytest.mark.parametrize("host", ["icarl", *SLOW])
def test_the_loop_does_what_the_trainer_does(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without augmentation and draws both use the same random numbers, so iCaRL ends with the same weights."""
    (listing,) = [block.text for block in blocks(DOCS / "your-own-loop.md") if block.language == "python"]
    assert listing.count('"icarl"') == listing.count("epochs=5") == 1
    settings = "epochs=2, batch_size=9, momentum=0.9, net='smallcnn', device='cpu', views=()"
    code = listing.replace('"icarl"', repr(host)).replace("epochs=5", settings)
    monkeypatch.setattr(fb, "load_benchmark", lambda name: tiny_benchmark())
    names: dict[str, Any] = {}
    exec(compile(code, "loop", "exec"), names)
    loop_host = names["method"].host
    method = fb.Flashback(fb.build_host(loop_host.config, loop_host.benchmark, "cpu"), names["method"].settings)
    result = fb.train(method)
    if host == "icarl":
        assert all(torch.equal(tensor, loop_host.state_dict()[key]) for key, tensor in method.host.state_dict().items())
    final = fb.evaluate(names["method"], loop_host.benchmark)
    assert result.classifiers.keys() == final.keys()
    assert method.host.state_dict().keys() == loop_host.state_dict().keys()
