"""``EngineConfig``: limits and modes of one engine, validated once, immutable."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from deepinfer.errors import ConfigError

from .checks import is_number, is_whole

BATCH_INVARIANT_VARIABLE = "DEEPINFER_BATCH_INVARIANT"
_MOST_SPARE_SLOTS = 16
EXPERT_WEIGHTS = ("auto", "fp4", "fp8")
OUTPUT_PROJECTION = ("bf16", "fp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Limits and modes of one engine.

    max_num_seqs            requests that hold cache state at once (prefilling or decoding)
    max_num_batched_tokens  tokens per step
    block_size              tokens per block of the global KV, even
    num_blocks              blocks of the global KV; None means what ``cache_memory_gib`` holds
    cache_memory_gib        memory for the blocks if ``num_blocks`` is None; None means what
                            ``gpu_memory`` leaves on a GPU, and 1 on a CPU
    gpu_memory              fraction of a GPU's memory to use
    max_model_len           prompt plus answer; None means the model's context, or what fits
    batch_invariant         answers do not depend on batch, order, chunks, preemption, prefix hits
    exact                   run every layer on every prompt token (no bounded replay)
    enable_prefix_caching   share blocks between prompts with a common prefix
    num_snapshots           saved ring states for exact prefix hits; None means 2 * max_num_seqs
    num_speculative_tokens  maximum drafts verified per request and step; 0 disables speculation
    schedule_drafts         verify as many drafts as pay off, by confidence and measured step times
    rejection_sampling      accept drafts by rejection sampling: more are accepted, but sampled
                            answers are not reproducible
    expert_weights          fp4: routed experts as stored.  fp8: the same numbers in twice the
                            memory, faster with many tokens per expert (NVIDIA SM90 only).
                            auto: fp8 if steps are that large and the caches still fit
    output_projection       inputs of attention's output projection.  bf16: as in the official
                            model.  fp8: quantized like those of all other linear layers, which is
                            faster and sometimes changes answers
    device                  device of weights and caches

    Raises: ConfigError when values are out of range or contradict each other.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    block_size: int = 64
    num_blocks: int | None = None
    cache_memory_gib: float | None = None
    gpu_memory: float = 0.9
    max_model_len: int | None = None
    batch_invariant: bool = False
    exact: bool = False
    enable_prefix_caching: bool = True
    num_snapshots: int | None = None
    num_speculative_tokens: int = 0
    schedule_drafts: bool = False
    rejection_sampling: bool = False
    expert_weights: str = "auto"
    output_projection: str = "bf16"
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_fields({name: getattr(self, name) for name in self.__dataclass_fields__})
        _check(self.block_size % 2 == 0, "block_size", self.block_size, "an even number")
        needed = self.max_num_seqs * (1 + self.num_speculative_tokens)
        if self.max_num_batched_tokens < needed:
            raise ConfigError(
                f"max_num_batched_tokens={self.max_num_batched_tokens}: expected at least "
                f"{needed} = max_num_seqs * (1 + num_speculative_tokens)"
            )
        if self.rejection_sampling and self.batch_invariant:
            raise ConfigError(
                "rejection_sampling=True: answers then depend on where blocks of drafts begin, "
                "which batch_invariant forbids; disable one of the two"
            )
        if self.batch_invariant and self.device.startswith("npu"):
            raise ConfigError(
                f"batch_invariant=True on {self.device}: not supported on Ascend; disable it and "
                f"unset {BATCH_INVARIANT_VARIABLE}, or use device='cpu' or 'cuda'"
            )

    @property
    def restores_snapshots(self) -> bool:
        """Whether a prefix hit restores saved rings (exact) instead of recomputing a window."""
        return self.batch_invariant or self.exact

    @property
    def most_snapshots(self) -> int:
        """Maximum number of saved ring states."""
        return 2 * self.max_num_seqs if self.num_snapshots is None else self.num_snapshots

    @property
    def num_spare_slots(self) -> int:
        """Slots that no request gets: a prefill pass fills them with rings to be saved.  Without
        one, a chunk must end where rings are saved; so in exact mode, where those of the decoder
        layers are saved, too."""
        saves = self.batch_invariant and not self.exact and self.enable_prefix_caching
        return min(_MOST_SPARE_SLOTS, self.most_snapshots) if saves else 0

    def with_environment(self, environment: Mapping[str, str] | None = None) -> EngineConfig:
        """This configuration, batch-invariant if ``DEEPINFER_BATCH_INVARIANT`` says so.

        The variable can only enable the mode (1, true, yes, on); 0 and the empty string leave the
        field as it is.  Raises: ConfigError on any other value.
        """
        variables = os.environ if environment is None else environment
        value = variables.get(BATCH_INVARIANT_VARIABLE, "").strip().lower()
        if value in ("", "0", "false", "no", "off"):
            return self
        if value not in ("1", "true", "yes", "on"):
            raise ConfigError(f"{BATCH_INVARIANT_VARIABLE}={value!r}: expected 1 or 0")
        return replace(self, batch_invariant=True)


def check_fields(fields: Mapping[str, object]) -> None:
    """Check fields of ``EngineConfig`` one by one.  Raises: ConfigError that names the field."""
    for name, value in fields.items():
        if name in _WHOLE_NUMBERS:
            low, high = _WHOLE_NUMBERS[name]
            ok = is_whole(value, low, high) or (value is None and name in _OPTIONAL)
            _check(ok, name, value, f"a whole number, {low:,} to {high:,}")
        elif name in _SWITCHES:
            _check(type(value) is bool, name, value, "True or False")
        elif name in _CHOICES:
            _check(value in _CHOICES[name], name, value, " or ".join(_CHOICES[name]))
    if "cache_memory_gib" in fields:
        memory = fields["cache_memory_gib"]
        ok = memory is None or (is_number(memory, 0, 2.0**30) and memory != 0)
        _check(ok, "cache_memory_gib", memory, "a number above 0 and up to 2**30")
    if "gpu_memory" in fields:
        share = fields["gpu_memory"]
        ok = is_number(share, 0, 1) and share != 0
        _check(ok, "gpu_memory", share, "a fraction above 0 and up to 1")


def _check(ok: bool, name: str, value: object, expected: str) -> None:
    if not ok:
        raise ConfigError(f"{name}={value!r}: expected {expected}")


_WHOLE_NUMBERS = {
    "max_num_seqs": (1, 2**20),
    "max_num_batched_tokens": (1, 2**31 - 1),
    "block_size": (2, 2**20),
    "num_blocks": (1, 2**31 - 1),
    "max_model_len": (2, 2**31 - 1),
    "num_snapshots": (0, 2**20),
    "num_speculative_tokens": (0, 2**10),
}
_CHOICES = {"expert_weights": EXPERT_WEIGHTS, "output_projection": OUTPUT_PROJECTION}
_OPTIONAL = {"num_blocks", "max_model_len", "num_snapshots"}
_SWITCHES = {
    "batch_invariant",
    "exact",
    "enable_prefix_caching",
    "schedule_drafts",
    "rejection_sampling",
}
