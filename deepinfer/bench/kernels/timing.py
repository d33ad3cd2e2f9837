"""Time of a kernel on the GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

_FLUSH_BYTES = 256 << 20
_REPEATS = 15


def kernel_seconds(call: Callable[[], object], repeats: int = _REPEATS) -> tuple[float, ...]:
    """Times of ``call`` as graph replays, with L2 overwritten before each."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    times: list[float] = []
    for _ in range(repeats):
        start, end = _event(), _event()
        flush.zero_()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return tuple(times)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
