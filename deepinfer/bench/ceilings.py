"""Ceilings: copies and library GEMMs on this machine, to compare every measurement with."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from deepinfer.engine.limits.device_profiles import DeviceProfile

from .results import Ceiling

_COPY_BYTES = 1 << 28
_SECONDS = 0.4


def cpu_ceilings() -> list[Ceiling]:
    """A copy in memory, and bf16 and fp32 GEMMs of size 1,024, with this process's threads."""
    source = torch.ones(_COPY_BYTES, dtype=torch.uint8)
    target = torch.empty_like(source)
    copy_s = best_seconds(lambda: target.copy_(source))
    found = [Ceiling(name="copy, read and written", value=2 * _COPY_BYTES / copy_s, unit="B/s")]
    for dtype in (torch.bfloat16, torch.float32):
        a, b = (torch.randn(1024, 1024).to(dtype) for _ in range(2))
        product_s = best_seconds(lambda a=a, b=b: a @ b)  # type: ignore[misc]
        name = str(dtype).removeprefix("torch.")
        found.append(
            Ceiling(name=f"{name} 1024 cubed", value=2 * 1024**3 / product_s, unit="FLOP/s")
        )
    return found


def gpu_ceilings() -> list[Ceiling]:
    """A copy on the device, and FP8 and bf16 GEMMs of size 8,192."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy_s = best_seconds(_waited(lambda: target.copy_(source)))
    size = 8192
    a, b = (torch.randn(size, size, device="cuda") for _ in range(2))
    a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
    a16, b16 = a.to(torch.bfloat16), b.to(torch.bfloat16)
    one = torch.ones((), device="cuda")
    fp8_s = best_seconds(
        _waited(
            lambda: torch._scaled_mm(
                a8, b8, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
            )
        )
    )
    bf16_s = best_seconds(_waited(lambda: a16 @ b16))
    flop = 2 * size**3
    return [
        Ceiling(name="copy, read and written", value=2 * source.numel() / copy_s, unit="B/s"),
        Ceiling(name="FP8 8192 cubed", value=flop / fp8_s, unit="FLOP/s"),
        Ceiling(name="bf16 8192 cubed", value=flop / bf16_s, unit="FLOP/s"),
    ]


def _waited(call: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        call()
        torch.cuda.synchronize()

    return run


def cpu_profile(ceilings: list[Ceiling], memory_bytes: float) -> DeviceProfile:
    """Limits of this CPU from its measured ceilings, with the faster rate for every GEMM."""
    copy, *products = ceilings
    fastest = max(product.value for product in products)
    return DeviceProfile(
        name="this cpu",
        fp8_flops=fastest,
        fp4_flops=fastest,
        bf16_flops=fastest,
        memory_bytes=memory_bytes,
        memory_bytes_per_s=copy.value,
        link_bytes_per_s=copy.value,
        source="measured in this run",
    )


def best_seconds(call: Callable[[], object], seconds: float = _SECONDS) -> float:
    """Minimum time of ``call``, repeated for about ``seconds``."""
    call()
    best, started = float("inf"), time.perf_counter()
    while time.perf_counter() - started < seconds:
        begun = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begun)
    return best
