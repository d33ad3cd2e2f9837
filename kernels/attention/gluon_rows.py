"""Decode packed cache rows to bf16 in registers, two values at a time in one i32."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def decode_window(raw, factors):
    """E4M3 bytes [R, C] i32 and pairs of bf16 scales [R, C] i32 -> bf16 pairs [R, 2 C] i32.

    Exponent and mantissa bits of a byte are moved into a bf16; one exact multiplication corrects
    the bias (2**120), a second one applies the scale.
    """
    low, high = gl.inline_asm_elementwise(
        """
        {
        .reg .b32 x, y, bias;
        mov.b32 bias, 0x7B807B80;
        prmt.b32 x, $2, 0, 0x1404;
        shr.b32 y, x, 4;
        and.b32 y, y, 0x07F007F0;
        lop3.b32 x, x, 0x80008000, y, 0xEA;
        mul.rn.bf16x2 x, x, bias;
        mul.rn.bf16x2 $0, x, $3;
        prmt.b32 x, $2, 0, 0x3424;
        shr.b32 y, x, 4;
        and.b32 y, y, 0x07F007F0;
        lop3.b32 x, x, 0x80008000, y, 0xEA;
        mul.rn.bf16x2 x, x, bias;
        mul.rn.bf16x2 $1, x, $3;
        }
        """,
        "=&r,=r,r,r",
        [raw, factors],
        dtype=(gl.int32, gl.int32),
        is_pure=True,
        pack=1,
    )
    return _interleave(low, high)


@gluon.jit
def e8m0_factors(words, place):
    """Pairs of bf16 scales in i32, from byte ``place`` of words of E8M0 exponents."""
    return ((words >> (place * 8)) & 0xFF) * 0x00800080


@gluon.jit
def e4m3_factors(words, place):
    """Pairs of bf16 scales in i32, from byte ``place`` of words of E4M3 scales."""
    bits = ((words >> (place * 8)) & 0x7F) * 0x00100010
    return gl.inline_asm_elementwise(
        "{ .reg .b32 bias; mov.b32 bias, 0x7B807B80; mul.rn.bf16x2 $0, $1, bias; }",
        "=r,r",
        [bits],
        dtype=gl.int32,
        is_pure=True,
        pack=1,
    )


@gluon.jit
def in_register(CONSTANT: gl.constexpr):
    """A constant that is opaque to the compiler, so that it stays in a register.

    Otherwise it would be in a uniform register and copied for each byte permute.  The added 0 is
    computed from the lane id, so the compiler must assume that it differs between lanes.
    """
    return gl.inline_asm_elementwise(
        """
        {
        .reg .b32 x, y;
        mov.u32 x, %smid;
        mov.u32 y, %laneid;
        add.u32 x, x, y;
        shr.u32 x, x, 20;
        add.u32 $0, x, $1;
        }
        """,
        "=r,r",
        [CONSTANT],
        dtype=gl.int32,
        is_pure=True,
        pack=1,
    )


@gluon.jit
def main_tables():
    """Lookup tables of ``decode_main``: low bytes of magnitudes, high bytes, signs."""
    return in_register(-0x3F800000), in_register(0x3F3F3F00), in_register(-0x7F7F7F80)


@gluon.jit
def decode_main(raw, factors, tables):
    """E2M1 nibbles [R, C] i32 and pairs of bf16 scales [R, C] i32 -> bf16 pairs [R, 4 C] i32.

    The three bits of a magnitude select both bytes of its bf16 from tables (prmt); products of a
    magnitude and a scale are exact in bf16.
    """
    a, b, c, d = gl.inline_asm_elementwise(
        """
        {
        .reg .b32 m, x, lo, hi;
        and.b32 m, $4, 0x77777777;
        prmt.b32 lo, $6, 0xC0804000, m;
        prmt.b32 hi, $7, 0x40404040, m;
        prmt.b32 x, $8, $8, $4;
        shl.b32 x, x, 1;
        lop3.b32 hi, x, 0x80808080, hi, 0xEA;
        prmt.b32 x, lo, hi, 0x5140;
        mul.rn.bf16x2 $0, x, $5;
        prmt.b32 x, lo, hi, 0x7362;
        mul.rn.bf16x2 $1, x, $5;
        shr.b32 m, m, 16;
        prmt.b32 lo, $6, 0xC0804000, m;
        prmt.b32 hi, $7, 0x40404040, m;
        shr.b32 x, $4, 16;
        prmt.b32 x, $8, $8, x;
        shl.b32 x, x, 1;
        lop3.b32 hi, x, 0x80808080, hi, 0xEA;
        prmt.b32 x, lo, hi, 0x5140;
        mul.rn.bf16x2 $2, x, $5;
        prmt.b32 x, lo, hi, 0x7362;
        mul.rn.bf16x2 $3, x, $5;
        }
        """,
        "=&r,=&r,=&r,=r,r,r,r,r,r",
        [raw, factors, tables[0], tables[1], tables[2]],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32),
        is_pure=True,
        pack=1,
    )
    return _interleave(_interleave(a, c), _interleave(b, d))


@gluon.jit
def _interleave(even, odd):
    """Interleave two [R, C] to [R, 2 C] without moving data between registers."""
    pair = gl.join(even, odd)
    return gl.reshape(pair, (even.shape[0], 2 * even.shape[1]))


@gluon.jit
def halves_of(x):
    """[R, C] -> two [R, C / 2], left and right."""
    return gl.split(gl.permute(gl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))


@gluon.jit
def rows_of(x):
    """[R, C] -> two [R / 2, C], upper and lower."""
    return gl.split(gl.permute(gl.reshape(x, (2, x.shape[0] // 2, x.shape[1])), (1, 2, 0)))


@gluon.jit
def twice(x):
    """[R, C] -> [R, 2 C], each value repeated."""
    return _interleave(x, x)
