"""SwiGLU in Triton, with bf16 output or quantized for the next GEMM."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.gemm import HopperWeight, Weight
from deepinfer.kernels.gemm.activations import Activations, tiles_of
from deepinfer.kernels.gemm.expert_rows import ExpertRows
from deepinfer.kernels.gemm.k_order import KOrder
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.gemm.triton_blocks import block_tile, kept_pairs, store_quantized
from deepinfer.kernels.launch import (
    bf16_pairs,
    cdiv,
    check_tensor,
    describe,
    has_native_fp8,
    sizes,
)
from deepinfer.kernels.quant.triton_bits import bf16_pair, even_bf16, odd_bf16, sigmoid
from deepinfer.kernels.relaunch import launch

_PLAIN_BLOCK = 128


def swiglu_triton(gate_up: Tensor, limit: float, weights: Tensor | None = None) -> Tensor:
    """As ``swiglu_reference``."""
    halves = _halves(gate_up)
    rows, both = gate_up.shape
    out = torch.empty(rows, both // 2, dtype=torch.bfloat16, device=gate_up.device)
    if weights is not None:
        check_tensor("weights", weights, torch.float32, (rows,), gate_up)
    if rows:
        words = out.view(torch.int32)
        layout = {
            "NUM_BLOCKS": cdiv(both // 2, _PLAIN_BLOCK),
            "BLOCK": _PLAIN_BLOCK,
            "PATH": -1,
            "ORDER": 0,
            "NATIVE": has_native_fp8(gate_up.device),
        }
        grid, tile = tiles_of(rows, layout)
        launch(swiglu_kernel, grid)(
            halves, words if weights is None else weights, words, words, rows, words, words, 0,
            limit, WEIGHT=0 if weights is None else 1, ALTERNATE=False, PAIRS=both // 4, TILE=tile,
            **layout, enable_fp_fusion=True,
        )  # fmt: skip
    return out


def swiglu_for_triton(gate_up: Tensor, limit: float, linear: Weight | HopperWeight) -> Activations:
    """SwiGLU of [N, 2 I] bf16, quantized for the weight ``linear``."""
    count, both = sizes("gate_up", gate_up, 2)
    out = Activations.empty_for(linear, count, both // 2)
    return _swiglu_into(out, gate_up, limit)


def swiglu_of_rows(
    gate_up: Tensor,
    limit: float,
    weights: Tensor | None,
    rows: ExpertRows | None,
    path: MatrixPath,
    order: KOrder,
    *,
    alternate: bool = False,
) -> Activations:
    """Quantized SwiGLU of [R, 2 I] bf16; with ``rows`` each row is multiplied by its routing
    weight.

    ``alternate``: gates and ups alternate in runs of 64, instead of all gates followed by all ups.
    """
    count, both = sizes("gate_up", gate_up, 2)
    out = Activations.empty(count, both // 2, path, order, gate_up.device)
    return _swiglu_into(out, gate_up, limit, weights, rows, alternate=alternate)


def _swiglu_into(
    out: Activations,
    gate_up: Tensor,
    limit: float,
    weights: Tensor | None = None,
    rows: ExpertRows | None = None,
    *,
    alternate: bool = False,
) -> Activations:
    halves = _halves(gate_up)
    count, both = gate_up.shape
    if count:
        grid, tile = tiles_of(count, out.layout)
        launch(swiglu_kernel, grid)(
            halves,
            halves if weights is None else weights,
            halves if rows is None else rows.pair,
            halves if rows is None else rows.used,
            count, *out.writer, out.scale_stride, limit,
            WEIGHT=0 if rows is None else 2, ALTERNATE=alternate, PAIRS=both // 4, TILE=tile,
            **out.layout, enable_fp_fusion=True,
        )  # fmt: skip
    return out


def _halves(gate_up: Tensor) -> Tensor:
    """gate_up as pairs of bf16 in i32; I must be even."""
    if gate_up.dim() != 2 or gate_up.shape[1] % 4 or not gate_up.is_contiguous():
        raise TensorError(
            f"gate_up: expected contiguous [N, 2 I] with an even I, found {describe(gate_up)}"
        )
    return bf16_pairs("gate_up", gate_up)


# Sizes that depend on the batch must not cause recompilation.
@triton.jit(do_not_specialize=["num_rows"])
def swiglu_kernel(
    gate_up, weights, row_pair, used, num_rows, values, scales, scale_stride, limit,
    WEIGHT: tl.constexpr, ALTERNATE: tl.constexpr, PAIRS: tl.constexpr, TILE: tl.constexpr,
    NUM_BLOCKS: tl.constexpr, BLOCK: tl.constexpr, PATH: tl.constexpr, ORDER: tl.constexpr,
    NATIVE: tl.constexpr,
):  # fmt: skip
    """WEIGHT: 0 none, 1 one per row, 2 that of the row's pair (padding rows: any).
    ALTERNATE: gates and ups alternate in runs of 64, instead of all gates followed by all ups."""
    distance = 32 if ALTERNATE else PAIRS
    end = tl.load(used) if WEIGHT == 2 else num_rows
    for tile in range(tl.program_id(0), tl.cdiv(end * NUM_BLOCKS, TILE), tl.num_programs(0)):
        row, block, inside = block_tile(tile, end, NUM_BLOCKS, TILE)
        pair = kept_pairs(block, BLOCK, ORDER)
        is_pair = inside[:, None] & (pair < PAIRS)
        source = gate_up + row.to(tl.int64)[:, None] * (2 * PAIRS) + pair
        if ALTERNATE:
            source += pair // 32 * 32
        gate = tl.load(source, mask=is_pair, other=0)
        up = tl.load(source + distance, mask=is_pair, other=0)
        even = _gated(even_bf16(gate), even_bf16(up), limit, NATIVE)
        odd = _gated(odd_bf16(gate), odd_bf16(up), limit, NATIVE)
        if WEIGHT > 0:
            factor = row
            if WEIGHT == 2:
                factor = tl.maximum(tl.load(row_pair + row, mask=inside, other=0), 0)
            weight = tl.load(weights + factor, mask=inside, other=0.0)[:, None]
            even = even * weight
            odd = odd * weight
        both = bf16_pair(even, odd, NATIVE)
        if PATH < 0:
            tl.store(values + row.to(tl.int64)[:, None] * PAIRS + pair, both, mask=is_pair)
        else:
            store_quantized(
                even_bf16(both), odd_bf16(both), row, block, inside, values, scales, scale_stride,
                NUM_BLOCKS, BLOCK, PATH, ORDER, NATIVE,
            )  # fmt: skip


@triton.jit
def _gated(gate, up, limit, NATIVE: tl.constexpr):
    """``silu(gate) * up``, both clamped; NaN passes through."""
    gate = tl.where(gate > limit, limit, gate)
    up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    return gate * sigmoid(gate, NATIVE) * up
