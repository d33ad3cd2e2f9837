"""Which of several GPUs a thread's kernels run on."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def current_device(device: torch.device | str) -> AbstractContextManager[Any]:
    """Inside, what this thread launches runs on ``device``: kernels take the thread's current one,
    which an accelerator without a number is already."""
    device = torch.device(device)
    if device.type == "cpu" or device.index is None:
        return nullcontext()
    inside: AbstractContextManager[Any] = torch.get_device_module(device).device(device)
    return inside
