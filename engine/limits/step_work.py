"""The work of one rank in a step: FLOP and bytes of each part of the model, from the config alone.

Experts are assumed to be evenly loaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cache
from math import prod

from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.schedule import LayerPlan
from deepinfer.engine.model.tensors import TensorSpec, is_engram_table, layer_tensors

PREFILL_ONLY = (".compressor.", ".indexer.wk.")  # what the split layer computes for every token


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """gemm_flops       GEMMs with weights, at the FP8 rate
    attention_flops  scores and values, bf16
    index_flops      index scores, FP4
    weight_bytes     weights read once per step
    kv_bytes         caches read: index scan, selected entries, windows
    stream_bytes     residual streams through memory (mHC)
    link_bytes       sent to other ranks by the expert exchange, and as much received
    """

    gemm_flops: float = 0.0
    attention_flops: float = 0.0
    index_flops: float = 0.0
    weight_bytes: float = 0.0
    kv_bytes: float = 0.0
    stream_bytes: float = 0.0
    link_bytes: float = 0.0

    @staticmethod
    def total(parts: Iterable[Work]) -> Work:
        parts = list(parts)
        names = [field.name for field in fields(Work)]
        return Work(**{name: sum(getattr(part, name) for part in parts) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Footprint:
    """Matrix parameters and bytes of one layer: routed experts, and everything else."""

    shared_parameters: int
    shared_bytes: int
    expert_parameters: int
    expert_bytes: int


@cache
def _footprint(config: ModelConfig, plan: LayerPlan) -> _Footprint:
    specs = layer_tensors(config, plan, "layer")
    experts = {name: spec for name, spec in specs.items() if ".experts." in name}
    shared = {
        name: spec
        for name, spec in specs.items()
        if name not in experts and not is_engram_table(name)
    }
    return _Footprint(
        shared_parameters=_gemm_parameters(shared),
        shared_bytes=_num_bytes(shared),
        expert_parameters=_gemm_parameters(experts),
        expert_bytes=_num_bytes(experts),
    )


def dense_work(
    config: ModelConfig,
    plan: LayerPlan,
    rows: int,
    ranks: int,
    receivers: int | None = None,
    *,
    experts_as_fp8: bool = False,
) -> Work:
    """Everything in a layer except attention itself, for ``rows`` tokens on each of ``ranks``.

    A token is sent once to each of the ``receivers`` (other ranks, or nodes) that have one of its
    experts.  Routed experts are read as stored, or as one byte per weight."""
    layer = _footprint(config, plan)
    expert_bytes = layer.expert_parameters if experts_as_fp8 else layer.expert_bytes
    chosen = plan.num_experts_per_tok / plan.n_routed_experts
    touched = 1 - (1 - chosen) ** (rows * ranks)
    streams = (2 * config.hc_mult + 2) * config.hidden_size * 2
    sent = config.hidden_size + config.hidden_size // 32 + 2 * config.hidden_size
    return Work(
        gemm_flops=2 * rows * (layer.shared_parameters + layer.expert_parameters * chosen),
        weight_bytes=layer.shared_bytes + expert_bytes / ranks * touched,
        stream_bytes=2 * streams * rows,
        link_bytes=rows * _remote_receivers(plan, receivers or ranks) * sent,
    )


def _gemm_parameters(specs: dict[str, TensorSpec]) -> int:
    """Parameters of GEMMs; the small ones of mHC are counted as memory traffic."""
    return sum(
        spec.num_parameters
        for name, spec in specs.items()
        if len(spec.shape) == 2 and ".hc_" not in name
    )


def _num_bytes(specs: dict[str, TensorSpec]) -> int:
    return sum(spec.num_bytes for spec in specs.values())


def _remote_receivers(plan: LayerPlan, receivers: int) -> float:
    """Expected number of other receivers that have at least one of a token's experts."""
    experts, local = plan.n_routed_experts, plan.n_routed_experts / receivers
    none_there = prod(
        max(0.0, experts - local - i) / (experts - i) for i in range(plan.num_experts_per_tok)
    )
    return (receivers - 1) * (1 - none_there)


def attention_work(
    config: ModelConfig, plan: LayerPlan, num_requests: int, positions: int, context: int
) -> Work:
    """Attention and indexer of the last ``positions`` tokens of each request.

    The positions of a request share its index scan; selected entries are counted per position,
    windows once.
    """
    rows = num_requests * positions
    window = min(context, config.sliding_window)
    entries = context // plan.ratio if plan.ratio else 0
    selected = min(entries, config.index_topk)
    scored = _scored_entries(config, plan, entries)
    scans = positions if plan.uses_candidates else 1
    kv_bytes = (
        scans * scored * config.index_entry_bytes
        + positions * selected * config.main_entry_bytes
        + window * config.window_slot_bytes
    )
    return Work(
        attention_flops=rows * (window + selected) * _flops_per_key(config),
        index_flops=rows * scored * _flops_per_entry(config),
        kv_bytes=num_requests * kv_bytes,
    )


def scan_work(config: ModelConfig, plan: LayerPlan, num_prompts: int, prompt_len: int) -> Work:
    """The same over whole prompts with causal attention.  Keys are read once per tile of queries,
    mostly from the on-chip cache: no memory traffic is counted."""
    window = _mean_visible(prompt_len, 1, config.sliding_window)
    selected = _mean_visible(prompt_len, plan.ratio, config.index_topk) if plan.ratio else 0.0
    pool = _scored_entries(config, plan, prompt_len // plan.ratio) if plan.ratio else 0
    scored = _mean_visible(prompt_len, plan.ratio, pool) if pool else 0.0
    rows = num_prompts * prompt_len
    return Work(
        attention_flops=rows * (window + selected) * _flops_per_key(config),
        index_flops=rows * scored * _flops_per_entry(config),
    )


def _mean_visible(length: int, ratio: int, limit: int) -> float:
    """Mean over positions p < length of min(limit, (p + 1) / ratio)."""
    ramp = min(length, limit * ratio)
    return (ramp * ramp / (2 * ratio) + (length - ramp) * limit) / length


def _scored_entries(config: ModelConfig, plan: LayerPlan, entries: int) -> int:
    if not plan.is_index_source:
        return 0
    pool = config.candidate_topk_blocks * config.candidate_block_size
    return min(entries, pool) if plan.uses_candidates else entries


def _flops_per_key(config: ModelConfig) -> int:
    """Q K and P V for every head."""
    return 4 * config.num_attention_heads * config.head_dim


def _flops_per_entry(config: ModelConfig) -> int:
    return 2 * config.index_n_heads * config.index_head_dim


def global_kv_work(config: ModelConfig, rows: int) -> Work:
    """The split layer's work for every prompt token: producing the decoder's global KV."""
    specs = layer_tensors(config, config.layers[config.split_layer], "layer")
    used = {n: s for n, s in specs.items() if any(part in n for part in PREFILL_ONLY)}
    return Work(gemm_flops=2 * rows * _gemm_parameters(used), weight_bytes=_num_bytes(used))


def head_work(config: ModelConfig, rows: int) -> Work:
    parameters = config.vocab_size * config.hidden_size
    return Work(gemm_flops=2 * rows * parameters, weight_bytes=2 * parameters)


def draft_work(
    config: ModelConfig,
    num_requests: int,
    rows: int,
    ranks: int,
    receivers: int | None = None,
    *,
    experts_as_fp8: bool = False,
) -> Work:
    """One block per request, and feeding all verified ``rows`` to the draft stages."""
    block = config.dspark_block_size
    drafted = num_requests * block
    parts = [
        dense_work(config, stage, drafted, ranks, receivers, experts_as_fp8=experts_as_fp8)
        for stage in config.draft_stages
    ]
    taps = len(config.dspark_target_layer_ids) * config.hidden_size * config.hidden_size
    markov = config.vocab_size * config.dspark_markov_rank
    head = config.vocab_size * config.hidden_size
    keys = config.sliding_window + block
    stages = len(config.draft_stages)
    parts.append(
        Work(
            gemm_flops=2 * (rows * taps + drafted * (markov + head)),
            attention_flops=stages * drafted * keys * _flops_per_key(config),
            # The step counts the head's weights already; a pipelined step could read them once.
            weight_bytes=taps + 2 * markov,
            kv_bytes=stages * num_requests * config.sliding_window * config.window_slot_bytes,
        )
    )
    return Work.total(parts)
