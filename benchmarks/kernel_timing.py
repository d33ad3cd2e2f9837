"""Time of a kernel on the GPU, beside what the same GPU can do in the same run."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

_FLUSH_BYTES = 256 << 20


@dataclass(frozen=True)
class Row:
    """One measurement; shares are of the ceilings in percent."""

    name: str
    us: float
    tflops: float
    gbytes_per_s: float
    percent_of_fp8: float
    percent_of_copy: float


@dataclass(frozen=True)
class Ceilings:
    """Bytes read and written by a device copy, and FP8 products of 8,192 cubed, each second."""

    copy_bytes_per_s: float
    fp8_flop_per_s: float

    @staticmethod
    def measure() -> Ceilings:
        source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        # Outside a graph: captured in one, the copy gave 2.76 TB/s, which kernels exceeded.
        copy_us = microseconds(lambda: target.copy_(source), is_graph=False)
        size = 8192
        a = torch.randn(size, size, device="cuda").to(torch.float8_e4m3fn)
        b = torch.randn(size, size, device="cuda").to(torch.float8_e4m3fn).t()
        one = torch.ones((), device="cuda")
        fp8_us = microseconds(
            lambda: torch._scaled_mm(
                a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
            )
        )
        return Ceilings(2 * source.numel() / copy_us * 1e6, 2 * size**3 / fp8_us * 1e6)

    def row(self, name: str, us: float, flop: float, num_bytes: float) -> Row:
        flop_per_s, bytes_per_s = flop / us * 1e6, num_bytes / us * 1e6
        return Row(
            name,
            round(us, 2),
            round(flop_per_s / 1e12, 1),
            round(bytes_per_s / 1e9, 1),
            round(100 * flop_per_s / self.fp8_flop_per_s, 1),
            round(100 * bytes_per_s / self.copy_bytes_per_s, 1),
        )


def microseconds(call: Callable[[], object], repeats: int = 15, *, is_graph: bool = True) -> float:
    """Median time of ``call``, by default replayed as a graph, with an L2 full of other, modified
    lines."""
    call()
    torch.cuda.synchronize()
    run = call
    if is_graph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        run = graph.replay
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    times: list[float] = []
    for _ in range(repeats):
        start, end = _event(), _event()
        flush.zero_()
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def print_row(row: Row) -> None:
    print(json.dumps(asdict(row)), flush=True)
