"""The second kernel of a sub-block's entry on NVIDIA SM90, in Gluon: coefficients, and the
normalized, quantized input; as ``triton_finish.py``, with explicit layouts."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_wait

from deepinfer.kernels.gemm.gluon_quantize import block_exponent, power_of_two
from deepinfer.kernels.gluon_names import thread_barrier

from .gluon_coefficients import MADE_TOKENS, make_coefficients

# Pairs of bf16: 16 bytes per thread, 16 threads per block of 128 values.
_PAIRS = gl.constexpr(gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0]))


@gluon.jit(do_not_specialize=["num_tokens"])
def finish_gluon_kernel(
    rows_ptr, weight_ptr, values_ptr, scales_ptr, scale_stride, norm_eps,
    products_ptr, squares_ptr, scale_ptr, base_ptr, pre_ptr, post_ptr, comb_ptr,
    num_tokens, inverse_size, eps,
    D: gl.constexpr, BLOCKS: gl.constexpr, ORDER: gl.constexpr, SLICES: gl.constexpr,
    ROUNDS: gl.constexpr,
):  # fmt: skip
    """The first programs compute coefficients of 16 tokens each, the rest normalize one token each
    in place: rows [T, D / 2] i32, pairs of bf16.

    All start with the last tokens, which the previous kernel has left in L2.
    """
    gdc_wait()  # programmatic dependent launch: until the previous kernel has finished
    program = gl.program_id(0)
    num_tiles = gl.cdiv(num_tokens, MADE_TOKENS)
    if program < num_tiles:
        make_coefficients(
            num_tiles - 1 - program, products_ptr, squares_ptr, scale_ptr, base_ptr, pre_ptr,
            post_ptr, comb_ptr, num_tokens, inverse_size, eps, SLICES, ROUNDS,
        )  # fmt: skip
    else:
        row = (num_tokens - 1 - (program - num_tiles)).to(gl.int64)
        _normalize(
            row, rows_ptr, weight_ptr, norm_eps, values_ptr, scales_ptr, scale_stride, D, BLOCKS,
            ORDER,
        )  # fmt: skip


@gluon.jit
def _normalize(
    row, rows_ptr, weight_ptr, norm_eps, values_ptr, scales_ptr, scale_stride, D: gl.constexpr,
    BLOCKS: gl.constexpr, ORDER: gl.constexpr,
):  # fmt: skip
    """Normalize and quantize one row, at most BLOCKS x 128 wide, as ``normed_row`` does."""
    block = gl.arange(0, BLOCKS, gl.SliceLayout(1, _PAIRS))
    kept = gl.arange(0, 64, gl.SliceLayout(0, _PAIRS))
    pair = kept
    if ORDER == 2:  # see ``kept_pairs``
        pair = kept // 2 % 4 * 16 + kept // 16 * 4 + kept // 8 % 2 * 2 + kept % 2
        pair = gl.max_contiguous(gl.multiple_of(pair, 2), 2)
    pair = block[:, None] * 64 + pair[None, :]
    inside = pair < D // 2
    place = rows_ptr + row * (D // 2) + pair
    even, odd = _both(gl.load(place, mask=inside, other=0))
    squares = gl.sum(gl.sum(even * even + odd * odd, 1), 0)
    factor = gl.rsqrt(squares * (1.0 / D) + norm_eps)
    # Loaded late, since it hits the cache: fewer registers allow more rows in flight.
    even_weight, odd_weight = _both(gl.load(weight_ptr + pair, mask=inside, other=0))
    normed = gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;",
        "=r,r,r",
        [even_weight * (even * factor), odd_weight * (odd * factor)],
        dtype=gl.int32,
        is_pure=True,
        pack=1,
    )
    thread_barrier()  # in a short row several threads read the same values
    gl.store(place, normed, mask=inside)
    even, odd = _both(normed)
    exponent = block_exponent(gl.max(gl.maximum(gl.abs(even), gl.abs(odd)), 1))
    inverse = power_of_two(254 - exponent)[:, None]
    # Inline PTX for the reason given in ``kernels/quant/triton_bits.py``.
    codes = gl.inline_asm_elementwise(
        "cvt.rn.satfinite.e4m3x2.f32 $0, $2, $1;",
        "=h,r,r",
        [even * inverse, odd * inverse],
        dtype=gl.int16,
        is_pure=True,
        pack=1,
    )
    place = values_ptr + row * (D // 2) + (block[:, None] * 64 + kept[None, :])
    gl.store(place, codes, mask=inside)
    place = scales_ptr + block.to(gl.int64) * scale_stride + row
    gl.store(place, power_of_two(exponent), mask=block < D // 128)


@gluon.jit
def _both(pair):
    """The two bf16 in an i32, as fp32."""
    even = (pair << 16).to(gl.float32, bitcast=True)
    return even, (pair & -65536).to(gl.float32, bitcast=True)
