"""The limits of a deployment on a named device: a table that needs no such device."""

from __future__ import annotations

from deepinfer.engine.cache.kv_cache import block_bytes, slot_bytes
from deepinfer.engine.limits.roofline import Limit, decode_limit, prefill_limit
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.tensors import expected_tensors, is_engram_table

from .plan import BenchPlan
from .results import LimitRow

_BLOCK = 64


def limit_rows(plan: BenchPlan, model: ModelConfig) -> list[LimitRow]:
    """One row for each measurement of the plan.  Raises: ConfigError."""
    plan.check_model(model)
    rows = []
    if "decode" in plan.phases:
        rows += [decode_row(plan, model, size) for size in plan.requests]
    if "prefill" in plan.phases:
        rows += [prefill_row(plan, model, size) for size in plan.tokens]
    return rows


def decode_row(plan: BenchPlan, model: ModelConfig, num_requests: int) -> LimitRow:
    limit = decode_limit(
        model,
        plan.profile(),
        num_requests=num_requests,
        context=plan.context,
        expert_parallel_size=plan.decode_ranks,
        num_verified_drafts=plan.num_drafts,
        acceptance=plan.acceptance,
        link=plan.exchange(),
    )
    weights = rank_weight_bytes(model, plan.decode_ranks)
    caches = num_requests * request_bytes(model, plan.context)
    return _row("decode", plan, num_requests, plan.context, plan.decode_ranks, limit,
                weights, caches)  # fmt: skip


def prefill_row(plan: BenchPlan, model: ModelConfig, num_tokens: int) -> LimitRow:
    """Prompts of the plan's context, the last one shorter, or one prompt if that is longer."""
    prompt_len = min(num_tokens, plan.context)
    limit = prefill_limit(
        model,
        plan.profile(),
        prompt_len=prompt_len,
        num_prompts=max(1, round(num_tokens / prompt_len)),
        expert_parallel_size=plan.prefill_ranks,
        replay_tokens=plan.replay_tokens,
        link=plan.exchange(),
    )
    weights = rank_weight_bytes(model, plan.prefill_ranks)
    caches = -(-num_tokens // prompt_len) * request_bytes(model, prompt_len)
    return _row("prefill", plan, num_tokens, prompt_len, plan.prefill_ranks, limit,
                weights, caches)  # fmt: skip


def rank_weight_bytes(model: ModelConfig, ranks: int) -> float:
    """Bytes of the weights of one rank: all but the experts and Engram rows of the others."""
    shared = spread = 0
    for name, spec in expected_tensors(model).items():
        if ".experts." in name or is_engram_table(name):
            spread += spec.num_bytes
        else:
            shared += spec.num_bytes
    return shared + spread / ranks


def request_bytes(model: ModelConfig, context: int) -> int:
    """Bytes of the caches of one request."""
    return -(-context // _BLOCK) * block_bytes(model, _BLOCK) + slot_bytes(model)


def requests_that_fit(model: ModelConfig, context: int, ranks: int, memory_bytes: float) -> int:
    """How many requests of ``context`` tokens a rank holds beside its weights; 0 if none."""
    room = memory_bytes - rank_weight_bytes(model, ranks)
    return max(0, int(room // request_bytes(model, context)))


def _row(
    phase: str,
    plan: BenchPlan,
    size: int,
    context: int,
    ranks: int,
    limit: Limit,
    weight_bytes: float,
    cache_bytes: float,
) -> LimitRow:
    return LimitRow(
        phase=phase,
        size=size,
        context=context,
        ranks=ranks,
        num_drafts=plan.num_drafts if phase == "decode" else 0,
        num_tokens=limit.num_tokens,
        local_s=limit.local_s,
        link_s=limit.link_s,
        overlap_s=limit.overlap_s,
        serial_s=limit.serial_s,
        weight_bytes=weight_bytes,
        cache_bytes=cache_bytes,
        fits=weight_bytes + cache_bytes <= plan.profile().memory_bytes,
    )
