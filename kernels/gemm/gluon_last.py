"""SwiGLU and quantization after ``gluon_narrow.py``, in the last of four programs.

A program has 64 columns, but a scale covers the activations of 256.  So whichever of four programs
finishes last reads the results of all, applies SwiGLU and quantizes.  ``counters``, zero before and
after, count the programs that have finished.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from deepinfer.kernels.gluon_names import thread_barrier

from .gluon_gated import codes_in_order, gated
from .gluon_quantize import block_exponent, largest_of, power_of_two

_ROWS = gl.constexpr(16)
_LAYOUT = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))


@gluon.jit
def activate_last(
    hidden, gate, row_pair, row_tile, column, num_rows, N,
    TOKENS: gl.constexpr, GROUPED: gl.constexpr, ORDER: gl.constexpr,
):  # fmt: skip
    """hidden [R, N] bf16, of which this program has just stored TOKENS rows by 64 columns; outputs
    are values [R, N / 4] i16, pairs of E4M3 in the given order of K, and scales [N / 256, stride]
    f32."""
    values, scales, stride, weights, counters, limit = gate
    thread_barrier()
    block = column // 256
    counter = counters + row_tile * (N // 256) + block
    if gl.atomic_add(counter, 1, sem="acq_rel") == 3:
        gl.store(counter, 0)
        begin = row_tile * TOKENS
        for first in range(begin, gl.minimum(begin + TOKENS, num_rows), _ROWS):
            row = first + gl.arange(0, _ROWS, gl.SliceLayout(1, _LAYOUT))
            inside = row < num_rows
            place = gl.arange(0, 64, gl.SliceLayout(0, _LAYOUT))[None, :]
            place = hidden + row.to(gl.int64)[:, None] * N + (block * 256 + place)
            left = gated(_read(place, inside), _read(place + 64, inside), limit)
            right = gated(_read(place + 128, inside), _read(place + 192, inside), limit)
            if GROUPED:
                pair = gl.maximum(gl.load(row_pair + row, mask=inside, other=0), 0)
                weight = gl.load(weights + pair)[:, None]
                left = left * weight
                right = right * weight
            left = left.to(gl.bfloat16).to(gl.float32)
            right = right.to(gl.bfloat16).to(gl.float32)
            exponent = block_exponent(gl.maximum(largest_of(left), largest_of(right)))
            gl.store(scales + block * stride + row, power_of_two(exponent), mask=inside)
            codes = codes_in_order(left, right, exponent, ORDER)
            row = first + gl.arange(0, _ROWS, gl.SliceLayout(1, codes.type.layout))
            word = block * 64 + gl.arange(0, 64, gl.SliceLayout(0, codes.type.layout))
            place = values + row.to(gl.int64)[:, None] * (N // 4) + word[None, :]
            gl.store(place, codes, mask=(row < num_rows)[:, None])


@gluon.jit
def _read(place, inside):
    return gl.load(place, mask=inside[:, None], other=0.0).to(gl.float32)
