"""Norm, rotation, packing, streams and Engram on a GPU against the references, at full size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deepinfer.bench.kernels.rows import (
    engram_table,
    gate_case,
    random_rope,
    stream_case,
    uneven_rows,
)
from deepinfer.kernels.engram import triton_kernel as engram
from deepinfer.kernels.engram.reference import engram_gate_reference, engram_lookup_reference
from deepinfer.kernels.hyper_connection import HyperMix
from deepinfer.kernels.hyper_connection import triton_kernel as hyper
from deepinfer.kernels.hyper_connection.reference import (
    collapse_streams_reference,
    expand_streams_reference,
    hyper_mix_reference,
)
from deepinfer.kernels.norm.reference import rms_norm_reference
from deepinfer.kernels.rope.reference import apply_rope_reference
from deepinfer.kernels.rows import triton_kernel as rows
from deepinfer.kernels.rows.reference import pack_latents_reference

_D, _S = 5120, 4

pytestmark = pytest.mark.gpu


def _error(actual: Tensor, expected: Tensor) -> float:
    a, e = actual.double(), expected.double()
    return float((a - e).norm() / e.norm())


def test_norm() -> None:
    x, weight = uneven_rows(99, _D), torch.randn(_D, device="cuda").bfloat16()
    assert (
        _error(rows.rms_norm_triton(x, weight, 1e-20), rms_norm_reference(x, weight, 1e-20)) < 1e-3
    )


def test_rope() -> None:
    x, rope = uneven_rows(33, 64, 512), random_rope(33)
    for inverse in (False, True):
        expected = apply_rope_reference(x, *rope, inverse)
        assert torch.equal(rows.apply_rope_triton(x, *rope, inverse), expected), "bits differ"


@pytest.mark.parametrize("row_format", ("window", "main", "index"))
def test_packed(row_format: rows.RowFormat) -> None:
    x, rope = uneven_rows(999, 512), random_rope(999)
    expected = pack_latents_reference(x, rope, row_format)
    differing = int((rows.pack_latents_triton(x, rope, row_format) != expected).sum())
    assert differing == 0, f"{differing} of {expected.numel()} bytes differ"


def test_streams() -> None:
    streams, output, mix, mixer, entrance = stream_case(77)
    expanded, entry = hyper.advance_streams_triton(streams, output, mix, mixer, entrance)
    assert _error(expanded, expand_streams_reference(streams, output, mix)) < 1e-3
    collapsed = hyper.collapse_streams_triton(expanded, mix.pre)
    assert _error(collapsed, collapse_streams_reference(expanded, mix.pre)) < 1e-3
    assert (
        _error(entry.rows.values, rms_norm_reference(collapsed, entrance.weight, entrance.eps))
        < 1e-3
    )
    expected = hyper_mix_reference(expanded, mixer)
    worst = max(float((a - e).abs().max()) for a, e in zip(entry.mix, expected, strict=True))
    assert worst < 2e-5, f"coefficients off by {worst:.1e}"


def test_engram() -> None:
    table, scales = engram_table(4096)
    picks = torch.randint(0, 4096, (55, 24), device="cuda")
    expected = engram_lookup_reference(table, scales, picks)
    assert torch.equal(engram.engram_lookup_triton(table, scales, picks), expected), "rows differ"
    case = gate_case(55)
    assert _error(engram.engram_gate_triton(*case), engram_gate_reference(*case)) < 1e-3


def test_bits() -> None:
    streams, output, mix, *ways = stream_case(5000)
    x, weight = uneven_rows(5000, _D), torch.randn(_D, device="cuda").bfloat16()

    def run(count: int) -> list[Tensor]:
        part = HyperMix(*(coefficients[:count] for coefficients in mix))
        expanded, entry = hyper.advance_streams_triton(streams[:count], output[:count], part, *ways)
        normal = rows.rms_norm_triton(x[:count], weight, 1e-6)
        return [expanded, *entry.mix, entry.rows.values, entry.rows.operand.values, normal]

    whole = run(5000)
    assert torch.equal(whole[0], hyper.expand_streams_triton(streams, output, mix))
    for count in (1, 2, 7, 64, 256, 3001):
        for actual, expected in zip(run(count), whole, strict=True):
            assert torch.equal(actual, expected[:count]), f"{count} rows differ from those of 5,000"
