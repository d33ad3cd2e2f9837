"""One kernel at one shape: the call, and its FLOP and bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelCase:
    """``flop``: GEMM work at the ``rate`` of a ceiling (FP8 or bf16); ``num_bytes``: the minimum to
    be read and written, each byte once."""

    name: str
    call: Callable[[], object]
    flop: float
    num_bytes: float
    rate: str = "FP8"
