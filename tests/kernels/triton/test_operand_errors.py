"""Every launcher names the tensor that it cannot take: wrong dtype, device, size or layout.

Launchers for SM90 are in a process of their own, where they are rehearsed (``hopper_operands.py``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.attention.triton_kernel import sparse_attention_triton
from deepinfer.kernels.compressor.triton_kernel import pool_tokens_triton
from deepinfer.kernels.dspark.triton_kernel import draft_confidence_triton
from deepinfer.kernels.dspark.triton_verify import verify_drafts_triton
from deepinfer.kernels.engram import triton_kernel as engram
from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.gemm import triton_kernel as gemm
from deepinfer.kernels.gemm.activations import quantize_activations
from deepinfer.kernels.gemm.k_order import KOrder
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.hyper_connection import Entrance, HyperMix, Mixer
from deepinfer.kernels.hyper_connection import triton_kernel as hyper
from deepinfer.kernels.indexer.triton_kernel import paged_index_scores_triton
from deepinfer.kernels.indexer.triton_rows import pool_rows_triton
from deepinfer.kernels.indexer.triton_select import candidate_blocks_triton, select_topk_triton
from deepinfer.kernels.moe.triton_kernel import expert_pairs_triton, sum_rows_triton
from deepinfer.kernels.moe.triton_router import route_triton
from deepinfer.kernels.moe.triton_swiglu import swiglu_triton
from deepinfer.kernels.rows import triton_kernel as rows
from deepinfer.kernels.rows.triton_projection import split_projection_triton
from deepinfer.kernels.sampling.triton_bitmask import mask_logits_triton
from deepinfer.kernels.sampling.triton_kernel import exponential_noise_triton, sample_triton
from deepinfer.kernels.sampling.triton_penalties import penalize_logits_triton
from deepinfer.kernels.testing import assert_bitwise_equal

BF16, F32, I64, I32, U8 = torch.bfloat16, torch.float32, torch.int64, torch.int32, torch.uint8


@dataclass(frozen=True)
class Entry:
    """A launcher, tensors that it takes, by tensor the dimensions that decide sizes of others, so
    that they may be any, and tensors that may have more dimensions before the others."""

    call: Callable[..., Any]
    tensors: dict[str, Tensor]
    free: dict[str, tuple[int, ...]] = field(default_factory=dict)
    leads: tuple[str, ...] = ()


def _new(dtype: torch.dtype, *shape: int) -> Tensor:
    if dtype in (BF16, F32):
        return torch.rand(shape).to(dtype)
    return torch.zeros(shape, dtype=dtype)


def _weight(n: int, k: int, *members: int) -> dict[str, Tensor]:
    return {
        "values": torch.zeros(*members, n, k, dtype=torch.float8_e4m3fn),
        "scales": torch.full((*members, n // 32, k // 32), 127, dtype=U8).view(
            torch.float8_e8m0fnu
        ),
    }


def _fp4_scales(n: int, k: int) -> Tensor:
    return torch.full((n, k // 32), 127, dtype=U8).view(torch.float8_e8m0fnu)


def _indexer() -> Iterator[tuple[str, Entry]]:
    scored = {
        "query_rows": _new(U8, 3, 4, 17), "head_weights": _new(BF16, 3, 4),
        "pool": _new(U8, 5, 8, 17), "block_table": _new(I64, 2, 4),
        "request_rows": _new(I64, 3), "num_visible": _new(I64, 3),
    }  # fmt: skip
    free = {"pool": (0, 1), "block_table": (0,), "query_rows": (0,)}
    yield (
        "index scores",
        Entry(lambda **t: paged_index_scores_triton(**t, num_entries=30), scored, free),
    )
    seen = {"scores": _new(F32, 3, 40), "num_visible": _new(I64, 3)}
    free = {"scores": (1,)}
    yield "top-k", Entry(lambda **t: select_topk_triton(**t, k=4), seen, free)
    yield (
        "blocks",
        Entry(lambda **t: candidate_blocks_triton(**t, block_size=8, num_blocks=2), seen, free),
    )
    picked = {
        "picks": _new(I64, 3, 4), "request_rows": _new(I64, 3), "block_table": _new(I64, 2, 4),
        "blocks": _new(I64, 3, 5),
    }  # fmt: skip
    free = {"picks": (0, 1), "block_table": (0, 1), "blocks": (1,)}
    yield "pool rows", Entry(lambda **t: pool_rows_triton(**t, per_block=8), picked, free)


def _layers() -> Iterator[tuple[str, Entry]]:
    listed = {
        "q": _new(BF16, 2, 4, 64), "window_rows": _new(U8, 9, 66), "window_index": _new(I64, 2, 5),
        "main_rows": _new(U8, 9, 36), "main_index": _new(I64, 2, 6), "sink": _new(F32, 4),
        "cos": _new(F32, 2, 16), "sin": _new(F32, 2, 16), "lse": _new(F32, 2, 4),
    }  # fmt: skip
    free = {"window_rows": (0,), "window_index": (1,), "main_rows": (0,), "main_index": (1,)}
    yield (
        "attention",
        Entry(
            lambda cos, sin, **t: sparse_attention_triton(**t, scale=1.0, rope=(cos, sin)),
            listed,
            free,
        ),
    )
    yield (
        "linear",
        Entry(
            lambda x, values: gemm.linear_triton(x, Weight(values)),
            {"x": _new(BF16, 3, 64), "values": _new(BF16, 32, 64)},
            {"x": (0,), "values": (0,)},
        ),
    )
    yield (
        "groups",
        Entry(
            lambda x, values: gemm.grouped_linear_triton(x, Weight(values)),
            {"x": _new(BF16, 3, 2, 64), "values": _new(BF16, 2, 32, 64)},
            {"x": (0,), "values": (1,)},
        ),
    )
    yield (
        "FP8 linear",
        Entry(
            lambda x, values, scales: gemm.quantized_linear_triton(x, Weight(values, scales)),
            {"x": _new(BF16, 3, 64)} | _weight(32, 64),
            {"x": (0,), "values": (0,)},
        ),
    )
    yield (
        "fp32 linear",
        Entry(
            lambda x, values: gemm.fp32_linear_triton(x, Weight(values)),
            {"x": _new(BF16, 3, 64), "values": _new(F32, 32, 64)},
            {"x": (0,), "values": (0,)},
        ),
    )
    yield (
        "fp32 linear in parts",
        Entry(
            lambda x, values: gemm.fp32_linear_parts_triton(x, Weight(values), 2),
            {"x": _new(BF16, 3, 64), "values": _new(F32, 32, 64)},
            {"x": (0,), "values": (0,)},
        ),
    )
    yield (
        "swiglu",
        Entry(
            lambda **t: swiglu_triton(**t, limit=10.0),
            {"gate_up": _new(BF16, 3, 64), "weights": _new(F32, 3)},
            {"gate_up": (1,)},
        ),
    )
    yield (
        "router",
        Entry(
            lambda x, values, bias: route_triton(
                x, Weight(values), bias, num_experts_per_tok=2, normalize=True, scaling_factor=1.0
            ),
            {"x": _new(BF16, 3, 64), "values": _new(F32, 8, 64), "bias": _new(F32, 8)},
            {"x": (0,)},
        ),
    )
    yield (
        "experts",
        Entry(
            lambda x, ids, weights, values, scales, values_2, scales_2: expert_pairs_triton(
                x, ids, weights, Weight(values, scales), Weight(values_2, scales_2), 10.0
            ),
            {"x": _new(BF16, 3, 64), "ids": _new(I64, 3, 2), "weights": _new(F32, 3, 2)}
            | _weight(64, 64, 2)
            | {f"{name}_2": t for name, t in _weight(64, 32, 2).items()},
            {"ids": (1,), "values_2": (1,)},
        ),
    )


def _rows_of_caches() -> Iterator[tuple[str, Entry]]:
    x, rope = _new(BF16, 3, 64), {"cos": _new(F32, 3, 16), "sin": _new(F32, 3, 16)}
    yield "norm", Entry(
        lambda **t: rows.rms_norm_triton(**t, eps=1e-6), {"x": x, "weight": _new(F32, 64)},
        {"x": (0,)}, ("x",),
    )  # fmt: skip
    yield "rope", Entry(
        lambda x, cos, sin: rows.apply_rope_triton(x, cos, sin), {"x": _new(BF16, 3, 2, 64)} | rope,
        {"x": (1,)}, ("x",),
    )  # fmt: skip
    yield (
        "packed latents",
        Entry(
            lambda x, cos, sin, weight: rows.pack_latents_triton(
                x, (cos, sin), "main", weight=weight, eps=1e-6
            ),
            {"x": x, "weight": _new(F32, 64)} | rope,
            leads=("x",),
        ),
    )
    yield (
        "stored latents",
        Entry(
            lambda x, cos, sin, cache, target, weight: rows.store_latents_triton(
                x, (cos, sin), "window", cache, target, weight=weight, eps=1e-6
            ),
            {"x": x, "cache": _new(U8, 9, 66), "target": _new(I64, 3), "weight": _new(F32, 64)}
            | rope,
            {"cache": (0,)},
        ),
    )
    yield "projection", Entry(
        lambda both, cos, sin, cache, target, q_norm, kv_norm: split_projection_triton(
            both, (cos, sin), cache, target, q_norm=q_norm, kv_norm=kv_norm, eps=1e-6,
            linear=Weight(**_weight(32, 32)),
        ),
        {
            "both": _new(BF16, 3, 96), "cache": _new(U8, 9, 66), "target": _new(I64, 3),
            "q_norm": _new(BF16, 32), "kv_norm": _new(BF16, 64),
        }
        | rope,
        {"cache": (0,)},
    )  # fmt: skip


def _streams() -> Iterator[tuple[str, Entry]]:
    streams, pre = {"streams": _new(BF16, 3, 4, 64)}, {"pre": _new(F32, 3, 4)}
    mix = {"output": _new(BF16, 3, 64), "post": _new(F32, 3, 4), "comb": _new(F32, 3, 4, 4)}
    mixer = {
        "fn": _new(F32, 24, 256), "scale": _new(F32, 3), "base": _new(F32, 24),
        "norm": _new(BF16, 64),
    }  # fmt: skip

    def entrance(fn: Tensor, scale: Tensor, base: Tensor, norm: Tensor) -> tuple[Mixer, Entrance]:
        mixer = Mixer(Weight(fn), scale, base, iterations=2, eps=1e-6)
        return mixer, Entrance(norm, 1e-6, Weight(**_weight(32, 64)))

    yield (
        "collapsed streams",
        Entry(hyper.collapse_streams_triton, streams | pre, {"streams": (2,)}),
    )
    yield (
        "expanded streams",
        Entry(
            lambda streams, output, post, comb: hyper.expand_streams_triton(
                streams, output, HyperMix(post, post, comb)
            ),
            streams | mix,
        ),
    )
    yield (
        "first streams",
        Entry(
            lambda streams, pre, **t: hyper.enter_streams_triton(streams, pre, *entrance(**t)),
            streams | pre | mixer,
        ),
    )
    yield (
        "next streams",
        Entry(
            lambda streams, output, post, comb, pre, **t: hyper.advance_streams_triton(
                streams, output, HyperMix(pre, post, comb), *entrance(**t)
            ),
            streams | mix | pre | mixer,
        ),
    )


def _tokens() -> Iterator[tuple[str, Entry]]:
    floats = {name: torch.ones(2) for name in ("temperature", "top_p", "min_p")}
    drawn = {"top_k": _new(I64, 2), "seeds": _new(I64, 2), "positions": _new(I64, 2)}
    yield (
        "sample",
        Entry(sample_triton, {"logits": _new(F32, 2, 40)} | floats | drawn, {"logits": (1,)}),
    )
    del drawn["top_k"]
    yield "noise", Entry(lambda **t: exponential_noise_triton(**t, vocab_size=9), drawn)
    masked = {"logits": _new(F32, 2, 40), "masks": _new(I32, 1, 2), "rows": _new(I64, 1)}
    yield "masks", Entry(mask_logits_triton, masked, {"logits": (0, 1)})
    penalised = {
        "logits": _new(F32, 2, 40), "rows": _new(I64, 1), "slots": _new(I64, 1),
        "drafts": _new(I64, 3, 1), "marks": _new(I32, 2, 40), "penalties": _new(F32, 2, 3),
    }  # fmt: skip
    yield (
        "penalties",
        Entry(penalize_logits_triton, penalised, {"logits": (0, 1), "drafts": (0,), "marks": (0,)}),
    )
    pooled = {"key_gate": _new(F32, 3, 2, 64), "ring": _new(F32, 2, 4, 2, 64)} | {
        name: _new(I64, 3) for name in ("slots", "positions", "offsets", "places")
    }
    yield "pooled tokens", Entry(pool_tokens_triton, pooled, {"ring": (0, 1)})
    hashed = {
        "lookback": _new(I64, 3, 4), "multipliers": _new(I64, 4), "primes": 1 + _new(I64, 3, 3),
        "offsets": _new(I64, 3, 3),
    }  # fmt: skip
    yield "engram hash", Entry(engram.engram_hash_triton, hashed, {"lookback": (0,)})
    table = {
        "table": _new(U8, 9, 32).view(torch.float8_e4m3fn),
        "scales": _new(U8, 9, 1).view(torch.float8_e8m0fnu), "rows": _new(I64, 3, 3),
    }  # fmt: skip
    yield "engram rows", Entry(engram.engram_lookup_triton, table, {"rows": (0, 1)})
    gated = {
        "streams": _new(BF16, 3, 4, 64), "key_value": _new(BF16, 3, 320),
        "q_weight": _new(BF16, 4, 64), "k_weight": _new(BF16, 4, 64),
    }  # fmt: skip
    yield "engram gate", Entry(engram.engram_gate_triton, gated)
    drafted = {
        "hidden": _new(BF16, 2, 3, 64), "anchors": _new(I64, 2), "drafts": _new(I64, 2, 3),
        "embed": _new(BF16, 9, 16), "proj": _new(BF16, 1, 80),
    }  # fmt: skip
    yield (
        "confidence",
        Entry(
            lambda proj, **t: draft_confidence_triton(**t, proj=Weight(proj)),
            drafted,
            {"embed": (0,)},
        ),
    )
    verified = {
        "target": _new(F32, 5, 40), "draft": _new(F32, 2, 3, 40), "token_ids": _new(I64, 2, 3),
        "first": _new(I64, 2), "lens": _new(I64, 2), "temperature": _new(F32, 2),
        "top_p": _new(F32, 2), "top_k": _new(I64, 2), "min_p": _new(F32, 2),
        "seeds": _new(I64, 2), "positions": _new(I64, 5),
    }  # fmt: skip
    yield "verification", Entry(verify_drafts_triton, verified)
    summed = {"rows": _new(BF16, 6, 64), "row": _new(I32, 6)}
    yield (
        "sums",
        Entry(lambda **t: sum_rows_triton(**t, per_token=2), summed, {"rows": (0, 1), "row": (0,)}),
    )


ENTRIES = dict([*_indexer(), *_layers(), *_rows_of_caches(), *_streams(), *_tokens()])
# What launchers call tensors that are parts of an argument.
NAMES = {
    "values": "weight|gate|gate_up|fn", "scales": "weight|gate_up|scales", "target": "rows",
    "values_2": "down", "scales_2": "down", "norm": "weight", "cos": "rope", "sin": "rope",
    "both": "x", "q_norm": "weight",
}  # fmt: skip


def _other(x: Tensor) -> Tensor:
    return x.to(torch.float64 if x.dtype.itemsize > 1 else torch.int16)


@pytest.mark.parametrize("name", ENTRIES)
def test_what_is_refused_is_named(name: str) -> None:
    """Another dtype; and sizes and devices, where one of two tensors that disagree is named."""
    entry = ENTRIES[name]
    entry.call(**entry.tensors)
    for tensor, x in entry.tensors.items():
        own = rf"\b({tensor}|{NAMES.get(tensor, tensor)})\b"
        with pytest.raises(TensorError, match=own):
            entry.call(**entry.tensors | {tensor: _other(x)})
        with pytest.raises(TensorError, match="expected|divide|need"):
            entry.call(**entry.tensors | {tensor: x.to("meta")})
        for axis in set(range(x.dim())) - set(entry.free.get(tensor, ())):
            shorter = x.narrow(axis, 0, x.shape[axis] - 1).contiguous()
            with pytest.raises(TensorError, match="expected|divide|need"):
                entry.call(**entry.tensors | {tensor: shorter})


@pytest.mark.parametrize("name", ENTRIES)
def test_dimensions_are_counted(name: str) -> None:
    entry = ENTRIES[name]
    for tensor, x in entry.tensors.items():
        with pytest.raises(TensorError):
            entry.call(**entry.tensors | {tensor: x[0].contiguous()})
        if tensor not in entry.leads:
            with pytest.raises(TensorError):
                entry.call(**entry.tensors | {tensor: x[None]})


def test_rotation_is_by_pairs_of_the_row() -> None:
    x = _new(BF16, 3, 64)
    for rotary in (15, 66):
        with pytest.raises(TensorError, match="even number of at most 64"):
            rows.apply_rope_triton(x, _new(F32, 3, rotary), _new(F32, 3, rotary))


def test_compressed_rows_come_with_their_list() -> None:
    tensors = ENTRIES["attention"].tensors
    for missing in ("main_rows", "main_index"):
        with pytest.raises(TensorError, match="both or none"):
            ENTRIES["attention"].call(**tensors | {missing: None})


def test_activations_of_another_weight_are_refused() -> None:
    x = _new(BF16, 3, 64)
    wide, fp4 = Weight(**_weight(32, 256)), Weight(_new(torch.int8, 32, 32), _fp4_scales(32, 64))
    decoded = quantize_activations(x, MatrixPath.DECODED, KOrder.PLAIN)
    gemm.quantized_linear_triton(decoded, fp4)
    for acts, weight in (
        (decoded, wide),
        (quantize_activations(x, MatrixPath.FP8, KOrder.PLAIN), fp4),
    ):
        with pytest.raises(TensorError, match="x: expected activations"):
            gemm.quantized_linear_triton(acts, weight)


@pytest.mark.parametrize("name", ENTRIES)
def test_gaps_between_numbers_are_refused_or_seen(name: str) -> None:
    entry = ENTRIES[name]
    expected = entry.call(**entry.tensors)
    for tensor, x in entry.tensors.items():
        room = torch.zeros(*x.shape, 2, dtype=U8).repeat_interleave(x.dtype.itemsize, -1)
        gaps = room.view(x.dtype)[..., 0]
        gaps.copy_(x)
        try:
            actual = entry.call(**entry.tensors | {tensor: gaps})
        except TensorError as error:
            assert "contiguous" in str(error) or "strides" in str(error)
        else:
            if isinstance(expected, Tensor):
                assert_bitwise_equal(actual, expected, tensor)


def test_launchers_for_hopper_refuse_the_same() -> None:
    """And what was quantised or prepared for another weight."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-P", str(Path(__file__).with_name("hopper_operands.py"))]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["faults"] == []
    assert found["refused"] > 100
