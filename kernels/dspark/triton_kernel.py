"""The confidence of drafts in Triton: one program per draft.  R requests, n drafts each."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.launch import (
    bf16_or_f32,
    bf16_pairs,
    check_tensor,
    next_power_of_2,
    sizes,
)
from deepinfer.kernels.quant.triton_bits import even_bf16, odd_bf16
from deepinfer.kernels.relaunch import launch

_MOST_PAIRS = 1024


def draft_confidence_triton(
    hidden: Tensor, anchors: Tensor, drafts: Tensor, embed: Tensor, proj: Weight
) -> Tensor:
    """``draft_confidence_reference`` in one launch, with another summation order.

    Raises: TensorError for a wrong dtype, shape, device or layout.
    """
    requests, depth, width = sizes("hidden", hidden, 3)
    pairs = bf16_pairs("hidden", hidden.contiguous())
    rows = bf16_pairs("embed", embed)
    check_tensor("embed", embed, torch.bfloat16, (None, None), hidden)
    check_tensor("anchors", anchors, torch.int64, (requests,), hidden)
    check_tensor("drafts", drafts, torch.int64, (requests, depth), hidden)
    weight, rank = proj.values, embed.shape[1]
    check_tensor("proj", weight, bf16_or_f32(weight), (1, width + rank), hidden)
    is_bf16 = weight.dtype == torch.bfloat16
    out = torch.empty(requests, depth, dtype=torch.float32, device=hidden.device)
    if not out.numel():
        return out
    launch(confidence_kernel, (requests * depth,))(
        pairs, anchors, drafts, rows, bf16_pairs("proj", weight) if is_bf16 else weight, out,
        depth, len(embed),
        PAIRS=width // 2, RANK_PAIRS=rank // 2, WEIGHT_BF16=is_bf16,
        TILE=min(_MOST_PAIRS, next_power_of_2(width // 2)),
        RANK_TILE=next_power_of_2(rank // 2), num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["depth", "num_tokens"])
def confidence_kernel(
    hidden_ptr, anchors_ptr, drafts_ptr, embed_ptr, weight_ptr, out_ptr, depth, num_tokens,
    PAIRS: tl.constexpr, RANK_PAIRS: tl.constexpr, WEIGHT_BF16: tl.constexpr, TILE: tl.constexpr,
    RANK_TILE: tl.constexpr,
):  # fmt: skip
    draft = tl.program_id(0).to(tl.int64)
    request = draft // depth
    is_first = draft % depth == 0
    anchor = tl.load(anchors_ptr + request)
    before = tl.load(drafts_ptr + draft - 1, mask=draft % depth > 0, other=0)
    token = tl.where(is_first, anchor, before)
    token = tl.where(token < 0, token + num_tokens, token)  # -1: from a row without usable logits
    sums = tl.zeros([TILE], tl.float32)
    for first in range(0, PAIRS, TILE):
        pair = first + tl.arange(0, TILE)
        sums += _products(
            hidden_ptr + draft * PAIRS, weight_ptr, 0, pair, pair < PAIRS, WEIGHT_BF16
        )
    pair = tl.arange(0, RANK_TILE)
    row = embed_ptr + token * RANK_PAIRS
    own = _products(row, weight_ptr, PAIRS, pair, pair < RANK_PAIRS, WEIGHT_BF16)
    logit = tl.sum(sums, 0) + tl.sum(own, 0)
    tl.store(out_ptr + draft, 1.0 / (1.0 + tl.exp(-logit)))


@triton.jit
def _products(x_ptr, weight_ptr, start, pair, is_pair, WEIGHT_BF16: tl.constexpr):
    """x times the weight from ``start`` on, for pairs of bf16 (an i32 each), summed by pairs."""
    x = tl.load(x_ptr + pair, mask=is_pair, other=0)
    if WEIGHT_BF16:
        weight = tl.load(weight_ptr + start + pair, mask=is_pair, other=0)
        even, odd = even_bf16(weight), odd_bf16(weight)
    else:
        even = tl.load(weight_ptr + 2 * (start + pair), mask=is_pair, other=0.0)
        odd = tl.load(weight_ptr + 2 * (start + pair) + 1, mask=is_pair, other=0.0)
    return even_bf16(x) * even + odd_bf16(x) * odd
