"""Converts settings of the command line to arguments of ``OfflineEngine``."""

from __future__ import annotations

from typing import Any

from .settings import Settings


def engine_arguments(settings: Settings) -> dict[str, Any]:
    """Keyword arguments of ``OfflineEngine``; ``settings.model`` is its first, positional one."""
    return dict(
        tensor_parallel_size=settings.tensor_parallel_size,
        pipeline_parallel_size=settings.pipeline_parallel_size,
        expert_parallel_size=settings.expert_parallel_size,
        prefill_ranks=settings.prefill_ranks,
        decode_ranks=settings.decode_ranks,
        num_redundant_experts=settings.num_redundant_experts,
        expert_rebalance_interval=settings.expert_rebalance_interval,
        exact_exchange=settings.exact_exchange,
        cluster=settings.cluster,
        num_replicas=settings.num_replicas,
        **drafting(settings.speculative),
        profile_path=settings.speculation_profile,
        rejection_sampling=settings.rejection_sampling,
        seed=settings.seed,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len,
        cache_memory_gib=settings.cache_memory_gib,
        gpu_memory=settings.gpu_memory,
        num_blocks=settings.num_blocks,
        block_size=settings.block_size,
        enable_prefix_caching=settings.enable_prefix_caching,
        batch_invariant=settings.batch_invariant,
        exact=settings.exact,
        expert_weights=settings.expert_weights,
        output_projection=settings.output_projection,
        num_threads=settings.num_threads,
        kernels=settings.kernels,
        device=settings.device,
    )


def drafting(speculative: str) -> dict[str, Any]:
    """Arguments of ``OfflineEngine`` for ``auto``, ``3`` or ``auto:3``."""
    if speculative == "auto":
        return {}
    most = speculative.removeprefix("auto:")
    return {"num_speculative_tokens": int(most), "schedule_drafts": most != speculative}
