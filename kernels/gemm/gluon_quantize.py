"""Gluon device functions that store FP8 activations, with the same bits as ``store_quantized``."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from deepinfer.kernels.gluon_names import store_tile


@gluon.jit
def store_quantized_tile(out, buffer, values, row, column, scales, scale_stride):
    """Round [64, 128] f32 to bf16, quantize it with one scale per row and store it to ``out``
    [R, P / 2] i16, pairs of E4M3."""
    values = rounded_to_bf16(values)
    exponent = block_exponent(largest_of(values))
    place = row + gl.arange(0, 64, exponent.type.layout)
    gl.store(scales + column // 128 * scale_stride + place, power_of_two(exponent))
    tma.store_wait(0)
    buffer.store(e4m3_pairs(values, exponent))
    fence_async_shared()
    store_tile(out, [row, column // 2], buffer)


@gluon.jit
def rounded_to_bf16(values):
    """f32 rounded to the nearest bf16, still as f32; two at a time, which has eight times the
    throughput of single conversions."""
    return gl.inline_asm_elementwise(
        """
        {
            .reg .b32 pair;
            cvt.rn.bf16x2.f32 pair, $3, $2;
            shl.b32 $0, pair, 16;
            and.b32 $1, pair, 0xffff0000;
        }
        """,
        "=r,=r,r,r",
        [values],
        dtype=gl.float32,
        is_pure=True,
        pack=2,
    )


@gluon.jit
def largest_of(values):
    """Largest magnitude of each row, ignoring NaN, as the max instruction of SM90 does."""
    return gl.max(gl.abs(values), axis=1)


@gluon.jit
def block_exponent(largest):
    """Biased exponent of the smallest power-of-two scale with which ``largest`` fits into E4M3."""
    bits = (gl.maximum(largest, 1e-4) * (1.0 / 448.0)).to(gl.int32, bitcast=True)
    return gl.minimum((bits + 0x7FFFFF) >> 23, 246)


@gluon.jit
def power_of_two(exponent):
    return (exponent << 23).to(gl.float32, bitcast=True)


@gluon.jit
def e4m3_pairs(values, exponent):
    """[R, C] f32 divided by the scale of each row, in E4M3, two per i16: [R, C / 2]."""
    scaled = values * power_of_two(254 - exponent)[:, None]
    even, odd = gl.split(gl.reshape(scaled, (values.shape[0], values.shape[1] // 2, 2)))
    # Inline PTX for the reason given in ``kernels/quant/triton_bits.py``.
    return gl.inline_asm_elementwise(
        "cvt.rn.satfinite.e4m3x2.f32 $0, $2, $1;",
        "=h,r,r",
        [even, odd],
        dtype=gl.int16,
        is_pure=True,
        pack=1,
    )
