"""GEMM in Triton, in one kernel for plain and packed weights: single, grouped, and by expert.

The weight is the left operand, so that its decoded tile can stay in registers and few rows of
activations do not waste the tensor cores.  Every output accumulates over K in ascending order,
whatever the tile: batch-invariant.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.launch import (
    cdiv,
    check_tensor,
    describe,
    has_native_fp8,
    is_interpreted,
    sizes,
)
from deepinfer.kernels.quant.triton_bits import round_bf16
from deepinfer.kernels.relaunch import launch

from .activations import GROUP, Activations, quantize_activations
from .checks import check_activations, check_groups, check_operands, check_parts
from .expert_rows import ExpertRows
from .matrix_path import MatrixPath, Tile, tile_for
from .products import decoded_product, folded_product, plain_product, scaled_product
from .weights import Weight

_PLAIN, _FP8, _FP4 = 0, 1, 2


def quantized_linear_triton(
    x: Tensor | Activations, weight: Weight, *, path: MatrixPath | None = None
) -> Tensor:
    """As ``quantized_linear_reference``; ``path`` is the fastest of the device unless given."""
    if weight.scales is None:
        raise TensorError(f"weight: expected a packed one, found {describe(weight.values)}")
    if isinstance(x, Tensor):
        check_operands(x, weight, weight.values)
        path = MatrixPath.of(x.device) if path is None else path
        x = quantize_activations(x, path, weight.order)
    else:
        check_activations(x, weight)
    rows = x.values.shape[0]
    out = torch.empty(
        rows, weight.values.shape[0], dtype=torch.bfloat16, device=weight.values.device
    )
    _launch_rows(x.values[:, None], x.scales, weight, out[:, None], x.path)
    return out


def linear_triton(x: Tensor, weight: Weight) -> Tensor:
    """As ``linear_reference``; a packed weight is decoded to bf16."""
    sizes("x", x, 2)
    group = Weight(weight.values[None], _lift(weight.scales))
    return grouped_linear_triton(x[:, None], group)[:, 0]


def grouped_linear_triton(
    x: Tensor, weight: Weight, *, fp8: bool = False, path: MatrixPath | None = None
) -> Tensor:
    """As ``grouped_linear_reference``; ``path`` of FP8 activations as in
    ``quantized_linear_triton`` if K is a multiple of 128, else DECODED."""
    check_groups(x, weight)
    shape = (*x.shape[:-1], weight.values.shape[1])
    out = torch.empty(shape, dtype=torch.bfloat16, device=x.device)
    if not fp8:
        _launch_rows(x.contiguous(), None, weight, out, MatrixPath.DECODED)
        return out
    if path is None or x.shape[-1] % GROUP:
        path = MatrixPath.DECODED if x.shape[-1] % GROUP else MatrixPath.of(x.device)
    acts = quantize_activations(x.flatten(1), path, weight.order)
    rows = acts.values[:, : x.shape[1:].numel()].unflatten(1, x.shape[1:])
    _launch_rows(rows, acts.scales, weight, out, path)
    return out


def fp32_linear_triton(x: Tensor, weight: Weight, out: Tensor | None = None) -> Tensor:
    """As ``fp32_linear_reference``, written to ``out`` if given.  Products of bf16 operands are
    exact in the fp32 accumulator."""
    check_operands(x, weight, weight.values, float32=True)
    shape = len(x), len(weight.values)
    if out is None:
        out = torch.empty(shape, dtype=torch.float32, device=x.device)
    check_tensor("out", out, torch.float32, shape, x)
    _launch_rows(x.contiguous()[:, None], None, weight, out[:, None], MatrixPath.DECODED)
    return out


def fp32_linear_parts_triton(x: Tensor, weight: Weight, parts: int) -> Tensor:
    """As ``fp32_linear_parts``."""
    check_operands(x, weight, weight.values, float32=True)
    check_parts(weight, parts)
    out = torch.empty(len(x), parts, len(weight.values), dtype=torch.float32, device=x.device)
    x_parts = x.contiguous().view(len(x), parts, x.shape[1] // parts)
    w_parts = weight.values.view(len(weight.values), parts, -1).transpose(0, 1)
    _launch_rows(x_parts, None, Weight(w_parts), out, MatrixPath.DECODED)
    return out


def expert_linear_triton(acts: Activations, weight: Weight, rows: ExpertRows, tile: Tile) -> Tensor:
    """Grouped GEMM: each row times the weight of its expert; padding rows are undefined.

    Shapes: acts R rows in the order of ``rows``, weight [E, N, K]; returns [R, N] bf16.
    """
    width, tiles = weight.values.shape[1], len(rows.expert)
    out = torch.empty(len(rows.pair), width, dtype=torch.bfloat16, device=acts.values.device)
    if tiles:
        grid = (cdiv(width, tile.width) * tiles, 1)
        _launch(
            grid, acts.values[:, None], acts.scales, weight, out[:, None], rows.expert, tiles,
            acts.path, tile, is_grouped=True,
        )  # fmt: skip
    return out


def _launch_rows(
    x: Tensor, scales: Tensor | None, weight: Weight, out: Tensor, path: MatrixPath
) -> None:
    """x [T, G, P], out [T, G, N]."""
    rows, groups, width = out.shape
    if rows and groups and width:
        tile = tile_for(rows, width, groups, path, x.device)
        count = cdiv(rows, tile.tokens)
        grid = (cdiv(width, tile.width) * count, groups)
        _launch(grid, x, scales, weight, out, out, count, path, tile, is_grouped=False)


def _launch(
    grid: tuple[int, int],
    x: Tensor,
    scales: Tensor | None,
    weight: Weight,
    out: Tensor,
    tile_expert: Tensor,
    num_token_tiles: int,
    path: MatrixPath,
    tile: Tile,
    is_grouped: bool,
) -> None:
    values = weight.values
    packed = weight.scales is not None
    k = values.shape[-1] * (2 if _format(weight) == _FP4 else 1)
    exact = x.dtype == torch.float32 or values.dtype == torch.float32 or is_interpreted()
    launch(_gemm_kernel, grid)(
        x,
        x if scales is None else scales,
        values.view(torch.uint8) if packed else values,
        values if weight.scales is None else weight.scales.view(_scale_word(k)),
        out,
        tile_expert,
        x.shape[0],
        out.shape[-1],
        k,
        values.stride(-2),
        values.stride(0) if values.dim() == 3 else 0,
        x.stride(0),
        x.stride(1),
        0 if scales is None else scales.stride(0),
        _group_stride(scales, path, k),
        out.stride(0),
        out.stride(1),
        num_token_tiles,
        FORMAT=_format(weight),
        PATH=int(path),
        GROUPED=is_grouped,
        DTYPE=tl.float32 if exact else tl.bfloat16,
        NATIVE=has_native_fp8(x.device),
        ROUND=is_interpreted() and out.dtype == torch.bfloat16,
        EVEN_K=k % 128 == 0,
        WIDTH=tile.width,
        TOKENS=tile.tokens,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        enable_fp_fusion=True,
    )


def _group_stride(scales: Tensor | None, path: MatrixPath, k: int) -> int:
    """Offset from the scales of one group of a grouped linear layer to those of the next."""
    if scales is None:
        return 0
    return k // GROUP * scales.stride(0) if path is MatrixPath.FP8 else k // 32


def _format(weight: Weight) -> int:
    if weight.scales is None:
        return _PLAIN
    return _FP8 if weight.values.dtype == torch.float8_e4m3fn else _FP4


def _scale_word(k: int) -> torch.dtype:
    """The four scales of a row's group of 128 are one aligned word if K is a multiple of 128."""
    return torch.int32 if k % 128 == 0 else torch.uint8


def _lift(scales: Tensor | None) -> Tensor | None:
    return None if scales is None else scales[None]


# Sizes that depend on the batch must not cause recompilation.
@triton.jit(do_not_specialize=["rows", "num_token_tiles"])
def _gemm_kernel(
    x,
    x_scales,
    w,
    w_scales,
    out,
    tile_expert,
    rows,
    N,
    K,
    w_row_stride,
    w_member_stride,
    x_row_stride,
    x_group_stride,
    scale_stride,
    scale_group_stride,
    out_row_stride,
    out_group_stride,
    num_token_tiles,
    FORMAT: tl.constexpr,
    PATH: tl.constexpr,
    GROUPED: tl.constexpr,
    DTYPE: tl.constexpr,
    NATIVE: tl.constexpr,
    ROUND: tl.constexpr,
    EVEN_K: tl.constexpr,
    WIDTH: tl.constexpr,
    TOKENS: tl.constexpr,
):
    n_tile, token_tile = _place(tl.program_id(0), tl.cdiv(N, WIDTH), num_token_tiles)
    member = tl.program_id(1)
    first = token_tile * TOKENS
    row = first + tl.arange(0, TOKENS)
    inside = row < rows
    row = tl.minimum(row, rows - 1)
    if GROUPED:
        member = tl.load(tile_expert + token_tile)
        if member < 0:
            return
    n = n_tile * WIDTH + tl.arange(0, WIDTH)
    member = member.to(tl.int64)
    safe_n = tl.minimum(n, N - 1)
    w += member * w_member_stride + safe_n.to(tl.int64)[:, None] * w_row_stride
    x += row.to(tl.int64)[None, :] * x_row_stride
    if not GROUPED:
        x += member * x_group_stride
        x_scales += member * scale_group_stride
        out += member * out_group_stride
    if FORMAT == 0:
        acc = plain_product(x, w, K, WIDTH, TOKENS, DTYPE)
    else:
        scale_row = member * (N >> 5) + (safe_n >> 5) if FORMAT == 1 else member * N + safe_n
        w_scales += scale_row * (K // 128 if EVEN_K else K // 32)
        if PATH == 0:
            acc = decoded_product(x, w, w_scales, K, FORMAT, WIDTH, TOKENS, DTYPE, NATIVE, EVEN_K)
        elif PATH == 1:
            x_scales += first + tl.arange(0, TOKENS)
            acc = folded_product(
                x, x_scales, scale_stride, w, w_scales, K, FORMAT, WIDTH, TOKENS, NATIVE, EVEN_K
            )
        else:
            x_scales += row.to(tl.int64)[:, None] * scale_stride
            acc = scaled_product(x, x_scales, w, w_scales, K, FORMAT, WIDTH, TOKENS, EVEN_K)
    if ROUND:
        acc = round_bf16(acc)
    out += row.to(tl.int64)[:, None] * out_row_stride + n[None, :]
    tl.store(out, tl.trans(acc).to(out.dtype.element_ty), mask=inside[:, None] & (n < N)[None, :])


@triton.jit
def _place(program, num_n_tiles, num_token_tiles):
    """(n tile, token tile): groups of eight token tiles, so that concurrent programs share weights
    in L2."""
    band = program // (8 * num_n_tiles)
    inner = program % (8 * num_n_tiles)
    height = tl.minimum(num_token_tiles - band * 8, 8)
    return inner // height, band * 8 + inner % height
