"""Parallel sizes of an engine; combinations that are not supported are refused with the reason."""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer.engine.checks import is_whole
from deepinfer.engine.model.config import ModelConfig
from deepinfer.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSizes:
    """Sizes of one engine.

    expert_parallel_size    ranks that split the routed experts
    tensor_parallel_size    consecutive ranks that split the attention heads
    pipeline_parallel_size  2: one rank for the encoder layers, one for decoder layers and drafts
    prefill_ranks, decode_ranks  ranks that only prefill, and ranks that only decode; both or
                            neither.  The ranks of each role split the experts among them.
    num_redundant_experts   replicas of busy experts per layer, over all ranks that split them;
                            None: as memory allows if experts are rebalanced, else none
    expert_rebalance_interval  passes between rebalancing of experts; 0 is never
    exact_exchange          the same bits as on one rank; otherwise each rank first adds up its
                            outputs for a token, which sends less and rounds differently
    ranks_per_node          ranks connected without a network, 0 for all; with several nodes, a
                            token is sent once to each node

    Without prefill and decode ranks, the number of ranks is the largest of the first three sizes.
    Each ``tensor_parallel_size`` of them answer rows of their own, and so does a pipeline; with an
    ``expert_parallel_size`` of 1 each rank has all experts.
    Raises: ConfigError if the sizes do not fit together.
    """

    expert_parallel_size: int = 1
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    prefill_ranks: int = 0
    decode_ranks: int = 0
    num_redundant_experts: int | None = None
    expert_rebalance_interval: int = 0
    exact_exchange: bool = True
    ranks_per_node: int = 0

    def __post_init__(self) -> None:
        if type(self.exact_exchange) is not bool:
            raise ConfigError(f"exact_exchange={self.exact_exchange!r}: expected True or False")
        for name in self.__dataclass_fields__:
            if name == "exact_exchange":
                continue
            value, least = getattr(self, name), int(name.endswith("_size"))
            if value is None and name == "num_redundant_experts":
                continue
            if not is_whole(value, least, 2**31 - 1):
                raise ConfigError(f"{name}={value!r}: expected a whole number of at least {least}")
        experts, heads = self.expert_parallel_size, self.tensor_parallel_size
        if self.pipeline_parallel_size > 2:
            raise ConfigError(
                f"pipeline_parallel_size={self.pipeline_parallel_size}: a pipeline has two stages, "
                "encoder and decoder layers; use 2, or expert_parallel_size instead"
            )
        if self.pipeline_parallel_size > 1 and (experts > 1 or heads > 1 or self.has_roles):
            raise ConfigError(
                f"pipeline_parallel_size={self.pipeline_parallel_size} cannot be combined with "
                "other parallelism: leave the other sizes at 1, and omit prefill_ranks and "
                "decode_ranks"
            )
        if self.ranks_per_node and experts > self.ranks_per_node and experts % self.ranks_per_node:
            raise ConfigError(
                f"expert_parallel_size={experts} is not a multiple of the {self.ranks_per_node} "
                "ranks of a node"
            )
        if experts > 1 and experts % heads:
            raise ConfigError(
                f"expert_parallel_size={experts} is not a multiple of tensor_parallel_size={heads}"
            )

        if (self.prefill_ranks > 0) != (self.decode_ranks > 0):
            raise ConfigError(
                f"prefill_ranks={self.prefill_ranks} and decode_ranks={self.decode_ranks}: each "
                "role needs at least one rank, or neither is given"
            )
        if self.has_roles and (experts > 1 or heads > 1):
            raise ConfigError(
                "prefill_ranks and decode_ranks already set how many ranks divide the experts; "
                "leave expert_parallel_size and tensor_parallel_size at 1"
            )

        if not (experts > 1 or self.has_roles):
            for name in ("num_redundant_experts", "expert_rebalance_interval"):
                if getattr(self, name):
                    raise ConfigError(
                        f"{name}={getattr(self, name)} needs expert parallelism; set "
                        "expert_parallel_size, or leave it at 0"
                    )
        for ranks in self.engines:
            if (self.num_redundant_experts or 0) % len(ranks):
                raise ConfigError(
                    f"num_redundant_experts={self.num_redundant_experts} is not a multiple of the "
                    f"{len(ranks)} ranks that divide the experts: each holds equally many"
                )

    @property
    def has_roles(self) -> bool:
        """Whether prefill and decode run on different ranks."""
        return self.prefill_ranks > 0

    @property
    def world_size(self) -> int:
        if self.has_roles:
            return self.prefill_ranks + self.decode_ranks
        return max(
            self.expert_parallel_size, self.tensor_parallel_size, self.pipeline_parallel_size
        )

    @property
    def engines(self) -> list[range]:
        """The ranks of each engine: decode ranks come before prefill ranks."""
        if self.has_roles:
            return [range(self.decode_ranks), range(self.decode_ranks, self.world_size)]
        return [range(self.world_size)]

    @property
    def num_expert_ranks(self) -> int:
        """Ranks of the decoding engine that split the routed experts."""
        return self.decode_ranks if self.has_roles else self.expert_parallel_size

    @property
    def row_ranks(self) -> range:
        """Ranks that take rows: the first of each tensor- or pipeline-parallel group."""
        return self.engines[0][:: max(self.tensor_parallel_size, self.pipeline_parallel_size)]

    @property
    def prefill(self) -> range:
        """Ranks that only prefill."""
        return self.engines[1] if self.has_roles else range(0)

    def check_model(self, config: ModelConfig) -> None:
        """Raises: ConfigError, with possible sizes, if the model cannot be split in this way."""
        _check_divides("tensor_parallel_size", self.tensor_parallel_size, config.o_groups,
                       "output groups of attention")  # fmt: skip
        for name in ("expert_parallel_size", "prefill_ranks", "decode_ranks"):
            size = max(1, getattr(self, name))
            experts = min(plan.n_routed_experts for plan in config.layers)
            _check_divides(name, size, experts, "experts")
            if config.draft_stages:
                experts = min(plan.n_routed_experts for plan in config.draft_stages)
                if size % experts:  # otherwise each rank gets a replica
                    _check_divides(name, size, experts, "experts when drafting")


def _check_divides(name: str, size: int, whole: int, of_what: str) -> None:
    if whole % size:
        fitting = [str(n) for n in range(1, whole + 1) if whole % n == 0]
        raise ConfigError(
            f"{name}={size} does not divide the model's {whole} {of_what}; use one of "
            f"{', '.join(fitting)}"
        )
