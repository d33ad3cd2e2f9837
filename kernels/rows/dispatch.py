"""Fused row operations on the device of their tensors."""

from __future__ import annotations

from torch import Tensor

from deepinfer.kernels.norm.reference import rms_norm_reference
from deepinfer.kernels.quant import quantize_fp8

from .reference import (
    RowFormat,
    normalize_and_round_reference,
    pack_latents_reference,
    store_latents_reference,
)


def normalize_and_round(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See ``normalize_and_round_reference``."""
    if x.is_cuda:
        from .triton_kernel import normalize_and_round_triton

        return normalize_and_round_triton(x, weight, eps)
    return normalize_and_round_reference(x, weight, eps)


def quantize_rows(
    x: Tensor, weight: Tensor | None = None, eps: float = 0.0
) -> tuple[Tensor, Tensor]:
    """FP8 values and E8M0 exponents per 32 of x [..., D] bf16, after an RMS norm if weight."""
    if x.is_cuda:
        from .triton_kernel import quantize_rows_triton

        return quantize_rows_triton(x, weight, eps)
    return quantize_fp8(x if weight is None else rms_norm_reference(x, weight, eps))


def pack_latents(
    x: Tensor,
    rope: tuple[Tensor, Tensor],
    row_format: RowFormat,
    *,
    weight: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """See ``pack_latents_reference``."""
    if x.is_cuda:
        from .triton_kernel import pack_latents_triton

        return pack_latents_triton(x, rope, row_format, weight=weight, eps=eps)
    return pack_latents_reference(x, rope, row_format, weight=weight, eps=eps)


def store_latents(
    x: Tensor,
    rope: tuple[Tensor, Tensor],
    row_format: RowFormat,
    cache: Tensor,
    rows: Tensor,
    *,
    weight: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """See ``store_latents_reference``."""
    if x.is_cuda:
        from .triton_kernel import store_latents_triton

        store_latents_triton(x, rope, row_format, cache, rows, weight=weight, eps=eps)
        return
    store_latents_reference(x, rope, row_format, cache, rows, weight=weight, eps=eps)
