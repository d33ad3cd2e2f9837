"""Sparse latent attention in plain torch: the specification.

T queries, H heads, D latent width; one latent row is both K and V of all heads.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from deepinfer.kernels.numeric import CACHE_ELEMENTS, batched_matmul, constant, inverse_rms
from deepinfer.kernels.quant import unpack_main_rows, unpack_window_rows

# exp of less is subnormal, which makes a CPU 15 times slower.  Next to the largest weight, which is
# 1, neither such values nor exp(-80) = 2e-35 matter.
_LOWEST_EXPONENT = -80.0
# With any listed row the denominator is at least 1: this only prevents 0 / 0.
_LEAST_TOTAL = 1e-30


def sparse_attention_reference(
    q: Tensor,
    window_rows: Tensor,
    window_index: Tensor,
    main_rows: Tensor | None,
    main_index: Tensor | None,
    sink: Tensor,
    scale: float,
    *,
    lse: Tensor | None = None,
    q_norm_eps: float | None = None,
) -> Tensor:
    """Each query attends to the rows in its lists, in one softmax with a sink in the denominator.

    Shapes: q [T, H, D] bf16; window_rows [N, D + D/32] u8, window_index [T, W] i64; main_rows
    [M, D/2 + D/16] u8, main_index [T, K] i64, or both None; sink [H] f32; returns [T, H, D] bf16.
    Index -1 is an empty place.  The output of a query without any row is 0.
    ``q_norm_eps``: each head's query is normalized to unit root mean square, without rounding it
    again: scores are multiplied by 1 / sqrt(mean(q^2) + q_norm_eps).
    ``lse`` [T, H] f32 is written: log-sum-exp of the scores of the listed rows without the sink;
    inf for a query without any row.  To merge results over disjoint sets of rows, computed with
    sinks of -inf, weight each by exp(lse), or by 0 if lse is inf, and normalize.
    Numerics: fp32 scores; exp relative to the maximum over all listed rows, rounded to bf16 for the
    GEMM with V but not in the denominator.  Batch-invariant: yes, as long as the widths W and K and
    the position of each row in its list do not depend on the batch.
    """
    readers = [_row_reader(window_rows, window_index, unpack_window_rows)]
    index = window_index
    if main_rows is not None and main_index is not None:
        readers.append(_row_reader(main_rows, main_index, unpack_main_rows))
        index = torch.cat([window_index, main_index], dim=1)
    present = (index >= 0).float()[:, None, :]
    tile = max(1, CACHE_ELEMENTS // (index.shape[1] * q.shape[2]))
    pieces = []
    for start in range(0, q.shape[0], tile):
        part = slice(start, start + tile)
        keys = torch.cat([read(part) for read in readers], dim=1)
        sums = None if lse is None else lse[part]
        scales = constant(scale)
        if q_norm_eps is not None:
            scales = scales * inverse_rms(q[part].float(), q_norm_eps)
        pieces.append(_attend(q[part], keys, present[part], sink, scales, sums))
    return torch.cat(pieces) if pieces else torch.empty_like(q)


def _attend(
    q: Tensor, keys: Tensor, present: Tensor, sink: Tensor, scales: Tensor, lse: Tensor | None
) -> Tensor:
    """q [t, H, D] bf16, keys [t, K, D] f32, present [t, 1, K] f32 (0 or 1), scales [] or
    [t, H, 1] f32, lse [t, H] f32 (output) -> [t, H, D] bf16."""
    scores = batched_matmul(q.float(), keys.transpose(1, 2)) * scales
    listed = torch.where(present > 0, scores, -torch.inf)
    highest = listed.amax(-1, keepdim=True).clamp(min=-1e30)
    weights = torch.exp((listed - highest).clamp(min=_LOWEST_EXPONENT)) * present
    total = weights.sum(-1, keepdim=True)
    if lse is not None:
        sums = (highest + total.log()).masked_fill(total == 0, torch.inf)
        lse.copy_(sums.squeeze(-1))
    total = total + torch.exp(sink[:, None] - highest)
    out = batched_matmul(weights.to(torch.bfloat16).float(), keys)
    return (out / total.clamp(min=_LEAST_TOTAL)).to(torch.bfloat16)


def _row_reader(
    rows: Tensor, index: Tensor, unpack: Callable[[Tensor], Tensor]
) -> Callable[[slice], Tensor]:
    """A function that returns the unpacked rows listed by a slice of ``index``.

    For index -1 it returns some other row, which is finite.  If there are more indices than rows
    (overlapping windows of a prefill), all rows are unpacked once; otherwise only the listed ones,
    never the whole cache.
    """
    index = index.clamp(min=0)
    if rows.shape[0] > index.numel():
        return lambda part: unpack(_take(rows, index[part]))
    unpacked = unpack(rows)
    return lambda part: _take(unpacked, index[part])


def _take(rows: Tensor, index: Tensor) -> Tensor:
    """Rows [N, B] at index [t, K]: [t, K, B]; on a CPU much faster than ``rows[index]``."""
    return rows.index_select(0, index.reshape(-1)).view(*index.shape, rows.shape[1])
