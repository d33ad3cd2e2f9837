"""Measures the link between two GPUs of this machine, to model the exchange with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from deepinfer.engine.limits.links import Link

from .ceilings import best_seconds

_LARGE_BYTES = 256 << 20
_ROUND_TRIPS = 64


def measured_link() -> Link | None:
    """One direction between the first two GPUs; None with fewer.

    Bandwidth is that of a large copy.  Latency is half of a round trip of a few bytes, measured
    over many dependent ones that are launched ahead, so that the host's time does not count.
    """
    if torch.cuda.device_count() < 2:
        return None
    large, large_there = _pair(_LARGE_BYTES)
    small, small_there = _pair(16)

    def round_trips() -> None:
        for _ in range(_ROUND_TRIPS):
            small_there.copy_(small)
            small.copy_(small_there)

    return Link(
        name="peer copies here",
        bytes_per_s=_LARGE_BYTES / _seconds(lambda: large_there.copy_(large)),
        latency_s=_seconds(round_trips) / (2 * _ROUND_TRIPS),
        ranks_per_node=1,
        source="measured in this run between two GPUs",
    )


def _pair(num_bytes: int) -> tuple[Tensor, Tensor]:
    first, second = (
        torch.empty(num_bytes, dtype=torch.uint8, device=f"cuda:{number}") for number in range(2)
    )
    return first, second


def _seconds(copy: Callable[[], object]) -> float:
    def waited() -> None:
        copy()
        torch.cuda.synchronize("cuda:0")
        torch.cuda.synchronize("cuda:1")

    return best_seconds(waited)
