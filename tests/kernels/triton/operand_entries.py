"""Every portable launcher with small tensors that it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from deepinfer.kernels.attention.triton_kernel import sparse_attention_triton
from deepinfer.kernels.compressor.triton_kernel import pool_tokens_triton
from deepinfer.kernels.dspark.triton_kernel import draft_confidence_triton
from deepinfer.kernels.dspark.triton_verify import verify_drafts_triton
from deepinfer.kernels.engram import triton_kernel as engram
from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.gemm import triton_kernel as gemm
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

BF16, F32, I64, I32, U8 = torch.bfloat16, torch.float32, torch.int64, torch.int32, torch.uint8


@dataclass(frozen=True)
class Entry:
    """A launcher, tensors that it takes, by tensor the dimensions that decide sizes of others, so
    that they may be any, and tensors that may have more dimensions before the others."""

    call: Callable[..., Any]
    tensors: dict[str, Tensor]
    free: dict[str, tuple[int, ...]] = field(default_factory=dict)
    leads: tuple[str, ...] = ()


def new(dtype: torch.dtype, *shape: int) -> Tensor:
    if dtype in (BF16, F32):
        return torch.rand(shape).to(dtype)
    return torch.zeros(shape, dtype=dtype)


def weight_of(n: int, k: int, *members: int) -> dict[str, Tensor]:
    return {
        "values": torch.zeros(*members, n, k, dtype=torch.float8_e4m3fn),
        "scales": torch.full((*members, n // 32, k // 32), 127, dtype=U8).view(
            torch.float8_e8m0fnu
        ),
    }


def fp4_scales(n: int, k: int) -> Tensor:
    return torch.full((n, k // 32), 127, dtype=U8).view(torch.float8_e8m0fnu)


def _indexer() -> Iterator[tuple[str, Entry]]:
    scored = {
        "query_rows": new(U8, 3, 4, 17), "head_weights": new(BF16, 3, 4),
        "pool": new(U8, 5, 8, 17), "block_table": new(I64, 2, 4),
        "request_rows": new(I64, 3), "num_visible": new(I64, 3),
    }  # fmt: skip
    free = {"pool": (0, 1), "block_table": (0,), "query_rows": (0,)}
    yield (
        "index scores",
        Entry(lambda **t: paged_index_scores_triton(**t, num_entries=30), scored, free),
    )
    seen = {"scores": new(F32, 3, 40), "num_visible": new(I64, 3)}
    free = {"scores": (1,)}
    yield "top-k", Entry(lambda **t: select_topk_triton(**t, k=4), seen, free)
    yield (
        "blocks",
        Entry(lambda **t: candidate_blocks_triton(**t, block_size=8, num_blocks=2), seen, free),
    )
    picked = {
        "picks": new(I64, 3, 4), "request_rows": new(I64, 3), "block_table": new(I64, 2, 4),
        "blocks": new(I64, 3, 5),
    }  # fmt: skip
    free = {"picks": (0, 1), "block_table": (0, 1), "blocks": (1,)}
    yield "pool rows", Entry(lambda **t: pool_rows_triton(**t, per_block=8), picked, free)


def _layers() -> Iterator[tuple[str, Entry]]:
    listed = {
        "q": new(BF16, 2, 4, 64), "window_rows": new(U8, 9, 66), "window_index": new(I64, 2, 5),
        "main_rows": new(U8, 9, 36), "main_index": new(I64, 2, 6), "sink": new(F32, 4),
        "cos": new(F32, 2, 16), "sin": new(F32, 2, 16), "lse": new(F32, 2, 4),
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
            {"x": new(BF16, 3, 64), "values": new(BF16, 32, 64)},
            {"x": (0,), "values": (0,)},
        ),
    )
    yield (
        "groups",
        Entry(
            lambda x, values: gemm.grouped_linear_triton(x, Weight(values)),
            {"x": new(BF16, 3, 2, 64), "values": new(BF16, 2, 32, 64)},
            {"x": (0,), "values": (1,)},
        ),
    )
    yield (
        "FP8 linear",
        Entry(
            lambda x, values, scales: gemm.quantized_linear_triton(x, Weight(values, scales)),
            {"x": new(BF16, 3, 64)} | weight_of(32, 64),
            {"x": (0,), "values": (0,)},
        ),
    )
    yield (
        "fp32 linear",
        Entry(
            lambda x, values: gemm.fp32_linear_triton(x, Weight(values)),
            {"x": new(BF16, 3, 64), "values": new(F32, 32, 64)},
            {"x": (0,), "values": (0,)},
        ),
    )
    yield (
        "fp32 linear in parts",
        Entry(
            lambda x, values: gemm.fp32_linear_parts_triton(x, Weight(values), 2),
            {"x": new(BF16, 3, 64), "values": new(F32, 32, 64)},
            {"x": (0,), "values": (0,)},
        ),
    )


def _experts() -> Iterator[tuple[str, Entry]]:
    yield (
        "swiglu",
        Entry(
            lambda **t: swiglu_triton(**t, limit=10.0),
            {"gate_up": new(BF16, 3, 64), "weights": new(F32, 3)},
            {"gate_up": (1,)},
        ),
    )
    yield (
        "router",
        Entry(
            lambda x, values, bias: route_triton(
                x, Weight(values), bias, num_experts_per_tok=2, normalize=True, scaling_factor=1.0
            ),
            {"x": new(BF16, 3, 64), "values": new(F32, 8, 64), "bias": new(F32, 8)},
            {"x": (0,)},
        ),
    )
    yield (
        "experts",
        Entry(
            lambda x, ids, weights, values, scales, values_2, scales_2: expert_pairs_triton(
                x, ids, weights, Weight(values, scales), Weight(values_2, scales_2), 10.0
            ),
            {"x": new(BF16, 3, 64), "ids": new(I64, 3, 2), "weights": new(F32, 3, 2)}
            | weight_of(64, 64, 2)
            | {f"{name}_2": t for name, t in weight_of(64, 32, 2).items()},
            {"ids": (1,), "values_2": (1,)},
        ),
    )


def _rows_of_caches() -> Iterator[tuple[str, Entry]]:
    x, rope = new(BF16, 3, 64), {"cos": new(F32, 3, 16), "sin": new(F32, 3, 16)}
    yield "norm", Entry(
        lambda **t: rows.rms_norm_triton(**t, eps=1e-6), {"x": x, "weight": new(F32, 64)},
        {"x": (0,)}, ("x",),
    )  # fmt: skip
    yield "rope", Entry(
        lambda x, cos, sin: rows.apply_rope_triton(x, cos, sin), {"x": new(BF16, 3, 2, 64)} | rope,
        {"x": (1,)}, ("x",),
    )  # fmt: skip
    yield (
        "packed latents",
        Entry(
            lambda x, cos, sin, weight: rows.pack_latents_triton(
                x, (cos, sin), "main", weight=weight, eps=1e-6
            ),
            {"x": x, "weight": new(F32, 64)} | rope,
            leads=("x",),
        ),
    )
    yield (
        "stored latents",
        Entry(
            lambda x, cos, sin, cache, target, weight: rows.store_latents_triton(
                x, (cos, sin), "window", cache, target, weight=weight, eps=1e-6
            ),
            {"x": x, "cache": new(U8, 9, 66), "target": new(I64, 3), "weight": new(F32, 64)} | rope,
            {"cache": (0,)},
        ),
    )
    yield "projection", Entry(
        lambda both, cos, sin, cache, target, q_norm, kv_norm: split_projection_triton(
            both, (cos, sin), cache, target, q_norm=q_norm, kv_norm=kv_norm, eps=1e-6,
            linear=Weight(**weight_of(32, 32)),
        ),
        {
            "both": new(BF16, 3, 96), "cache": new(U8, 9, 66), "target": new(I64, 3),
            "q_norm": new(BF16, 32), "kv_norm": new(BF16, 64),
        }
        | rope,
        {"cache": (0,)},
    )  # fmt: skip


def _streams() -> Iterator[tuple[str, Entry]]:
    streams, pre = {"streams": new(BF16, 3, 4, 64)}, {"pre": new(F32, 3, 4)}
    mix = {"output": new(BF16, 3, 64), "post": new(F32, 3, 4), "comb": new(F32, 3, 4, 4)}
    mixer = {
        "fn": new(F32, 24, 256), "scale": new(F32, 3), "base": new(F32, 24),
        "norm": new(BF16, 64),
    }  # fmt: skip

    def entrance(fn: Tensor, scale: Tensor, base: Tensor, norm: Tensor) -> tuple[Mixer, Entrance]:
        mixer = Mixer(Weight(fn), scale, base, iterations=2, eps=1e-6)
        return mixer, Entrance(norm, 1e-6, Weight(**weight_of(32, 64)))

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
    drawn = {"top_k": new(I64, 2), "seeds": new(I64, 2), "positions": new(I64, 2)}
    yield (
        "sample",
        Entry(sample_triton, {"logits": new(F32, 2, 40)} | floats | drawn, {"logits": (1,)}),
    )
    del drawn["top_k"]
    yield "noise", Entry(lambda **t: exponential_noise_triton(**t, vocab_size=9), drawn)
    masked = {"logits": new(F32, 2, 40), "masks": new(I32, 1, 2), "rows": new(I64, 1)}
    yield "masks", Entry(mask_logits_triton, masked, {"logits": (0, 1)})
    penalised = {
        "logits": new(F32, 2, 40), "rows": new(I64, 1), "slots": new(I64, 1),
        "drafts": new(I64, 3, 1), "marks": new(I32, 2, 40), "penalties": new(F32, 2, 3),
    }  # fmt: skip
    yield (
        "penalties",
        Entry(penalize_logits_triton, penalised, {"logits": (0, 1), "drafts": (0,), "marks": (0,)}),
    )
    pooled = {"key_gate": new(F32, 3, 2, 64), "ring": new(F32, 2, 4, 2, 64)} | {
        name: new(I64, 3) for name in ("slots", "positions", "offsets", "places")
    }
    yield "pooled tokens", Entry(pool_tokens_triton, pooled, {"ring": (0, 1)})
    hashed = {
        "lookback": new(I64, 3, 4), "multipliers": new(I64, 4), "primes": 1 + new(I64, 3, 3),
        "offsets": new(I64, 3, 3),
    }  # fmt: skip
    yield "engram hash", Entry(engram.engram_hash_triton, hashed, {"lookback": (0,)})
    table = {
        "table": new(U8, 9, 32).view(torch.float8_e4m3fn),
        "scales": new(U8, 9, 1).view(torch.float8_e8m0fnu), "rows": new(I64, 3, 3),
    }  # fmt: skip
    yield "engram rows", Entry(engram.engram_lookup_triton, table, {"rows": (0, 1)})
    gated = {
        "streams": new(BF16, 3, 4, 64), "key_value": new(BF16, 3, 320),
        "q_weight": new(BF16, 4, 64), "k_weight": new(BF16, 4, 64),
    }  # fmt: skip
    yield "engram gate", Entry(engram.engram_gate_triton, gated)
    drafted = {
        "hidden": new(BF16, 2, 3, 64), "anchors": new(I64, 2), "drafts": new(I64, 2, 3),
        "embed": new(BF16, 9, 16), "proj": new(BF16, 1, 80),
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
        "target": new(F32, 5, 40), "draft": new(F32, 2, 3, 40), "token_ids": new(I64, 2, 3),
        "first": new(I64, 2), "lens": new(I64, 2), "temperature": new(F32, 2),
        "top_p": new(F32, 2), "top_k": new(I64, 2), "min_p": new(F32, 2),
        "seeds": new(I64, 2), "positions": new(I64, 5),
    }  # fmt: skip
    yield "verification", Entry(verify_drafts_triton, verified)
    summed = {"rows": new(BF16, 6, 64), "row": new(I32, 6)}
    yield (
        "sums",
        Entry(lambda **t: sum_rows_triton(**t, per_token=2), summed, {"rows": (0, 1), "row": (0,)}),
    )


ENTRIES = dict([*_indexer(), *_layers(), *_experts(), *_rows_of_caches(), *_streams(), *_tokens()])
