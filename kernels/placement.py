"""Where a tensor is, and so whether a kernel or plain torch computes with it."""

from __future__ import annotations

import torch
from torch import Tensor

# The second is what torch calls the first until torch_npu is imported.
NPU = ("npu", "privateuseone")


def on_accelerator(x: Tensor) -> bool:
    """Whether ``x`` is where Triton kernels run: on an NVIDIA GPU or an Ascend NPU."""
    return x.is_cuda or x.device.type in NPU


def is_reached(x: Tensor, device: torch.device) -> bool:
    """Whether what runs on ``device`` reads ``x`` itself: it lies there, or in host memory that is
    pinned, or registered with an NVIDIA GPU's driver."""
    if x.device.type == device.type:
        return None in (x.device.index, device.index) or x.device.index == device.index
    return device.type == "cuda" and x.is_pinned()
