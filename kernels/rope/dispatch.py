"""Rotary embedding: the reference on a CPU, a Triton kernel on a GPU."""

from __future__ import annotations

from torch import Tensor

from deepinfer.kernels.placement import on_accelerator

from .reference import apply_rope_reference


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
    """See ``apply_rope_reference``."""
    if on_accelerator(x):
        from deepinfer.kernels.rows.triton_kernel import apply_rope_triton

        return apply_rope_triton(x, cos, sin, inverse)
    return apply_rope_reference(x, cos, sin, inverse)
