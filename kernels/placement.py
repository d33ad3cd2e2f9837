"""Where a tensor is, which determines whether a kernel or plain torch processes it."""

from __future__ import annotations

import torch
from torch import Tensor

# torch uses the second name until torch_npu is imported.
NPU = ("npu", "privateuseone")


def on_accelerator(x: Tensor) -> bool:
    """Whether ``x`` is on a device for Triton kernels: an NVIDIA GPU or an Ascend NPU."""
    return x.is_cuda or x.device.type in NPU


def is_reached(x: Tensor, device: torch.device) -> bool:
    """Whether kernels on ``device`` can access ``x``: it is there, or in host memory that is pinned
    or registered with the driver of an NVIDIA GPU."""
    if x.device.type == device.type:
        return None in (x.device.index, device.index) or x.device.index == device.index
    return device.type == "cuda" and x.is_pinned()
