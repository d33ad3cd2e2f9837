"""Fused row-wise operations: the reference on a CPU, Triton kernels on a GPU."""

from __future__ import annotations

from torch import Tensor

from deepinfer.kernels.gemm import HopperWeight, Weight
from deepinfer.kernels.norm import NormedRows
from deepinfer.kernels.placement import on_accelerator

from .reference import (
    RowFormat,
    pack_latents_reference,
    split_projection_reference,
    store_latents_reference,
)


def pack_latents(
    x: Tensor,
    rope: tuple[Tensor, Tensor],
    row_format: RowFormat,
    *,
    weight: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """See ``pack_latents_reference``."""
    if on_accelerator(x):
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
    if on_accelerator(x):
        from .triton_kernel import store_latents_triton

        store_latents_triton(x, rope, row_format, cache, rows, weight=weight, eps=eps)
        return
    store_latents_reference(x, rope, row_format, cache, rows, weight=weight, eps=eps)


def split_projection(
    both: Tensor,
    rope: tuple[Tensor, Tensor],
    cache: Tensor,
    rows: Tensor,
    *,
    q_norm: Tensor,
    kv_norm: Tensor,
    eps: float,
    linear: Weight | HopperWeight,
) -> NormedRows:
    """See ``split_projection_reference``; ``linear`` is the next weight, for which the queries are
    quantized."""
    if on_accelerator(both):
        from .triton_projection import split_projection_triton

        return split_projection_triton(
            both, rope, cache, rows, q_norm=q_norm, kv_norm=kv_norm, eps=eps, linear=linear
        )
    return split_projection_reference(
        both, rope, cache, rows, q_norm=q_norm, kv_norm=kv_norm, eps=eps
    )
