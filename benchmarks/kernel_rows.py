"""Norm, rotation, quantising, packing, streams and Engram on the GPU: checks and times.

``python benchmarks/kernel_rows.py`` checks, then prints one JSON line for each shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from kernel_timing import Ceilings, Row, microseconds, print_row
from torch import Tensor

from deepinfer.kernels.engram import triton_kernel as engram
from deepinfer.kernels.engram.reference import engram_gate_reference, engram_lookup_reference
from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.hyper_connection import HyperMix
from deepinfer.kernels.hyper_connection import triton_kernel as hyper
from deepinfer.kernels.hyper_connection.reference import (
    collapse_streams_reference,
    expand_streams_reference,
    hyper_mix_reference,
)
from deepinfer.kernels.norm.reference import rms_norm_reference
from deepinfer.kernels.rope import rope_frequencies, rope_table
from deepinfer.kernels.rope.reference import apply_rope_reference
from deepinfer.kernels.rows import triton_kernel as rows
from deepinfer.kernels.rows.reference import pack_latents_reference

_D, _S = 5120, 4
_ROUNDS = {"iterations": 20, "eps": 1e-6}


def _x(*shape: int) -> Tensor:
    sizes = torch.randn(shape[-1] // 16, device="cuda").mul_(2).exp2_().repeat_interleave(16)
    return (torch.randn(*shape, device="cuda") * sizes).bfloat16()


def _rope(tokens: int) -> tuple[Tensor, Tensor]:
    positions = torch.randint(0, 1 << 20, (tokens,))
    cos, sin = rope_table(rope_frequencies(64, 1.6e5), positions)
    return cos.cuda(), sin.cuda()


def _streams(tokens: int) -> tuple[Tensor, Tensor, HyperMix, Weight, Tensor, Tensor]:
    streams = torch.randn(tokens, _S, _D, device="cuda").bfloat16()
    output = torch.randn(tokens, _D, device="cuda").bfloat16()
    both = torch.rand(2, tokens, _S, device="cuda")
    mix = HyperMix(both[0], both[1], torch.rand(tokens, _S, _S, device="cuda") / 2)
    fn = Weight(torch.randn(24, _S * _D, device="cuda") / (_S * _D) ** 0.5)
    return streams, output, mix, fn, torch.rand(3, device="cuda"), torch.randn(24, device="cuda")


def _gate_case(tokens: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    weights = torch.randn(2, _S, _D, device="cuda").bfloat16()
    streams = torch.randn(tokens, _S, _D, device="cuda").bfloat16()
    key_value = torch.randn(tokens, (_S + 1) * _D, device="cuda").bfloat16()
    return streams, key_value, weights[0], weights[1]


def _table(num_rows: int) -> tuple[Tensor, Tensor]:
    table = torch.randn(num_rows, 256, device="cuda").to(torch.float8_e4m3fn)
    exponents = torch.randint(118, 130, (num_rows, 8), dtype=torch.uint8, device="cuda")
    return table, exponents.view(torch.float8_e8m0fnu)


def checks() -> Iterator[tuple[str, Callable[[], str]]]:
    """(name, check); a check returns what it measured and raises AssertionError."""
    yield "norm", _check_norm
    yield "rope", _check_rope
    for row_format in ("window", "main", "index"):
        yield f"{row_format} rows", partial(_check_packed, row_format)
    yield "streams", _check_streams
    yield "engram", _check_engram
    yield "same bits in any batch", _check_bits


def _error(actual: Tensor, expected: Tensor, limit: float) -> str:
    a, e = actual.double(), expected.double()
    error = float((a - e).norm() / e.norm())
    assert error < limit, f"relative error {error:.1e}, limit {limit:.1e}"
    return f"relative error {error:.1e}"


def _check_norm() -> str:
    x, weight = _x(99, _D), torch.randn(_D, device="cuda").bfloat16()
    return _error(
        rows.rms_norm_triton(x, weight, 1e-20), rms_norm_reference(x, weight, 1e-20), 1e-3
    )


def _check_rope() -> str:
    x, rope = _x(33, 64, 512), _rope(33)
    for inverse in (False, True):
        expected = apply_rope_reference(x, *rope, inverse)
        assert torch.equal(rows.apply_rope_triton(x, *rope, inverse), expected), "bits differ"
    return "same bits"


def _check_packed(row_format: rows.RowFormat) -> str:
    x, rope = _x(999, 512), _rope(999)
    expected = pack_latents_reference(x, rope, row_format)
    differing = int((rows.pack_latents_triton(x, rope, row_format) != expected).sum())
    assert differing == 0, f"{differing} of {expected.numel()} bytes differ"
    return "same bits"


def _check_streams() -> str:
    streams, output, mix, *weights = _streams(77)
    expanded, next_mix, collapsed = hyper.advance_streams_triton(
        streams, output, mix, *weights, **_ROUNDS
    )
    message = _error(expanded, expand_streams_reference(streams, output, mix), 1e-3)
    _error(collapsed, collapse_streams_reference(expanded, mix.pre), 1e-3)
    expected = hyper_mix_reference(expanded, *weights, **_ROUNDS)
    worst = max(float((a - e).abs().max()) for a, e in zip(next_mix, expected, strict=True))
    assert worst < 2e-5, f"coefficients off by {worst:.1e}"
    return f"{message}, coefficients off by {worst:.1e}"


def _check_engram() -> str:
    table, scales = _table(4096)
    picks = torch.randint(0, 4096, (55, 24), device="cuda")
    expected = engram_lookup_reference(table, scales, picks)
    assert torch.equal(engram.engram_lookup_triton(table, scales, picks), expected), "rows differ"
    case = _gate_case(55)
    return _error(engram.engram_gate_triton(*case), engram_gate_reference(*case), 1e-3)


def _check_bits() -> str:
    streams, output, mix, *weights = _streams(300)
    x, weight = _x(300, _D), torch.randn(_D, device="cuda").bfloat16()

    def run(count: int) -> list[Tensor]:
        part = HyperMix(*(coefficients[:count] for coefficients in mix))
        expanded, next_mix, collapsed = hyper.advance_streams_triton(
            streams[:count], output[:count], part, *weights, **_ROUNDS
        )
        normal = rows.rms_norm_triton(x[:count], weight, 1e-6)
        return [expanded, *next_mix, collapsed, normal]

    whole = run(300)
    for count in (1, 2, 7, 64, 256):
        for actual, expected in zip(run(count), whole, strict=True):
            assert torch.equal(actual, expected[:count]), f"{count} rows differ from those of 300"
    return "1 to 300 rows"


def timings(ceilings: Ceilings) -> Iterator[Row]:
    tokens = 1536
    calls: list[tuple[str, Callable[[], object], int]] = []
    x, weight = _x(tokens, _D), torch.randn(_D, device="cuda").bfloat16()
    calls.append(("norm, 5120", partial(rows.rms_norm_triton, x, weight, 1e-6), _D * 4))
    latent, narrow = _x(tokens, 1280), torch.randn(1280, device="cuda").bfloat16()
    calls.append(("norm, 1280", partial(rows.rms_norm_triton, latent, narrow, 1e-6), 1280 * 4))
    rope, q = _rope(tokens), _x(tokens, 64, 512)
    calls.append(("rope of q, 64 x 512", partial(rows.apply_rope_triton, q, *rope), 64 * 2048))
    kv, kv_weight = _x(tokens, 512), torch.randn(512, device="cuda").bfloat16()
    cache = torch.empty(65536, 528, dtype=torch.uint8, device="cuda")
    slots = torch.randperm(65536, device="cuda")[:tokens]
    store = partial(
        rows.store_latents_triton, kv, rope, "window", cache, slots, weight=kv_weight, eps=1e-6
    )
    calls.append(("window rows into the cache", store, 1024 + 528 + 512))
    streams, output, mix, *weights = _streams(tokens)
    advance = partial(hyper.advance_streams_triton, streams, output, mix, *weights, **_ROUNDS)
    calls.append(("streams: expand, mix, collapse", advance, 2 * (2 * _S + 2) * _D))
    few, few_output, few_mix, *few_weights = _streams(16)
    advance = partial(
        hyper.advance_streams_triton, few, few_output, few_mix, *few_weights, **_ROUNDS
    )
    table, scales = _table(4 << 20)
    picks = torch.randint(0, 4 << 20, (tokens, 24), device="cuda")
    lookup = partial(engram.engram_lookup_triton, table, scales, picks)
    calls.append(("engram rows", lookup, 24 * (264 + 512)))
    gate = partial(engram.engram_gate_triton, *_gate_case(tokens))
    calls.append(("engram gate", gate, 2 * (3 * _S + 1) * _D))
    for name, call, bytes_per_token in calls:
        yield ceilings.row(
            f"{name}, {tokens} rows", microseconds(call), 0, tokens * bytes_per_token
        )
    yield ceilings.row("streams, 16 rows", microseconds(advance), 0, 32 * (2 * _S + 2) * _D)


def main() -> None:
    for name, check in checks():
        print(f"{name}: {check()}", flush=True)
    for row in timings(Ceilings.measure()):
        print_row(row)


if __name__ == "__main__":
    main()
