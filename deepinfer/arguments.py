"""``EngineArguments``: the arguments of ``OfflineEngine``, checked before any file is opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepinfer.engine.checks import is_whole
from deepinfer.engine.config import check_fields
from deepinfer.engine.parallel.sizes import ParallelSizes

from .errors import ConfigError
from .machine import (
    check_flash_mla,
    check_kernels,
    check_num_ranks,
    check_num_threads,
    resolve_device,
)

_OF_ENGINE_CONFIG = (
    "schedule_drafts",
    "rejection_sampling",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "block_size",
    "num_blocks",
    "cache_memory_gib",
    "gpu_memory",
    "enable_prefix_caching",
    "batch_invariant",
    "exact",
    "expert_weights",
    "output_projection",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArguments:
    """The arguments of ``OfflineEngine``, where they are documented.

    Raises: ConfigError for a value that is out of range or not possible on this machine.
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    expert_parallel_size: int = 1
    prefill_ranks: int = 0
    decode_ranks: int = 0
    num_redundant_experts: int | None = None
    expert_rebalance_interval: int = 0
    exact_exchange: bool = True
    cluster: str | None = None
    num_replicas: int | None = None
    enable_flash_mla: bool = True
    enable_speculative_dspark: bool = True
    num_speculative_tokens: int | None = None
    schedule_drafts: bool | None = None
    profile_path: str | Path | None = None
    rejection_sampling: bool = False
    seed: int = 0
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    cache_memory_gib: float | None = None
    gpu_memory: float | None = None
    enable_prefix_caching: bool | None = None
    batch_invariant: bool | None = None
    exact: bool | None = None
    expert_weights: str | None = None
    output_projection: str | None = None
    num_threads: int | None = None
    kernels: str | Path | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        device = resolve_device(self.device)
        check_num_ranks(self.parallel_sizes().world_size, device)
        check_flash_mla(self.enable_flash_mla, device)
        check_num_threads(self.num_threads)
        if self.cluster is None:  # a cluster's nodes may have other devices
            check_kernels(self.kernels, device)
        self._check_cluster(device)
        seed = self.seed
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
            raise ConfigError(f"seed={seed!r}: expected a whole number, 0 to 2**64 - 1")
        check_fields(self.engine_settings())

    def engine_settings(self) -> dict[str, Any]:
        """The given fields of ``EngineConfig``."""
        drafts = self.num_speculative_tokens if self.enable_speculative_dspark else 0
        settings = {name: getattr(self, name) for name in _OF_ENGINE_CONFIG}
        settings["num_speculative_tokens"] = drafts
        return {name: value for name, value in settings.items() if value is not None}

    def _check_cluster(self, device: str) -> None:
        if self.cluster is not None and device.startswith("npu"):
            raise ConfigError(
                f"cluster={self.cluster!r}: replicas take GPUs or CPUs, not NPUs; start a run on "
                "each node with --shard i/n instead"
            )
        if self.num_replicas is not None:
            if not is_whole(self.num_replicas, 1, 2**16):
                raise ConfigError(f"num_replicas={self.num_replicas!r}: expected at least 1")
            if self.cluster is None:
                raise ConfigError(f"num_replicas={self.num_replicas}: set cluster, too")
        if self.cluster is not None and self.parallel_sizes().world_size > 1:
            raise ConfigError(
                f"cluster={self.cluster!r} runs whole engines on one GPU each; leave the parallel "
                "sizes at 1, or start ranks of many machines with torchrun or srun"
            )

    def parallel_sizes(self) -> ParallelSizes:
        return ParallelSizes(
            tensor_parallel_size=self.tensor_parallel_size,
            pipeline_parallel_size=self.pipeline_parallel_size,
            expert_parallel_size=self.expert_parallel_size,
            prefill_ranks=self.prefill_ranks,
            decode_ranks=self.decode_ranks,
            num_redundant_experts=self.num_redundant_experts,
            expert_rebalance_interval=self.expert_rebalance_interval,
            exact_exchange=self.exact_exchange,
        )

    def loading(self) -> dict[str, Any]:
        """The arguments of ``load_model`` besides the model and ``engine_settings``."""
        return {
            "device": resolve_device(self.device),
            "num_threads": self.num_threads,
            "profile_path": None if self.profile_path is None else Path(self.profile_path),
            "kernels": None if self.kernels is None else Path(self.kernels),
        }
