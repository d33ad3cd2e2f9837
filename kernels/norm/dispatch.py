"""RMS norm: the reference on a CPU, a Triton kernel on a GPU."""

from __future__ import annotations

from torch import Tensor

from deepinfer.kernels.placement import on_accelerator

from .reference import rms_norm_reference


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See ``rms_norm_reference``."""
    if on_accelerator(x):
        from deepinfer.kernels.rows.triton_kernel import rms_norm_triton

        return rms_norm_triton(x, weight, eps)
    return rms_norm_reference(x, weight, eps)
