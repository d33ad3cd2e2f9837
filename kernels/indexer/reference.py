"""The indexer in plain torch: the specification.

R requests, Q queries each, H index heads, D index width, N entries of the longest request.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from deepinfer.kernels.numeric import batched_matmul, by_rows, split_last

# Below the key of -inf, and high enough that subtracting an entry index does not wrap around.
_LOWEST = 1 - (1 << 31)


def index_scores_reference(queries: Tensor, head_weights: Tensor, keys: Tensor) -> Tensor:
    """``sum_h w_h * relu(q_h . k)`` for every query and entry of the same request.

    Shapes: queries [R, Q, H, D] f32 (rounded to FP4), head_weights [R, Q, H] bf16, keys [R, N, D]
    f32 (unpacked FP4); returns [R, Q, N] bf16.
    Numerics: every step is rounded to bf16, as in the released code; the sum over heads is in fp32.
    Products have few bits, so their fp32 sums are exact in any order.
    Batch-invariant: yes.
    """
    requests, count, heads, width = queries.shape
    dots = batched_matmul(queries.view(requests, count * heads, width), keys.transpose(1, 2))
    scores = dots.view(requests, count, heads, -1).to(torch.bfloat16).relu_()
    return (scores * head_weights[..., None]).float().sum(2).to(torch.bfloat16)


def select_topk_reference(scores: Tensor, num_visible: Tensor, k: int) -> Tensor:
    """Top ``k`` visible entries of each query, in ascending order; the lower entry wins a tie.

    Shapes: scores [..., N] float, num_visible [...] i64: only entries below it are visible; entries
    with a score of -inf or NaN are never selected; returns [..., k] i64, padded with -1.
    """
    select = partial(_select_topk, k=k)
    return by_rows(select, scores, num_visible, row_elements=max(1, scores[:1].numel()))


def _select_topk(scores: Tensor, num_visible: Tensor, k: int) -> Tensor:
    entries = torch.arange(scores.shape[-1], device=scores.device)
    hidden = (entries >= num_visible[..., None]) | torch.isneginf(scores) | torch.isnan(scores)
    keys = (_order_preserving(scores).masked_fill(hidden, _LOWEST) << 32) - entries
    best = torch.topk(keys, min(k, len(entries)), dim=-1, sorted=False).indices
    past_end = len(entries)
    chosen = torch.where(hidden.gather(-1, best), past_end, best).sort(dim=-1).values
    chosen = torch.where(chosen == past_end, -1, chosen)
    return functional.pad(chosen, (0, k - chosen.shape[-1]), value=-1)


def candidate_blocks_reference(
    scores: Tensor, num_visible: Tensor, block_size: int, num_blocks: int
) -> Tensor:
    """The blocks of entries that later indexers search, in ascending order.

    A block has the score of its best visible entry; that of the newest entry is always included.
    Shapes: scores [..., N] float, num_visible [...] i64; returns [..., num_blocks] i64, padded with
    -1.  The lower block wins a tie, and NaN counts as -inf.
    """
    entries = torch.arange(scores.shape[-1], device=scores.device)
    hidden = (entries >= num_visible[..., None]) | torch.isnan(scores)
    visible = scores.float().masked_fill(hidden, -torch.inf)
    padding = -len(entries) % block_size
    padded = functional.pad(visible, (0, padding), value=-torch.inf)
    best = split_last(padded, block_size).amax(-1)
    blocks = torch.arange(best.shape[-1], device=scores.device)
    newest = (num_visible - 1).div(block_size, rounding_mode="floor")
    best = best.masked_fill(blocks == newest[..., None], torch.inf)
    return _select_topk(best, torch.full_like(num_visible, len(blocks)), num_blocks)


def _order_preserving(x: Tensor) -> Tensor:
    """Map fp32 to i64 with the same order (-0 and +0 are equal)."""
    bits = (x.float() + 0.0).view(torch.int32)
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
