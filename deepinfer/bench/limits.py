"""The table of limits of a deployment on a named device, which need not be present."""

from __future__ import annotations

from statistics import mean

from deepinfer.engine.cache.kv_cache import block_bytes, slot_bytes
from deepinfer.engine.limits.roofline import decode_limit, prefill_limit
from deepinfer.engine.memory.expert_form import more_bytes_as_fp8
from deepinfer.engine.memory.weight_bytes import weight_bytes
from deepinfer.engine.model.config import ModelConfig

from .plan import BenchPlan
from .results import LimitRow

_BLOCK = 64


def limit_rows(plan: BenchPlan, model: ModelConfig) -> list[LimitRow]:
    """One row per size and number of drafts of the plan, with experts as stored unless the plan
    asks for FP8.  Raises: ConfigError."""
    plan.check_model(model)
    as_fp8 = plan.expert_weights == "fp8"
    rows = []
    if "decode" in plan.phases:
        # As many as pay off: at most all.
        most = model.dspark_block_size
        drafts = sorted({most if number is None else number for number in plan.drafts})
        rows += [
            decode_row(plan, model, ranks, size, number, experts_as_fp8=as_fp8)
            for ranks in plan.decode_ranks
            for number in drafts
            for size in plan.requests
        ]
    if "prefill" in plan.phases:
        rows += [
            prefill_row(plan, model, ranks, size, plan.replay_tokens, experts_as_fp8=as_fp8)
            for ranks in plan.prefill_ranks
            for size in plan.tokens
        ]
    return rows


def decode_row(
    plan: BenchPlan,
    model: ModelConfig,
    ranks: int,
    num_requests: int,
    num_drafts: int,
    *,
    experts_as_fp8: bool = False,
) -> LimitRow:
    """Requests of different lengths are replaced by as many of their mean length."""
    context = round(mean(plan.contexts(num_requests)))
    limit = decode_limit(
        model,
        plan.profile(),
        num_requests=num_requests,
        context=context,
        expert_parallel_size=ranks,
        num_verified_drafts=num_drafts,
        acceptance=plan.acceptance,
        link=plan.exchange(ranks),
        experts_as_fp8=experts_as_fp8,
    )
    weights = rank_weight_bytes(model, ranks, experts_as_fp8=experts_as_fp8)
    caches = sum(request_bytes(model, length) for length in plan.contexts(num_requests))
    return LimitRow(
        phase="decode",
        size=num_requests,
        context=context,
        ranks=ranks,
        num_drafts=num_drafts,
        limit=limit,
        weight_bytes=weights,
        cache_bytes=caches,
        fits=weights + caches <= plan.profile().memory_bytes,
        experts_as_fp8=experts_as_fp8,
    )


def prefill_row(
    plan: BenchPlan,
    model: ModelConfig,
    ranks: int,
    num_tokens: int,
    replay_tokens: int | None,
    *,
    experts_as_fp8: bool = False,
) -> LimitRow:
    """Prompts of different lengths are replaced by as many of their mean length."""
    prompts = plan.prompts(num_tokens)
    prompt_len = round(mean(prompts))
    limit = prefill_limit(
        model,
        plan.profile(),
        prompt_len=prompt_len,
        num_prompts=len(prompts),
        expert_parallel_size=ranks,
        replay_tokens=replay_tokens,
        link=plan.exchange(ranks),
        experts_as_fp8=experts_as_fp8,
    )
    weights = rank_weight_bytes(model, ranks, experts_as_fp8=experts_as_fp8)
    caches = sum(request_bytes(model, length) for length in prompts)
    return LimitRow(
        phase="prefill",
        size=num_tokens,
        context=prompt_len,
        ranks=ranks,
        num_drafts=0,
        limit=limit,
        weight_bytes=weights,
        cache_bytes=caches,
        fits=weights + caches <= plan.profile().memory_bytes,
        experts_as_fp8=experts_as_fp8,
    )


def rank_weight_bytes(model: ModelConfig, ranks: int, *, experts_as_fp8: bool = False) -> float:
    """Weight bytes of one rank: everything except the other ranks' experts and Engram rows."""
    weights = weight_bytes(model)
    more = more_bytes_as_fp8(model) if experts_as_fp8 else 0
    return weights.shared + (weights.experts + weights.tables + more) / ranks


def request_bytes(model: ModelConfig, context: int) -> int:
    """Bytes of the caches of one request."""
    return -(-context // _BLOCK) * block_bytes(model, _BLOCK) + slot_bytes(model)


def requests_that_fit(
    model: ModelConfig,
    context: int,
    ranks: int,
    memory_bytes: float,
    *,
    experts_as_fp8: bool = False,
) -> int:
    """Number of requests of ``context`` tokens that fit on a rank besides its weights."""
    room = memory_bytes - rank_weight_bytes(model, ranks, experts_as_fp8=experts_as_fp8)
    return max(0, int(room // request_bytes(model, context)))
