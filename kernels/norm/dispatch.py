"""RMS norm on the device of its tensors."""

from __future__ import annotations

from torch import Tensor

from deepinfer.kernels.gemm import HopperWeight, Weight
from deepinfer.kernels.placement import on_accelerator

from .reference import NormedRows, rms_norm_reference


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See ``rms_norm_reference``."""
    if on_accelerator(x):
        from deepinfer.kernels.rows.triton_kernel import rms_norm_triton

        return rms_norm_triton(x, weight, eps)
    return rms_norm_reference(x, weight, eps)


def rms_norm_quantized(
    x: Tensor, weight: Tensor, eps: float, linear: Weight | HopperWeight
) -> NormedRows:
    """``rms_norm`` of x [T, D] for ``linear``, which is multiplied with them next."""
    if on_accelerator(x):
        from .triton_kernel import norm_quantized_triton

        return NormedRows(*norm_quantized_triton(x, weight, eps, linear))
    normed = rms_norm_reference(x, weight, eps)
    return NormedRows(normed, normed)
