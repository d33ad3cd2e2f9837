"""The link between two GPUs of this machine, measured: what the exchange is modelled with then."""

from __future__ import annotations

import torch

from deepinfer.engine.limits.links import NVLINK, Link

from .ceilings import best_seconds

_LARGE_BYTES = 256 << 20


def measured_link() -> Link | None:
    """One direction of copies from the first GPU to the second; None with fewer than two.

    The latency stays that of a store into a peer's memory: a copy is started by the host.
    """
    if torch.cuda.device_count() < 2:
        return None
    source = torch.empty(_LARGE_BYTES, dtype=torch.uint8, device="cuda:0")
    target = torch.empty_like(source, device="cuda:1")

    def copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize("cuda:0")
        torch.cuda.synchronize("cuda:1")

    return Link(
        name="peer copies here",
        bytes_per_s=_LARGE_BYTES / best_seconds(copy),
        latency_s=NVLINK.latency_s,
        ranks_per_node=1,
        source="measured in this run between two GPUs; latency: " + NVLINK.source,
    )
