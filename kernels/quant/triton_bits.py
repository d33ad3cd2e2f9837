"""Device functions that convert between the bits of narrow number formats and fp32.

They use integer and fp32 operations (and fp16 for subnormals), so that the same code works in the
interpreter and on devices without these formats.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def even_bf16(pair):
    """The bf16 in the low half of an i32, as fp32."""
    return (pair << 16).to(tl.float32, bitcast=True)


@triton.jit
def odd_bf16(pair):
    """The bf16 in the high half of an i32, as fp32."""
    return (pair & -65536).to(tl.float32, bitcast=True)


@triton.jit
def bf16_bits(x):
    """Bits of the nearest bf16 (ties to even) of fp32 values, as an i32 below 2**16."""
    bits = x.to(tl.int32, bitcast=True)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF
    return tl.where(x != x, 0x7FC0, rounded)


@triton.jit
def bf16_value(bits):
    """bf16 bits, the low 16 bits of any integer, as fp32."""
    return (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def bf16_operand(bits, DOT: tl.constexpr):
    """MMA operand from bf16 bits (i16): bf16, or fp32 if ``matrix_dtype`` is fp32."""
    if DOT == tl.float32:  # noqa: SIM108, SIM300
        value = bf16_value(bits)
    else:
        value = bits.to(tl.bfloat16, bitcast=True)
    return value


@triton.jit
def round_bf16(x):
    """fp32 rounded to the nearest bf16, still as fp32."""
    return bf16_value(bf16_bits(x))


@triton.jit
def bf16_pair(even, odd, NATIVE: tl.constexpr = False):
    """Two fp32 rounded to bf16, packed into an i32; NATIVE (``has_native_fp8``): one
    instruction."""
    if NATIVE:
        pair = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;",
            "=r,f,f",
            [even, odd],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    else:
        pair = bf16_bits(even) | (bf16_bits(odd) << 16)
    return pair


@triton.jit
def rounded_pair(even, odd, NATIVE: tl.constexpr):
    """Both rounded to the nearest bf16, still as fp32."""
    pair = bf16_pair(even, odd, NATIVE)
    return even_bf16(pair), odd_bf16(pair)


SIGMOID = tl.constexpr("""{
.reg .f32 t;
mul.f32 t, $1, 0fBFB8AA3B;
ex2.approx.ftz.f32 t, t;
add.f32 t, t, 0f3F800000;
rcp.approx.ftz.f32 $0, t;
}""")


@triton.jit
def sigmoid(x, NATIVE: tl.constexpr):
    """``1 / (1 + exp(-x))`` in fp32; NATIVE: without the special cases of exp and division, which
    do not change the result here."""
    if NATIVE:
        result = tl.inline_asm_elementwise(
            SIGMOID, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        result = 1.0 / (1.0 + tl.exp(-x))
    return result


@triton.jit
def e4m3_value(code):
    """E4M3 (the low 8 bits of an integer) as fp32; NaN becomes 480."""
    bits = code.to(tl.int32)
    half = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
    return half.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 256.0


@triton.jit
def e4m3_values(pair, NATIVE: tl.constexpr):
    """Two ``e4m3_value`` of an i16, the low byte first; NATIVE: NaN stays NaN."""
    if NATIVE:
        halves = tl.inline_asm_elementwise(
            "cvt.rn.f16x2.e4m3x2 $0, $1;", "=r,h", [pair], dtype=tl.int32, is_pure=True, pack=1
        )
        even = halves.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        odd = (halves >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        even, odd = e4m3_value(pair), e4m3_value(pair >> 8)
    return even, odd


@triton.jit
def e2m1_value(code):
    """E2M1 (the low 4 bits of an integer) as fp32."""
    bits = code.to(tl.int32)
    half = ((bits & 0x8) << 12) | ((bits & 0x7) << 9)
    return half.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 16384.0


@triton.jit
def e8m0_value(exponent):
    """``2 ** (exponent - 127)`` in fp32 for biased exponents 1 to 254; 0 for 0."""
    return (exponent.to(tl.int32) << 23).to(tl.float32, bitcast=True)


@triton.jit
def exponent_above(x):
    """Biased exponent of the smallest power of two at or above a positive normal fp32."""
    return (x.to(tl.int32, bitcast=True) + 0x7FFFFF) >> 23


@triton.jit
def e4m3_code(x, NATIVE: tl.constexpr):
    """fp32 within +-448 to the nearest E4M3, ties to even, as i32."""
    if NATIVE:
        code = _e4m3_pair_native(x, tl.zeros_like(x)).to(tl.int32)
    else:
        magnitude = tl.abs(x)
        bits = magnitude.to(tl.int32, bitcast=True)
        normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - 960
        code = tl.where(magnitude < 0.015625, _nearest_integer(magnitude * 512.0), normal)
        code = tl.where(x != x, 0x7F, code) | ((x.to(tl.int32, bitcast=True) >> 24) & 0x80)
    return code


@triton.jit
def e4m3_pair(even, odd, NATIVE: tl.constexpr):
    """Two ``e4m3_code`` packed into an i16, the even one in the low byte."""
    if NATIVE:
        pair = _e4m3_pair_native(even, odd)
    else:
        pair = (e4m3_code(even, NATIVE) | (e4m3_code(odd, NATIVE) << 8)).to(tl.int16)
    return pair


@triton.jit
def _e4m3_pair_native(even, odd):
    # Inline PTX: if a tensor is converted to FP8, viewed as bytes and merged with another, Triton
    # 3.6 drops every fourth value (measured on an H200).
    return tl.inline_asm_elementwise(
        "cvt.rn.satfinite.e4m3x2.f32 $0, $2, $1;",
        "=h,r,r",
        [even, odd],
        dtype=tl.int16,
        is_pure=True,
        pack=1,
    )


@triton.jit
def e2m1_code(x):
    """fp32 to the nearest E2M1, ties to the even code, saturating at 6, as i32."""
    magnitude = tl.minimum(tl.abs(x), 6.0)
    large = _nearest_integer(magnitude * 0.5) + 4
    middle = _nearest_integer(magnitude) + 2
    code = tl.where(magnitude < 4.0, middle, large)
    code = tl.where(magnitude < 2.0, _nearest_integer(magnitude * 2.0), code)
    return code | ((x.to(tl.int32, bitcast=True) >> 28) & 0x8)


@triton.jit
def _nearest_integer(x):
    """fp32 in [0, 2**22) to the nearest i32, ties to even."""
    return (x + 8388608.0).to(tl.int32, bitcast=True) - 0x4B000000
