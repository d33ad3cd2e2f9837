"""Device functions that decode a tile of a packed weight to MMA operands.

A tile has N weight rows and a group of 128 along K.  Scales are [N] i32: the four E8M0 exponents of
a row's blocks of 32, the first in the lowest byte.  Beyond the end of K scales and values are 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.kernels.quant.triton_bits import e2m1_value, e4m3_value, e8m0_value

# Four packed bytes at a time.  $0 and $1 are the E4M3 bytes of the low and the high nibbles, each
# 2 ** (q - 6) times its E2M1 value; $3 holds 8 q of each byte, 0 <= q <= 12.  The byte of a
# magnitude at q = 0 is looked up in an 8-byte table (prmt), and 8 q is added to its exponent unless
# it is zero.
_E2M1_TO_E4M3 = tl.constexpr("""{
.reg .b32 pairs, codes, select, magnitude, shift, sign;
and.b32 codes, $2, 0x07070707;
shr.u32 pairs, codes, 4;
or.b32 pairs, codes, pairs;
prmt.b32 select, pairs, 0, 0x5520;
prmt.b32 magnitude, 0x0C080000, 0x1C181410, select;
prmt.b32 shift, 0xFFFFFF00, 0xFFFFFFFF, select;
and.b32 shift, shift, $3;
add.u32 magnitude, magnitude, shift;
shl.b32 sign, $2, 4;
and.b32 sign, sign, 0x80808080;
or.b32 $0, magnitude, sign;
shr.u32 codes, $2, 4;
and.b32 codes, codes, 0x07070707;
shr.u32 pairs, codes, 4;
or.b32 pairs, codes, pairs;
prmt.b32 select, pairs, 0, 0x5520;
prmt.b32 magnitude, 0x0C080000, 0x1C181410, select;
prmt.b32 shift, 0xFFFFFF00, 0xFFFFFFFF, select;
and.b32 shift, shift, $3;
add.u32 magnitude, magnitude, shift;
and.b32 sign, $2, 0x80808080;
or.b32 $1, magnitude, sign;
}""")

# Four E4M3 bytes, each divided by 2 ** d; $2 holds 8 d of each.  Values that fall below the
# smallest exponent become 0: the top bit of 128 + magnitude - 8 d tells which.
_E4M3_DIVIDE = tl.constexpr("""{
.reg .b32 reduced, keep, sign;
or.b32 reduced, $1, 0x80808080;
sub.u32 reduced, reduced, $2;
prmt.b32 keep, reduced, 0, 0xBA98;
and.b32 keep, keep, 0x7F7F7F7F;
and.b32 reduced, reduced, keep;
and.b32 sign, $1, 0x80808080;
or.b32 $0, reduced, sign;
}""")


@triton.jit
def decoded_fp8(codes, scales, DTYPE: tl.constexpr, NATIVE: tl.constexpr):
    """[N, 128] E4M3 bytes u8 -> [N, 128] values of DTYPE."""
    factor = e8m0_value(_per_value(scales, 32))
    if NATIVE:  # via fp16: its conversion to fp32 is one instruction, that of bf16 is not
        numbers = codes.to(tl.float8e4nv, bitcast=True).to(tl.float16).to(tl.float32)
    else:
        numbers = e4m3_value(codes)
    return (numbers * factor).to(DTYPE)


@triton.jit
def decoded_fp4(codes, scales, DTYPE: tl.constexpr):
    """[N, 64] pairs of E2M1 values u8, low nibble first -> [N, 128] values of DTYPE."""
    factor = e8m0_value(_per_value(scales, 16))
    low = (e2m1_value(codes) * factor).to(DTYPE)
    high = (e2m1_value(codes >> 4) * factor).to(DTYPE)
    return tl.interleave(low, high)


@triton.jit
def folded_fp8(codes, scales, NATIVE: tl.constexpr):
    """[N, 128] E4M3 bytes u8 with block scales -> E4M3 with one scale per row, [N] f32.

    Exact except for values below 2**-15 of the largest that the row's largest scale can represent.
    """
    top = _largest(scales)
    drops = _drop(scales, top, 0) | _drop(scales, top, 1) | _drop(scales, top, 2)
    drop = _per_value(drops | _drop(scales, top, 3), 32).to(tl.uint8)
    if NATIVE:
        bits = tl.inline_asm_elementwise(
            _E4M3_DIVIDE, "=r,r,r", [codes, drop], dtype=tl.uint8, is_pure=True, pack=4
        )
    else:
        magnitude = (codes & 0x7F).to(tl.int32)
        reduced = tl.maximum(magnitude - drop.to(tl.int32), 0)
        bits = (reduced | (codes & 0x80).to(tl.int32)).to(tl.uint8)
    return bits.to(tl.float8e4nv, bitcast=True), e8m0_value(top)


@triton.jit
def folded_fp4(codes, scales, NATIVE: tl.constexpr):
    """[N, 64] pairs of E2M1 values u8 -> the even and the odd values as E4M3 [N, 64] each.

    Also returns one scale per row, [N] f32.  Exact if the scales of a row's group span at most
    2**11; smaller scales are replaced by 2**-12 of the largest.
    """
    top = _largest(scales)
    rises = _rise(scales, top, 0) | _rise(scales, top, 1) | _rise(scales, top, 2)
    raised = _per_value(rises | _rise(scales, top, 3), 16).to(tl.uint8)
    if NATIVE:
        even, odd = tl.inline_asm_elementwise(
            _E2M1_TO_E4M3,
            "=r,=r,r,r",
            [codes, raised],
            dtype=(tl.uint8, tl.uint8),
            is_pure=True,
            pack=4,
        )
    else:
        even = _e4m3_of_e2m1(codes, raised)
        odd = _e4m3_of_e2m1(codes >> 4, raised)
    factor = e8m0_value(tl.maximum(top - 6, 0))
    return even.to(tl.float8e4nv, bitcast=True), odd.to(tl.float8e4nv, bitcast=True), factor


@triton.jit
def _e4m3_of_e2m1(codes, raised):
    magnitude = (codes & 7).to(tl.int32)
    bits = tl.where(magnitude > 1, magnitude * 4, 0) + raised.to(tl.int32)
    sign = (codes & 8).to(tl.int32) << 4
    return (tl.where(magnitude > 0, bits, 0) | sign).to(tl.uint8)


@triton.jit
def _drop(scales, top, PART: tl.constexpr):
    """8 d in byte PART, where d is the largest exponent minus that of the block, at most 15."""
    return tl.minimum(top - ((scales >> (8 * PART)) & 255), 15) << (8 * PART + 3)


@triton.jit
def _rise(scales, top, PART: tl.constexpr):
    """8 q in byte PART, where q is 12 for the largest exponent and decreases with the exponent."""
    return tl.maximum(12 + ((scales >> (8 * PART)) & 255) - top, 0) << (8 * PART + 3)


@triton.jit
def _largest(scales):
    low = tl.maximum(scales & 255, (scales >> 8) & 255)
    return tl.maximum(low, tl.maximum((scales >> 16) & 255, (scales >> 24) & 255))


@triton.jit
def _per_value(parts, REPEAT: tl.constexpr):
    """The bytes of [N] i32, each repeated REPEAT times: [N, 4 * REPEAT] i32."""
    part = tl.arange(0, 4 * REPEAT) // REPEAT
    return (parts[:, None] >> (8 * part)[None, :]) & 255
