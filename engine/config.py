"""``EngineConfig``: the sizes and promises of one engine, validated once, never changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from deepinfer.errors import ConfigError

BATCH_INVARIANT_VARIABLE = "DEEPINFER_BATCH_INVARIANT"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Limits and modes of one engine.

    max_num_seqs            requests that hold cache state at once (prefilling or decoding)
    max_num_batched_tokens  tokens of one step
    block_size              tokens per block of the global KV, even
    num_blocks              blocks of the global KV; None takes what ``cache_memory_gib`` holds
    cache_memory_gib        memory for the blocks when ``num_blocks`` is None
    max_model_len           prompt plus answer; None means the model's context, or what fits
    batch_invariant         answers do not depend on batch, order, chunks, preemption, prefix hits
    exact                   run every layer on every prompt token (no bounded replay)
    enable_prefix_caching   share blocks between prompts with equal beginnings
    num_snapshots           saved ring states for exact prefix hits; None means 2 * max_num_seqs
    num_speculative_tokens  drafts verified per step; 0 switches speculation off
    device                  where weights and caches live

    Raises: ConfigError when values are out of range or contradict each other.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    block_size: int = 64
    num_blocks: int | None = None
    cache_memory_gib: float = 1.0
    max_model_len: int | None = None
    batch_invariant: bool = False
    exact: bool = False
    enable_prefix_caching: bool = True
    num_snapshots: int | None = None
    num_speculative_tokens: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        def check(ok: bool, name: str, expected: str) -> None:
            if not ok:
                raise ConfigError(f"{name}={getattr(self, name)!r}: expected {expected}")

        check(self.max_num_seqs >= 1, "max_num_seqs", "at least 1")
        check(self.block_size >= 2 and self.block_size % 2 == 0, "block_size", "an even number")
        check(self.num_blocks is None or self.num_blocks >= 1, "num_blocks", "at least 1")
        check(self.cache_memory_gib > 0, "cache_memory_gib", "more than 0")
        check(self.max_model_len is None or self.max_model_len >= 2, "max_model_len", "at least 2")
        check(self.num_speculative_tokens >= 0, "num_speculative_tokens", "0 (off) or more")
        check(self.num_snapshots is None or self.num_snapshots >= 0, "num_snapshots", "0 or more")
        needed = self.max_num_seqs * (1 + self.num_speculative_tokens)
        check(
            self.max_num_batched_tokens >= needed,
            "max_num_batched_tokens",
            f"at least {needed} = max_num_seqs * (1 + num_speculative_tokens)",
        )

    @property
    def restores_snapshots(self) -> bool:
        """Whether a prefix hit restores saved rings (exact) instead of re-running a window."""
        return self.batch_invariant or self.exact

    def with_environment(self, environment: Mapping[str, str] | None = None) -> EngineConfig:
        """This configuration, batch-invariant if ``DEEPINFER_BATCH_INVARIANT`` says so.

        The variable can only switch the mode on (1, true, yes, on); 0 and the empty string leave
        the field as it is.  Raises: ConfigError on any other value.
        """
        variables = os.environ if environment is None else environment
        value = variables.get(BATCH_INVARIANT_VARIABLE, "").strip().lower()
        if value in ("", "0", "false", "no", "off"):
            return self
        if value not in ("1", "true", "yes", "on"):
            raise ConfigError(f"{BATCH_INVARIANT_VARIABLE}={value!r}: expected 1 or 0")
        return replace(self, batch_invariant=True)
