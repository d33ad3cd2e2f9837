"""Gluon device functions that decode FP4 weights of ``hopper_weights.py`` to E4M3 operands.

In the fragment layout of the MMA a thread owns two rows and one block of 32 along K: 16 bytes of
FP4 and one block exponent for each row.  Each eight rows are in *thread order*, 0 4 1 5 2 6 3 7, so
that the eight threads that access shared memory together use different banks.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# Eight FP4 values ($2; bit layout in ``hopper_weights.py``) to the E4M3 bytes of the first and the
# last four ($0, $1).  $6 and $10 are a table of the eight magnitudes at the scale of the block.
_DECODE = gl.constexpr("""{
.reg .b32 codes, shifted, low, high;
and.b32 codes, $2, 0x77777777;
prmt.b32 low, $6, $10, codes;
shr.u32 shifted, codes, 16;
prmt.b32 high, $6, $10, shifted;
lop3.b32 $0, low, $2, 0x80808080, 0xF8;
shl.b32 shifted, $2, 4;
lop3.b32 $1, high, shifted, 0x80808080, 0xF8;
}""")


@gluon.constexpr_function
def code_layout(rows):
    """[rows, 16] i32: each thread has its own 16 bytes of each of its rows."""
    return gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [8, 0], *_further(rows, 2)],
        [[0, 4], [0, 8], [4, 0], [1, 0], [2, 0]],
        [[16, 0], [32, 0]],
        [],
        [rows, 16],
    )


@gluon.constexpr_function
def _further(rows, rank):
    """Register bases of the tiles of 64 rows after the first."""
    return [[64 << bit] + [0] * (rank - 1) for bit in range((rows // 64).bit_length() - 1)]


@gluon.constexpr_function
def _spread_layout(rows):
    """[rows, 4, 4, 4]: row, block of 32, word of eight FP4 values, byte."""
    return gl.DistributedLinearLayout(
        [[0, 0, 0, 1], [0, 0, 0, 2], [0, 0, 1, 0], [0, 0, 2, 0], [8, 0, 0, 0], *_further(rows, 4)],
        [[0, 1, 0, 0], [0, 2, 0, 0], [1, 0, 0, 0], [2, 0, 0, 0], [4, 0, 0, 0]],
        [[16, 0, 0, 0], [32, 0, 0, 0]],
        [],
        [rows, 4, 4, 4],
    )


@gluon.jit
def in_thread_order(tile):
    """Permute the rows of [R, X] to thread order."""
    R: gl.constexpr = tile.shape[0]
    return tile.reshape([R // 8, 2, 4, tile.shape[1]]).permute((0, 2, 1, 3)).reshape(tile.shape)


@gluon.jit
def in_memory_order(tile):
    """The inverse of ``in_thread_order``."""
    R: gl.constexpr = tile.shape[0]
    return tile.reshape([R // 8, 4, 2, tile.shape[1]]).permute((0, 2, 1, 3)).reshape(tile.shape)


@gluon.jit
def decoded_operand(codes, exponents, layout: gl.constexpr):
    """The left MMA operand [R, 128] e4m3 in registers, rows in thread order.

    ``codes`` [R, 16] i32 are FP4 values in thread order; ``exponents`` [2 R] i32, for each 64 rows
    one word per thread: byte 0 for its first row, byte 1 for the row eight below.
    """
    R: gl.constexpr = codes.shape[0]
    spread: gl.constexpr = _spread_layout(R)
    both = gl.join(exponents & 255, (exponents >> 8) & 255).reshape([R // 16, 8, 4, 2])
    exponent = both.permute((0, 3, 1, 2)).reshape([R, 4])
    exponent_layout: gl.constexpr = gl.SliceLayout(2, gl.SliceLayout(3, spread))
    exponent = gl.convert_layout(exponent, exponent_layout, assert_trivial=True)
    low = (0x14100800 + exponent * 0x08080800)[:, :, None, None]
    high = (0x24201C18 + exponent * 0x08080808)[:, :, None, None]
    codes = gl.convert_layout(
        codes.reshape([R, 4, 4]), gl.SliceLayout(3, spread), assert_trivial=True
    )
    codes, _ = gl.broadcast(codes[:, :, :, None], gl.zeros([R, 4, 4, 4], gl.int32, spread))
    first, last = gl.inline_asm_elementwise(
        _DECODE,
        "=r,=r,r,r,r,r,r,r,r,r,r,r,r,r",
        [codes, low, high],
        dtype=(gl.uint8, gl.uint8),
        is_pure=True,
        pack=4,
    )
    values = gl.join(first, last).permute((0, 2, 4, 1, 3)).reshape([R, 128])
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, 4)
    values = gl.convert_layout(values, operand, assert_trivial=True)
    return values.to(gl.float8e4nv, bitcast=True)
