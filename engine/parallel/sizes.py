"""How many ranks share what.  Honoured, or refused with the reason."""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer.engine.checks import is_whole
from deepinfer.engine.model.config import ModelConfig
from deepinfer.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSizes:
    """Sizes of one engine.

    expert_parallel_size    ranks that share the routed experts
    tensor_parallel_size    ranks that share the heads of attention; consecutive ranks
    pipeline_parallel_size  ranks that share layers: only 1

    The number of ranks is the larger of the first two.  Each ``tensor_parallel_size`` of them
    answer rows of their own; with an ``expert_parallel_size`` of 1 each rank has all experts.
    Raises: ConfigError if the sizes do not fit together.
    """

    expert_parallel_size: int = 1
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if not is_whole(value, 1, 2**16):
                raise ConfigError(f"{name}={value!r}: expected a whole number of at least 1")
        if self.pipeline_parallel_size > 1:
            raise ConfigError(
                f"pipeline_parallel_size={self.pipeline_parallel_size}: layers are not spread over "
                "ranks; the two halves of the model are already used by different phases, so share "
                "experts instead (expert_parallel_size)"
            )
        experts, heads = self.expert_parallel_size, self.tensor_parallel_size
        if experts > 1 and experts % heads:
            raise ConfigError(
                f"expert_parallel_size={experts} is not a multiple of tensor_parallel_size={heads}"
            )

    @property
    def world_size(self) -> int:
        return max(self.expert_parallel_size, self.tensor_parallel_size)

    @property
    def num_row_ranks(self) -> int:
        """Ranks that take rows: the first of each that share heads."""
        return self.world_size // self.tensor_parallel_size

    def check_model(self, config: ModelConfig) -> None:
        """Raises: ConfigError if this model cannot be divided so, with sizes that can."""
        _check_divides("tensor_parallel_size", self.tensor_parallel_size, config.o_groups,
                       "output groups of attention")  # fmt: skip
        experts = min(plan.n_routed_experts for plan in config.layers)
        _check_divides("expert_parallel_size", self.expert_parallel_size, experts, "experts")
        if config.draft_stages:
            experts = min(plan.n_routed_experts for plan in config.draft_stages)
            _check_divides(
                "expert_parallel_size", self.expert_parallel_size, experts, "experts when drafting"
            )


def _check_divides(name: str, size: int, whole: int, of_what: str) -> None:
    if whole % size:
        fitting = [str(n) for n in range(1, whole + 1) if whole % n == 0]
        raise ConfigError(
            f"{name}={size} does not divide the model's {whole} {of_what}; use one of "
            f"{', '.join(fitting)}"
        )
