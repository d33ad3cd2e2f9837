"""Selects the GPU on which a thread's kernels run."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def current_device(device: torch.device | str) -> AbstractContextManager[Any]:
    """Context in which this thread's kernels run on ``device``; without an index the current device
    is the right one already."""
    device = torch.device(device)
    if device.type == "cpu" or device.index is None:
        return nullcontext()
    inside: AbstractContextManager[Any] = torch.get_device_module(device).device(device)
    return inside
