"""Sparse latent attention in plain torch: the specification.

T queries, H heads, D latent width; K and V are one latent row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from deepinfer.kernels.quant import unpack_main_rows, unpack_window_rows

_TILE_ELEMENTS = 1 << 21


def sparse_attention_reference(
    q: Tensor,
    window_rows: Tensor,
    window_index: Tensor,
    main_rows: Tensor | None,
    main_index: Tensor | None,
    sink: Tensor,
    scale: float,
) -> Tensor:
    """Attend each query to its listed rows, all in one softmax with a sink in the denominator.

    Shapes: q [T, H, D] bf16; window_rows [N, D + D/32] u8, window_index [T, W] i64; main_rows
    [M, D/2 + D/16] u8, main_index [T, K] i64, or both None; sink [H] f32; returns [T, H, D] bf16.
    Index -1 means no row.  A query without any row gives 0.
    Numerics: fp32 scores; exp relative to the maximum over all listed rows, rounded to bf16 before
    the product with V, not in the denominator.  Batch-invariant: yes, as long as the widths W and K
    and the place of each row in its list do not depend on the batch.
    """
    gather_window = _row_reader(window_rows, window_index, unpack_window_rows)
    gathers = [gather_window]
    index = window_index
    if main_rows is not None and main_index is not None:
        gathers.append(_row_reader(main_rows, main_index, unpack_main_rows))
        index = torch.cat([window_index, main_index], dim=1)
    absent = index < 0
    tile = max(1, _TILE_ELEMENTS // (index.shape[1] * q.shape[2]))
    pieces = []
    for start in range(0, q.shape[0], tile):
        part = slice(start, start + tile)
        keys = torch.cat([gather(part) for gather in gathers], dim=1)
        pieces.append(_attend(q[part], keys, absent[part], sink, scale))
    return torch.cat(pieces) if pieces else q.new_empty(q.shape)


def _attend(q: Tensor, keys: Tensor, absent: Tensor, sink: Tensor, scale: float) -> Tensor:
    """q [t, H, D] bf16, keys [t, K, D] f32, absent [t, K] bool -> [t, H, D] bf16."""
    scores = torch.bmm(q.float(), keys.transpose(1, 2)) * scale
    scores = scores.masked_fill(absent[:, None, :], -torch.inf)
    highest = scores.amax(-1, keepdim=True).clamp(min=-1e30)
    weights = torch.exp(scores - highest)
    total = weights.sum(-1, keepdim=True) + torch.exp(sink[:, None] - highest)
    out = torch.bmm(weights.to(torch.bfloat16).float(), keys)
    return (out / total).to(torch.bfloat16)


def _row_reader(
    rows: Tensor, index: Tensor, unpack: Callable[[Tensor], Tensor]
) -> Callable[[slice], Tensor]:
    """A function that returns the unpacked rows listed by a slice of ``index``; absent ones are 0.

    When rows are listed more often than they exist (overlapping windows of a prefill), they are
    unpacked once; otherwise only the listed ones are, never the whole cache.
    """
    if rows.shape[0] <= index.numel():
        unpacked = unpack(rows)
        padded = torch.cat([unpacked, unpacked.new_zeros(1, unpacked.shape[1])])
        return lambda part: padded[index[part]]  # -1 is the row of zeros

    def read(part: slice) -> Tensor:
        listed = index[part]
        packed = rows[listed.clamp(min=0)].masked_fill_((listed < 0)[..., None], 0)
        return unpack(packed)

    return read
