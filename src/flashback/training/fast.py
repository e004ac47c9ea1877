"""The captured step: on CUDA a whole training step is captured once as a graph, then launched at once by a replay."""

import time
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import cache

import torch
from torch import Tensor, nn

from flashback import ranks
from flashback.batches import Stream
from flashback.errors import require
from flashback.hosts.base import Host
from flashback.hosts.stages import Stage
from flashback.nets import Backbone
from flashback.training.step import TrainingStep

Inputs = tuple[Tensor, Tensor | None]  # positions in the stream, and the images where they are not on the device
COMPILE_FROM = 1_000_000  # images of a run
EAGER_FIRST = 2  # steps before a capture, which initialise cuDNN, cuBLAS and the caches


def make_step(host: Host, stage: Stage, stream: Stream, precision: str) -> TrainingStep:
    captured = host.device.type == "cuda" and host.config.capture and ranks.can_capture()
    return (CapturedStep if captured else TrainingStep)(host, stage, stream, precision)


def prepare_backbones(host: Host, networks: Iterable[nn.Module]) -> None:
    """Lay out backbones for tensor cores and, in a long run, mark them for compilation; heads change their widths."""
    if host.device.type != "cuda":
        return
    for module in (module for network in networks for module in network.modules()):
        if isinstance(module, Backbone):
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            if compilation_pays(host) and module._compiled_call_impl is None:
                module.compile(dynamic=False, fullgraph=True)


def compilation_pays(host: Host) -> bool:
    """Compilation takes about a minute unless it is cached, so only a long run gains from it."""
    if ranks.world_size() > 1:
        require(not host.config.compile, "compile=true does not go with several devices; leave it out")
        return False
    if host.config.compile is not None:
        return host.config.compile
    images = sum(len(task.train) for task in host.benchmark.tasks) * host.config.training.epochs
    return host.config.capture and images >= COMPILE_FROM


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for all captures: cuBLAS keeps 64 MiB for every stream it has run on."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class CapturedStep(TrainingStep):
    """Captures one graph for each shape of step: the batch size and the stage's variant."""

    def __init__(self, host: Host, stage: Stage, stream: Stream, precision: str) -> None:
        super().__init__(host, stage, stream, precision)
        self.graphs: dict[object, tuple[torch.cuda.CUDAGraph, Inputs]] = {}
        self.seen: dict[object, int] = {}
        self.side = side_stream(host.device)
        self.pool = torch.cuda.graph_pool_handle()
        self.capturing = True

    def __call__(self, indices: Tensor, raw: Tensor | None = None) -> None:
        shape, inputs = (len(indices), self.stage.variant()), (indices, raw)
        if shape in self.graphs:
            graph, static = self.graphs[shape]
            for old, new in zip(static, inputs, strict=True):
                if old is not None and new is not None:
                    old.copy_(new, non_blocking=True)
            graph.replay()
            return
        self.seen[shape] = self.seen.get(shape, 0) + 1
        began = time.monotonic()
        if self.capturing and self.seen[shape] > EAGER_FIRST and self.capture(shape, inputs):
            self(*inputs)
        else:
            self.on_side_stream(inputs)
        self.preparation_seconds += time.monotonic() - began if self.capturing else 0.0

    def on_side_stream(self, inputs: Inputs) -> None:
        """An eager step on the stream that captures later, as captures require."""
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side), self.compiled(inputs):
            self.descend(*inputs)
        torch.cuda.current_stream().wait_stream(self.side)

    def compiled(self, inputs: Inputs) -> AbstractContextManager[None]:
        """Run full batches compiled, as in the capture; other shapes would be compiled again and again."""
        full = len(inputs[0]) == self.stage.batch_size and not self.host.filling()
        stance: AbstractContextManager[None] = torch.compiler.set_stance("default" if full else "force_eager")
        return stance

    def capture(self, shape: object, inputs: Inputs) -> bool:
        """Record a step without running it; if that fails, warn once and run eagerly."""
        graph = torch.cuda.CUDAGraph()
        static: Inputs = (inputs[0].clone(), inputs[1].clone() if inputs[1] is not None else None)
        generator = self.host.generator
        before = generator.get_state()
        graph.register_generator_state(generator)
        try:
            # The thread that fetches images must not break the capture.
            mode = "thread_local"
            with (
                torch.cuda.graph(graph, pool=self.pool, stream=self.side, capture_error_mode=mode),
                self.compiled(inputs),
            ):
                self.descend(*static)
        except Exception as error:  # a host's step may do anything
            self.capturing = False
            self.graphs.clear()  # they use the generator that is replaced below
            side_stream.cache_clear()  # do not capture again on a stream where a capture failed
            self.host.generator = torch.Generator(generator.device)  # the old one is still registered with the capture
            self.host.generator.set_state(before)
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            warnings.warn(
                f"the step of stage '{self.stage.name}' cannot be captured and runs eagerly: {reason}", stacklevel=2
            )
            return False
        self.graphs[shape] = (graph, static)
        return True
