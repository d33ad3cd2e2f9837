"""One kernel at one shape: what to call, and the work that it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelCase:
    """``flop`` are products at the ``rate`` of a ceiling (FP8 or bf16); ``num_bytes`` are read and
    written at least, each once."""

    name: str
    call: Callable[[], object]
    flop: float
    num_bytes: float
    rate: str = "FP8"
