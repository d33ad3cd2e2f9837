"""Quantisers against brute force, packed rows against quantisers, hostile inputs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.kernels.quant import (
    dequantize_weight,
    fake_quantize_fp4,
    fake_quantize_fp4_e4m3,
    fake_quantize_fp8,
    pack_index_rows,
    pack_main_rows,
    pack_window_rows,
    quantize_fp8,
    unpack_index_rows,
    unpack_main_rows,
    unpack_window_rows,
)
from deepinfer.kernels.quant.formats import _round_e4m3
from deepinfer.kernels.quant.rows import decode_e2m1, decode_e4m3, pack_nibbles
from deepinfer.kernels.testing import assert_bitwise_equal

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
ROWS = [
    (pack_window_rows, unpack_window_rows, fake_quantize_fp8),
    (pack_main_rows, unpack_main_rows, fake_quantize_fp4_e4m3),
    (pack_index_rows, unpack_index_rows, fake_quantize_fp4),
]


def e4m3_values():
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()


def nearest_e2m1(value):
    """Brute force, ties to the even code."""
    magnitude = min(abs(value), 6.0)
    best = min(range(8), key=lambda code: (abs(E2M1[code] - magnitude), code % 2))
    return math.copysign(E2M1[best], value)


def test_e4m3_decoder_knows_every_byte():
    codes = torch.arange(256, dtype=torch.uint8)
    expected = e4m3_values()
    expected[[127, 255]] = torch.tensor([480.0, -480.0])
    assert_bitwise_equal(decode_e4m3(codes), expected)


def test_e2m1_decoder_reads_the_low_nibble_first():
    packed = torch.tensor([[0x20, 0xF1]], dtype=torch.uint8)
    assert decode_e2m1(packed).tolist() == [[0.0, 1.0, 0.5, -6.0]]
    codes = torch.tensor([[0, 2, 1, 15]], dtype=torch.uint8)
    assert_bitwise_equal(pack_nibbles(codes), packed)


@given(st.integers(0, 2**31), st.integers(-60, 60))
def test_fp8_is_the_nearest_value_under_the_next_power_of_two(seed, exponent):
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(32, generator=generator) * 2.0**exponent).bfloat16().float()
    amax = max(float(x.abs().max()), 1e-4)
    scale = 2.0 ** math.ceil(math.log2(amax / 448))
    scaled = x / scale
    finite = e4m3_values()
    finite = finite[finite.isfinite()].unique()
    distance = (scaled[:, None] - finite).abs()
    rounded = fake_quantize_fp8(x) / scale
    assert bool(torch.isin(rounded, finite).all())
    assert_bitwise_equal((scaled - rounded).abs(), distance.min(1).values)


def test_e4m3_rounding_equals_the_conversion():
    """Every midpoint, its neighbours, and a dense sweep through the subnormals."""
    finite = e4m3_values()
    finite = finite[finite.isfinite()].unique()
    middles = (finite[1:] + finite[:-1]) / 2
    sweep = torch.linspace(-0.03, 0.03, 4001)
    x = torch.cat(
        [finite, middles, middles.nextafter(finite[1:]), middles.nextafter(finite[:-1]), sweep]
    )
    assert_bitwise_equal(_round_e4m3(x), x.to(torch.float8_e4m3fn).float())


@given(st.integers(0, 2**31), st.integers(-40, 40))
def test_fp4_e8m0_matches_brute_force(seed, exponent):
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(32, generator=generator) * 2.0**exponent).bfloat16().float()
    scale = 2.0 ** math.ceil(math.log2(float(x.abs().max()) / 6))
    expected = [nearest_e2m1(v / scale) * scale for v in x.tolist()]
    assert fake_quantize_fp4(x).tolist() == expected


@given(st.integers(0, 2**31), st.integers(-5, 6))
def test_fp4_e4m3_matches_brute_force(seed, exponent):
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(16, generator=generator) * 2.0**exponent).bfloat16().float()
    amax = torch.clamp(x.abs().max(), min=6 * 2.0**-9)
    scale = (amax / 6).to(torch.float8_e4m3fn).float()
    expected = [nearest_e2m1(float(v)) * float(scale) for v in x / scale]
    assert fake_quantize_fp4_e4m3(x).tolist() == expected


def test_fp4_ties_go_to_the_even_code():
    midpoints = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    x = torch.tensor([*midpoints, *(-m for m in midpoints), 6.0, -6.0, *[0.0] * 16])
    expected = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert fake_quantize_fp4(x)[:14].tolist() == [*expected, *(-e for e in expected)]


@pytest.mark.parametrize("amax, exponent", [(448.0, 127), (448.5, 128), (1e-9, 105), (0.0, 105)])
def test_fp8_scale_exponents(amax, exponent):
    """At the limit, just above it, and the floor of 1e-4 for tiny and empty blocks."""
    x = torch.zeros(32)
    x[3] = amax
    assert quantize_fp8(x)[1].tolist() == [exponent]


@pytest.mark.parametrize("pack, unpack, fake", ROWS)
@given(st.integers(0, 2**31), st.integers(-30, 8))
def test_packed_rows_hold_the_rounded_values(pack, unpack, fake, seed, exponent):
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(3, 96, generator=generator) * 2.0**exponent).bfloat16()
    assert_bitwise_equal(unpack(pack(x)), fake(x).float())


@pytest.mark.parametrize("pack, width, num_bytes", [
    (pack_window_rows, 512, 528), (pack_main_rows, 512, 288), (pack_index_rows, 128, 68),
])  # fmt: skip
def test_released_row_sizes(pack, width, num_bytes):
    assert pack(torch.zeros(5, width, dtype=torch.bfloat16)).shape == (5, num_bytes)
    assert pack(torch.zeros(0, width, dtype=torch.bfloat16)).shape == (0, num_bytes)


@pytest.mark.parametrize("pack, unpack, fake", ROWS)
def test_rounding_twice_changes_nothing(pack, unpack, fake):
    x = torch.randn(50, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    once = fake(x)
    assert_bitwise_equal(fake(once), once)


@pytest.mark.parametrize("pack, unpack, fake", ROWS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rows_unpack_to_finite_numbers_whatever_was_packed(pack, unpack, fake, bad):
    """Else one broken request would poison others through rows that they do not list: 0 * NaN."""
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(2)).bfloat16()
    x[0, 5] = bad
    rows = unpack(pack(x))
    assert bool(rows.isfinite().all())
    assert_bitwise_equal(rows[1], fake(x[1]).float())


def test_nan_stays_nan_in_activations():
    x = torch.zeros(1, 64)
    x[0, 40] = math.nan
    assert bool(fake_quantize_fp8(x)[0, 40].isnan())


def test_fp8_weight_tiles():
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(64, 96, generator=generator).to(torch.float8_e4m3fn)
    exponents = torch.randint(100, 140, (2, 3), dtype=torch.uint8, generator=generator)
    dense = dequantize_weight(values, exponents.view(torch.float8_e8m0fnu))
    for n, k in ((0, 0), (31, 95), (32, 31), (63, 64)):
        expected = float(values[n, k]) * 2.0 ** (int(exponents[n // 32, k // 32]) - 127)
        assert float(dense[n, k]) == expected


def test_fp4_weight_rows():
    generator = torch.Generator().manual_seed(4)
    packed = torch.randint(0, 256, (5, 32), dtype=torch.uint8, generator=generator)
    exponents = torch.randint(100, 140, (5, 2), dtype=torch.uint8, generator=generator)
    dense = dequantize_weight(packed.view(torch.int8), exponents.view(torch.float8_e8m0fnu))
    for n, k in ((0, 0), (4, 63), (2, 31), (3, 32)):
        nibble = int(packed[n, k // 2]) >> (4 * (k % 2)) & 15
        value = math.copysign(E2M1[nibble & 7], -1 if nibble & 8 else 1)
        assert float(dense[n, k]) == value * 2.0 ** (int(exponents[n, k // 32]) - 127)
