"""Norm, rotation, quantization, packing, pooling, streams and Engram at the model's shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from deepinfer.kernels.compressor import pool_tokens
from deepinfer.kernels.engram import engram_gate, engram_hash, engram_lookup
from deepinfer.kernels.gemm import Weight, native_weight
from deepinfer.kernels.hyper_connection import Entrance, HyperMix, Mixer, advance_streams
from deepinfer.kernels.norm import rms_norm
from deepinfer.kernels.rope import apply_rope, rope_frequencies, rope_table
from deepinfer.kernels.rows import split_projection, store_latents

from .case import KernelCase
from .gemm import random_weight

_D, _S = 5120, 4


def uneven_rows(*shape: int) -> Tensor:
    sizes = torch.randn(shape[-1] // 16, device="cuda").mul_(2).exp2_().repeat_interleave(16)
    return (torch.randn(*shape, device="cuda") * sizes).bfloat16()


def random_rope(tokens: int) -> tuple[Tensor, Tensor]:
    positions = torch.randint(0, 1 << 20, (tokens,))
    cos, sin = rope_table(rope_frequencies(64, 1.6e5), positions)
    return cos.to(device="cuda"), sin.to(device="cuda")


def stream_case(tokens: int) -> tuple[Tensor, Tensor, HyperMix, Mixer, Entrance]:
    streams = torch.randn(tokens, _S, _D, device="cuda").bfloat16()
    output = torch.randn(tokens, _D, device="cuda").bfloat16()
    both = torch.rand(2, tokens, _S, device="cuda")
    mix = HyperMix(both[0], both[1], torch.rand(tokens, _S, _S, device="cuda") / 2)
    fn = Weight(torch.randn(24, _S * _D, device="cuda") / (_S * _D) ** 0.5)
    scale, base = torch.rand(3, device="cuda"), torch.randn(24, device="cuda")
    values = torch.randn(256, _D, device="cuda").to(torch.float8_e4m3fn)
    scales = torch.full((8, _D // 32), 127, dtype=torch.uint8, device="cuda")
    linear = native_weight(Weight(values, scales.view(torch.float8_e8m0fnu)))
    entrance = Entrance(torch.randn(_D, device="cuda").bfloat16(), 1e-6, linear)
    return streams, output, mix, Mixer(fn, scale, base, iterations=20, eps=1e-6), entrance


def gate_case(tokens: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    weights = torch.randn(2, _S, _D, device="cuda").bfloat16()
    streams = torch.randn(tokens, _S, _D, device="cuda").bfloat16()
    key_value = torch.randn(tokens, (_S + 1) * _D, device="cuda").bfloat16()
    return streams, key_value, weights[0], weights[1]


def engram_table(num_rows: int) -> tuple[Tensor, Tensor]:
    table = torch.randn(num_rows, 256, device="cuda").to(torch.float8_e4m3fn)
    exponents = torch.randint(118, 130, (num_rows, 8), dtype=torch.uint8, device="cuda")
    return table, exponents.view(torch.float8_e8m0fnu)


def hash_case(tokens: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Three orders of n-grams with eight heads each, over tables of about 16 million rows each."""
    lookback = torch.randint(0, 99_092, (tokens, 4), device="cuda")
    multipliers = 2 * torch.randint(1, 1 << 40, (4,), device="cuda") + 1
    sizes = 16_000_000 + torch.randint(0, 1000, (3, 8), device="cuda")
    return lookback, multipliers, sizes, sizes.flatten().cumsum(0).view_as(sizes) - sizes


def pool_case(requests: int, each: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """``each`` consecutive tokens per request, the first of which pairs with one in its ring."""
    tokens = torch.arange(requests * each, device="cuda")
    slots, offsets = tokens // each, tokens % each
    starts = torch.randint(1, 1 << 17, (requests,), device="cuda")
    key_gate = torch.randn(len(tokens), 2, 512, device="cuda")
    ring = torch.randn(requests, 8, 2, 512, device="cuda")
    return key_gate, ring, slots, starts[slots] + offsets, offsets, tokens


def projection(tokens: int, q_width: int = 1280) -> KernelCase:
    """The output of attention's joint projection: latent queries are normalized and quantized,
    window rows stored in the cache."""
    width, both = 512, uneven_rows(tokens, q_width + 512)
    norms = [torch.randn(size, device="cuda").bfloat16() for size in (q_width, width)]
    cache = torch.empty(2 * tokens, 528, dtype=torch.uint8, device="cuda")
    rows = torch.randperm(2 * tokens, device="cuda")[:tokens]
    split = partial(
        split_projection, both, random_rope(tokens), cache, rows, q_norm=norms[0],
        kv_norm=norms[1], eps=1e-6, linear=native_weight(random_weight("fp8", 256, q_width)),
    )  # fmt: skip
    return _case("halves of q_a and kv", tokens, split, 5 * q_width + 2 * width + 528 + 512)


def pooling(requests: int, each: int) -> KernelCase:
    name = f"pooling of keys, {requests} x {each}"
    num_bytes = (requests * each + requests) * 2 * 512 * 4 + requests * each * 512 * 2
    return KernelCase(name, partial(pool_tokens, *pool_case(requests, each)), 0, num_bytes)


def cases() -> Iterator[KernelCase]:
    tokens = 1536
    for width in (_D, 1280):
        x, weight = uneven_rows(tokens, width), torch.randn(width, device="cuda").bfloat16()
        yield _case(f"norm, {width}", tokens, partial(rms_norm, x, weight, 1e-6), width * 4)
    rope, q = random_rope(tokens), uneven_rows(tokens, 64, 512)
    yield _case("rope of q, 64 x 512", tokens, partial(apply_rope, q, *rope), 64 * 2048)
    kv, kv_weight = uneven_rows(tokens, 512), torch.randn(512, device="cuda").bfloat16()
    cache = torch.empty(65536, 528, dtype=torch.uint8, device="cuda")
    slots = torch.randperm(65536, device="cuda")[:tokens]
    store = partial(store_latents, kv, rope, "window", cache, slots, weight=kv_weight, eps=1e-6)
    yield _case("window rows into the cache", tokens, store, 1024 + 528 + 512)
    yield from (projection(tokens) for tokens in (16, 1536, 16_384))
    for count in (16, tokens):
        advance = partial(advance_streams, *stream_case(count))
        # To be read and written: streams and output; streams, input and its FP8 form.
        yield _case("streams to the next input", count, advance, (2 * (2 * _S + 2) + 1) * _D)
    yield from (pooling(*sizes) for sizes in ((256, 6), (1, 4096)))
    yield _case("engram hash", tokens, partial(engram_hash, *hash_case(tokens)), 8 * (4 + 24))
    table, scales = engram_table(4 << 20)
    picks = torch.randint(0, 4 << 20, (tokens, 24), device="cuda")
    lookup = partial(engram_lookup, table, scales, picks)
    yield _case("engram rows", tokens, lookup, 24 * (264 + 512))
    gate = partial(engram_gate, *gate_case(tokens))
    yield _case("engram gate", tokens, gate, 2 * (3 * _S + 1) * _D)


def _case(name: str, tokens: int, call: Callable[[], object], bytes_per_token: int) -> KernelCase:
    return KernelCase(f"{name}, {tokens} rows", call, 0, tokens * bytes_per_token)
