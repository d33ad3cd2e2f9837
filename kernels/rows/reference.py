"""Fused row-wise operations as compositions of simple ones: the specification."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from deepinfer.kernels.norm.reference import NormedRows, rms_norm_reference
from deepinfer.kernels.quant import pack_index_rows, pack_main_rows, pack_window_rows
from deepinfer.kernels.rope.reference import apply_rope_reference

RowFormat = Literal["window", "main", "index"]

_PACK = {"window": pack_window_rows, "main": pack_main_rows, "index": pack_index_rows}


def pack_latents_reference(
    x: Tensor,
    rope: tuple[Tensor, Tensor],
    row_format: RowFormat,
    *,
    weight: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Optional RMS norm, rotation, packing into cache rows.

    Shapes: x [T, D] or [T, H, D] bf16, rope cos and sin [T, R] f32 of ``rope_table``, weight [D] or
    None; returns [..., bytes of a row] u8.  Batch-invariant: yes.
    """
    if weight is not None:
        x = rms_norm_reference(x, weight, eps)
    return _PACK[row_format](apply_rope_reference(x, *rope))


def store_latents_reference(
    x: Tensor,
    rope: tuple[Tensor, Tensor],
    row_format: RowFormat,
    cache: Tensor,
    rows: Tensor,
    *,
    weight: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """``pack_latents``, written to ``cache`` [M, bytes] u8 at ``rows`` [T] i64; -1 is skipped."""
    packed = pack_latents_reference(x, rope, row_format, weight=weight, eps=eps)
    is_kept = rows >= 0
    if bool(is_kept.all()):
        cache[rows] = packed
    else:
        cache[rows[is_kept]] = packed[is_kept]


def split_projection_reference(
    both: Tensor,
    rope: tuple[Tensor, Tensor],
    cache: Tensor,
    rows: Tensor,
    *,
    q_norm: Tensor,
    kv_norm: Tensor,
    eps: float,
) -> NormedRows:
    """Split attention's joint projection: normalize the latent queries, and ``store_latents`` the
    keys as window rows.

    Shapes: both [T, Q + D] bf16, q_norm [Q] and kv_norm [D] bf16, the rest as for
    ``store_latents``; returns [T, Q].
    """
    q, kv = torch.split(both, [len(q_norm), len(kv_norm)], dim=-1)
    store_latents_reference(kv, rope, "window", cache, rows, weight=kv_norm, eps=eps)
    normed = rms_norm_reference(q, q_norm, eps)
    return NormedRows(normed, normed)
