"""Sparse attention on Hopper: launcher of the Gluon kernel, and the combine kernel of split
keys."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_wait

from deepinfer.kernels.gemm.activations import Activations
from deepinfer.kernels.gemm.gluon_tiles import described_tiles
from deepinfer.kernels.gemm.k_order import KOrder
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.gemm.triton_blocks import store_quantized
from deepinfer.kernels.launch import cdiv, multiprocessors, next_power_of_2
from deepinfer.kernels.quant.triton_bits import bf16_pair, round_bf16
from deepinfer.kernels.relaunch import launch

from .checks import check_operands, main_list
from .gluon_kernel import attention_gluon_kernel
from .gluon_work import TILE_E4M3
from .triton_unpack import unpack_rows_triton

_HEADS, _WIDTH, _TILE_KEYS, _MAX_ROTARY_PAIRS = 64, 512, 64, 32
# If rows are listed at least so often on average, they are decoded once, before the kernel: at most
# 40 KiB of bf16 rows per query, which itself has 64 KiB.
_REPEATS = 16
_LOG2_E = 1.4426950408889634


def fits_gluon(
    q: Tensor, window_rows: Tensor, main_rows: Tensor | None, rope: tuple[Tensor, Tensor] | None
) -> bool:
    """Whether ``sparse_attention_gluon`` supports these: the released model's shapes."""
    rows = [x for x in (window_rows, main_rows) if x is not None]
    return (
        q.shape[1:] == (_HEADS, _WIDTH)
        and (rope is None or rope[0].shape[1] <= 2 * _MAX_ROTARY_PAIRS)
        and all(x.data_ptr() % 16 == 0 for x in rows)
    )


def sparse_attention_gluon(
    q: Tensor,
    window_rows: Tensor,
    window_index: Tensor,
    main_rows: Tensor | None,
    main_index: Tensor | None,
    sink: Tensor,
    scale: float,
    *,
    rope: tuple[Tensor, Tensor] | None = None,
    piece_keys: int | None = None,
    quantized: bool = False,
    lse: Tensor | None = None,
    q_norm_eps: float | None = None,
) -> Tensor | Activations:
    """``sparse_attention_triton`` for 64 heads of 512 on SM90 (H100, H200).

    ``piece_keys`` is rounded up to 64 or a multiple of 128.  The bits depend on its value, never on
    other queries, and are reproducible.
    Rows that many queries list, as in prefill, are decoded once beforehand: the same bits.
    Numerics: P is rounded to bf16 relative to the running maximum, updated every 64 keys; partial
    results of split keys are stored as fp16, within +-65504.
    ``quantized``: returns ``quantize_activations`` of the result [T, 64 * 512].
    Raises: TensorError for a wrong dtype, shape, device or layout.
    """
    main_index = main_list(main_rows, main_index, window_index)
    check_operands(q, window_rows, window_index, main_rows, main_index, sink, rope, lse)
    num_queries = len(q)
    result: Tensor | Activations
    if quantized:
        width = _HEADS * _WIDTH
        result = Activations.empty(num_queries, width, MatrixPath.FP8, KOrder.PLAIN, q.device)
        (out, scales), scale_stride = result.writer, result.scale_stride
    else:
        result = torch.empty_like(q, memory_format=torch.contiguous_format)
        out, scales, scale_stride = result, sink, 0
    if not num_queries:
        return result
    lengths = (window_index.shape[1], main_index.shape[1])
    num_pieces, piece_tiles = _pieces(lengths, piece_keys)
    is_whole = num_pieces == 1
    cos, sin = rope if rope is not None else (sink, sink)
    rotary_pairs = cos.shape[1] // 2 if rope is not None else 0
    parts, state = out, scales
    if not is_whole:
        parts = q.new_empty(num_queries * num_pieces, _HEADS, _WIDTH, dtype=torch.float16)
        state = sink.new_empty(num_queries * num_pieces, _HEADS)
    if quantized and is_whole:
        results = _halves(parts, _WIDTH // 2, TILE_E4M3.value.swizzle_byte_width)
    else:
        results = _halves(parts, _WIDTH)
    num_rows = len(window_rows) + (0 if main_rows is None else len(main_rows))
    is_repeated = num_rows * _REPEATS <= num_queries * sum(lengths)
    if is_whole and is_repeated:
        window_rows, main_rows = unpack_rows_triton(window_rows, main_rows, _WIDTH)
    num_items = num_queries * num_pieces
    launch(attention_gluon_kernel, (min(num_items, multiprocessors(q.device)),))(
        _halves(q.contiguous(), _WIDTH), window_rows, window_index,
        window_rows if main_rows is None else main_rows,
        main_index if main_index.numel() else window_index,
        sink, cos, sin, results, state,
        scale * _LOG2_E, num_queries, scale_stride, lse if is_whole else None, q_norm_eps,
        PIECES=num_pieces, PIECE_TILES=piece_tiles, WINDOW_LENGTH=lengths[0],
        MAIN_LENGTH=lengths[1], ROTARY=rotary_pairs, COPIES=is_whole and is_repeated, num_warps=4,
        enable_fp_fusion=True,
    )  # fmt: skip
    if not is_whole:
        launch(combine_pieces_kernel, (num_queries, _HEADS))(
            parts.view(torch.int32), state, sink, cos, sin,
            out if quantized else out.view(torch.int32), scales, scale_stride, lse,
            PIECES=num_pieces, TILE_PIECES=next_power_of_2(num_pieces),
            H=_HEADS, HALF=_WIDTH // 2, ROTARY=rotary_pairs, QUANTIZED=quantized,
            num_warps=2, launch_pdl=True, enable_fp_fusion=True,
        )  # fmt: skip
    return result


def _pieces(lengths: tuple[int, int], piece_keys: int | None) -> tuple[int, int]:
    """(number of pieces that the key lists of a query are split into, tiles of 64 keys of each)."""
    num_tiles = sum(cdiv(length, _TILE_KEYS) for length in lengths)
    piece_tiles = num_tiles + num_tiles % 2
    if piece_keys is not None:
        pairs = cdiv(piece_keys, 2 * _TILE_KEYS)
        piece_tiles = min(piece_tiles, 1 if piece_keys <= _TILE_KEYS else 2 * pairs)
    return max(1, cdiv(num_tiles, max(1, piece_tiles))), piece_tiles


def _halves(x: Tensor, width: int, swizzle: int | None = None) -> TensorDescriptor:
    """TMA descriptor of heads of ``width`` 16-bit values; a box is half of the columns of a
    query."""
    return described_tiles(x.view(-1, width), _HEADS, width // 2, swizzle=swizzle)


# Sizes that depend on the batch must not cause recompilation.
@triton.jit(do_not_specialize=["scale_stride"])
def combine_pieces_kernel(
    parts_ptr, state_ptr, sink_ptr, cos_ptr, sin_ptr, out_ptr, scale_ptr, scale_stride, lse_ptr,
    PIECES: tl.constexpr, TILE_PIECES: tl.constexpr, H: tl.constexpr, HALF: tl.constexpr,
    ROTARY: tl.constexpr, QUANTIZED: tl.constexpr,
):  # fmt: skip
    """Combine the results of split keys.  ``out_ptr`` [T, H, HALF] are pairs of bf16 in i32, or of
    E4M3 in i16 with scales per 128 values [H * HALF / 64, scale_stride] f32."""
    query = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    pair = tl.arange(0, HALF)
    piece = tl.arange(0, TILE_PIECES)
    is_piece = piece < PIECES
    part = (query * PIECES + piece) * H + head
    sink = tl.load(sink_ptr + head) * 1.4426950408889634
    if ROTARY > 0:
        turning = pair - (HALF - ROTARY)
        turn = 2 * (query * ROTARY + turning)
        cos = tl.load(cos_ptr + turn, mask=turning >= 0, other=1.0)
        sin = tl.load(sin_ptr + turn + 1, mask=turning >= 0, other=0.0)
    # The code before overlaps with the previous kernel (programmatic dependent launch).
    gdc_wait()
    place = part[:, None] * HALF + pair[None, :]
    pairs = tl.load(parts_ptr + place, mask=is_piece[:, None], other=0)
    states = tl.load(state_ptr + part, mask=is_piece, other=-1e30)
    highest = tl.max(states, 0)
    shares = tl.where(is_piece, tl.exp2(states - highest), 0.0)
    total = tl.sum(shares, 0)
    if lse_ptr is not None:
        lse = (highest + tl.log2(total)) * 0.6931471805599453
        tl.store(lse_ptr + query * H + head, tl.where(highest > -1e30, lse, float("inf")))
    shares = (shares / (total + tl.exp2(sink - highest)))[:, None]
    even = tl.sum(shares * _half_value(pairs), 0)
    odd = tl.sum(shares * _half_value(pairs >> 16), 0)
    if ROTARY > 0:
        even, odd = round_bf16(even), round_bf16(odd)
        even, odd = even * cos + odd * sin, odd * cos - even * sin
    if QUANTIZED:
        BLOCKS: tl.constexpr = HALF // 64
        block = head * BLOCKS + tl.arange(0, BLOCKS)
        even = tl.reshape(round_bf16(even), (BLOCKS, 64))
        odd = tl.reshape(round_bf16(odd), (BLOCKS, 64))
        row = query + 0 * block
        store_quantized(
            even, odd, row, block, block >= 0, out_ptr, scale_ptr, scale_stride,
            H * BLOCKS, 128, 1, 0, True,
        )  # fmt: skip
    else:
        tl.store(out_ptr + (query * H + head) * HALF + pair, bf16_pair(even, odd))


@triton.jit
def _half_value(bits):
    """The fp16 in the low half of an i32, as fp32."""
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
