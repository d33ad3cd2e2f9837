"""Queries and keys of attention's joint projection, processed in one kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.gemm import HopperWeight, Weight
from deepinfer.kernels.gemm.activations import Activations
from deepinfer.kernels.launch import (
    bf16_pairs,
    cdiv,
    check_tensor,
    describe,
    next_power_of_2,
    sizes,
)
from deepinfer.kernels.norm import NormedRows
from deepinfer.kernels.norm.triton_kernel import norm_layout, norm_operands, normed_row
from deepinfer.kernels.relaunch import launch
from deepinfer.kernels.rope.checks import check_rope

from .triton_kernel import row_parts, row_tile

_TILE_ROWS = 4


def split_projection_triton(
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
    """``split_projection_reference``."""
    widths = [*sizes("q_norm", q_norm, 1), *sizes("kv_norm", kv_norm, 1)]
    if both.shape[1:] != (sum(widths),):
        raise TensorError(
            f"both: expected [any, {widths[0]} + {widths[1]}], found {describe(both)}"
        )
    q, kv = torch.split(both, widths, dim=-1)
    tokens, width = kv.shape
    check_tensor("rows", rows, torch.int64, (tokens,), both)
    check_rope(rope, width, both, tokens)
    values, scales = row_parts("window", cache, kv)
    acts = Activations.empty_for(linear, *q.shape)
    normed = torch.empty(q.shape, dtype=torch.bfloat16, device=both.device)
    q_pairs, q_weight = norm_operands(q, q_norm)
    check_tensor("kv_norm", kv_norm, torch.bfloat16, (width,), both)
    kv_pairs = bf16_pairs("kv", kv)
    if tokens:
        launch(projection_kernel, (tokens + cdiv(tokens, _TILE_ROWS),))(
            q_pairs, q_weight, bf16_pairs("normed", normed), *acts.writer, acts.scale_stride,
            kv_pairs, bf16_pairs("kv_norm", kv_norm), *rope, rows, values,
            scales, tokens, q_pairs.stride(0), values.stride(0), scales.stride(0), eps,
            WIDTH=width, ROTARY=rope[0].shape[1] // 2, FP8_PAIRS=values.dtype == torch.int16,
            TILE_ROWS=_TILE_ROWS, TILE_PAIRS=max(16, next_power_of_2(width // 2)),
            **norm_layout(q.shape[1], acts), num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return NormedRows(normed, acts)


@triton.jit(do_not_specialize=["num_tokens"])
def projection_kernel(
    q_ptr, q_weight_ptr, normed_ptr, acts_ptr, acts_scales_ptr, scale_stride,
    kv_ptr, kv_weight_ptr, cos_ptr, sin_ptr, rows_ptr, values_ptr, scales_ptr,
    num_tokens, stride, values_stride, scales_stride, eps,
    WIDTH: tl.constexpr, ROTARY: tl.constexpr, FP8_PAIRS: tl.constexpr, TILE_ROWS: tl.constexpr,
    TILE_PAIRS: tl.constexpr, D: tl.constexpr, BLOCKS: tl.constexpr, NUM_BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr, PATH: tl.constexpr, ORDER: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """The first programs process one query row each, the rest TILE_ROWS key rows each."""
    program = tl.program_id(0)
    if program < num_tokens:
        row = program.to(tl.int64)
        normed_row(
            q_ptr + row * stride, q_weight_ptr, normed_ptr, acts_ptr, acts_scales_ptr, row,
            scale_stride, eps, D, BLOCKS, NUM_BLOCKS, BLOCK, PATH, ORDER, NATIVE,
        )  # fmt: skip
    else:
        row_tile(
            program - num_tokens, kv_ptr, kv_weight_ptr, cos_ptr, sin_ptr, rows_ptr, values_ptr,
            scales_ptr, num_tokens, stride, values_stride, scales_stride, 1, eps, WIDTH, ROTARY,
            False, True, True, True, 1, FP8_PAIRS, TILE_ROWS, TILE_PAIRS, NATIVE,
        )  # fmt: skip
