"""One rank of a run: its groups, and how it runs its model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from deepinfer.engine.cache.kv_cache import KVCache
from deepinfer.engine.config import EngineConfig
from deepinfer.engine.execution.runner import Cache, Runner
from deepinfer.engine.execution.turns import Turn
from deepinfer.engine.memory.capacity import plan_cache, size_cache
from deepinfer.engine.memory.device_memory import DeviceMemory
from deepinfer.engine.model.model import Model

from .groups import Group
from .lockstep import LockstepModel
from .parcels import Inbox, Outbox
from .peer_memory import PeerMemory
from .pipeline import PipelineCache, PipelineModel, Stages, run_encoder
from .placed_experts import Balance, Nodes, rebalance_layers
from .rank_share import Half, RankShare
from .sizes import ParallelSizes
from .tensor_group import LeadingCache, LeadingModel, follow

if TYPE_CHECKING:
    from collections.abc import Sequence

# Staging buffer from one prefill rank to one decode rank: about 20 prompts of 8,192 tokens.
_LANDING_BYTES = 256 << 20


class Rank:
    """Created by all ranks of the world at once.

    Tensor- or pipeline-parallel ranks are consecutive, and the first of them takes rows.
    ``balances``: the imbalance before and after each rebalancing of experts.
    """

    def __init__(
        self,
        sizes: ParallelSizes,
        engines: Sequence[Sequence[int]] | None = None,
        *,
        capacity: int = 0,
        uses_peer_memory: bool = False,
    ) -> None:
        """``engines``: the ranks of each engine, if they are not those of ``sizes``.

        ``capacity``: passes of at most this many tokens per rank use the exchange without host
        waits, through peer memory if ``uses_peer_memory``.
        """
        self.sizes = sizes
        engines = sizes.engines if engines is None else engines
        heads = sizes.tensor_parallel_size
        parts = [ranks[i : i + heads] for ranks in engines for i in range(0, len(ranks), heads)]
        shares_experts = sizes.expert_parallel_size > 1 or sizes.has_roles
        singles = [[rank] for ranks in engines for rank in ranks]
        experts = Group.split(engines if shares_experts else singles)
        self._stages: Stages | None = None
        half: Half | None = None
        if sizes.pipeline_parallel_size > 1:
            self._stages = Stages(Group.split(engines, backend="gloo"), Group.split(engines))
            half = "encoder" if self._stages.data.rank else "decoder"
        self.share = RankShare(
            experts,
            Group.split(parts),
            num_redundant=sizes.num_redundant_experts or 0,
            is_exact=sizes.exact_exchange,
            capacity=capacity if heads == 1 else 0,
            uses_peer_memory=uses_peer_memory,
            nodes=_nodes(engines, sizes.ranks_per_node) if shares_experts else None,
            half=half,
        )
        self.balances: list[Balance] = []
        self._interval = sizes.expert_rebalance_interval
        self._landing: PeerMemory | None = None
        if uses_peer_memory and sizes.has_roles:
            both_roles = Group.split([range(sizes.world_size)])
            device = torch.device("cuda", torch.cuda.current_device())
            num_bytes = sizes.prefill_ranks * _LANDING_BYTES
            self._landing = PeerMemory(both_roles, num_bytes, device)
        self._followers = Group.split(parts, backend="gloo")
        places = [ranks[i::heads] for ranks in engines for i in range(heads)]
        self._leaders = Group.split(places, backend="gloo")
        everyone = [rank for ranks in engines for rank in ranks]
        self._everyone = Group.split([everyone], backend="gloo")
        self._shares_experts = shares_experts
        self._leading: LeadingModel | None = None
        self._pipeline: PipelineModel | None = None
        self._lockstep: LockstepModel | None = None

    @property
    def only_prefills(self) -> bool:
        return self._everyone.rank in self.sizes.prefill

    @property
    def takes_rows(self) -> bool:
        return self._followers.rank == 0 and self.share.half != "encoder"

    def outboxes(self) -> list[Outbox]:
        """A prefill rank's staging buffers at the decode ranks, in order; none on a CPU."""
        if self._landing is None:
            return []
        start = self._everyone.rank - self.sizes.decode_ranks
        addresses = self._landing.addresses.tolist()[: self.sizes.decode_ranks]
        return [Outbox(a + start * _LANDING_BYTES, _LANDING_BYTES) for a in addresses]

    def inboxes(self) -> list[Inbox]:
        """A decode rank's staging buffers for the prefill ranks, in order; none on a CPU."""
        if self._landing is None:
            return []
        areas = self._landing.own.view(self.sizes.prefill_ranks, _LANDING_BYTES)
        return [Inbox(area) for area in areas.unbind()]

    def can_capture(self, model: Model) -> bool:
        """Whether passes of the ranks' models can be graphs: within a pass the host neither talks
        to other ranks nor looks up rows.  Called by all ranks at once, since they time the same
        steps."""
        if self._followers.size > 1 or self._stages is not None:
            return False
        return bool(self._everyone.all_gather(torch.tensor([int(model.can_capture)])).all())

    def runner(self, model: Model) -> Runner:
        """The model as this rank's engine runs it."""
        if self._stages is not None:
            self._pipeline = PipelineModel(model, self._stages)
            return self._pipeline
        runner: Model | LeadingModel = model
        if self._followers.size > 1:
            runner = self._leading = LeadingModel(model, self._followers)
        if not self._shares_experts:
            return runner
        self._lockstep = LockstepModel(runner, self._leaders, self._before_pass)
        return self._lockstep

    def plan_cache(self, model: Model, config: EngineConfig) -> tuple[EngineConfig, KVCache]:
        """As ``memory.capacity.plan_cache``, with as many blocks as fit on the rank with the least
        memory: tensor-parallel ranks use the same blocks, and all ranks refuse the same rows."""
        config = config.with_environment()
        sized = size_cache(model.config, config, DeviceMemory.of(config.device))
        counts = self._everyone.all_gather(torch.tensor([sized.num_blocks]))
        config, cache = plan_cache(model, replace(config, num_blocks=int(counts.min())), None)
        assert isinstance(cache, KVCache)
        return config, cache

    def cache(self, cache: Cache) -> Cache:
        """The cache that this rank's engine uses."""
        if self._followers.size == 1 and self._stages is None:
            return cache
        assert isinstance(cache, KVCache)
        if self._stages is not None:
            return PipelineCache(cache, self._stages)
        return LeadingCache(cache, self._followers)

    def follow(self, model: Model, cache: KVCache) -> None:
        """Run a rank that takes no rows."""
        if self._stages is not None:
            run_encoder(model, cache, self._stages)
            return
        follow(model, cache, self._followers, self._rebalance)

    def _before_pass(self, number: int, most_tokens: int) -> Turn:
        """Called by all leading ranks together, after the same number of passes."""
        sizes = {layer.expect(most_tokens) for layer in self.share.layers}
        if self._interval and number and number % self._interval == 0 and self.share.layers:
            if self._leading is not None:
                self._leading.rebalance()
            self._rebalance()
        epoch = sum(balance.num_moved for balance in self.balances)
        return Turn(None if None in sizes else tuple(sizes), epoch)

    def _rebalance(self) -> None:
        self.balances.append(rebalance_layers(self.share.layers))

    def release(self) -> None:
        """Release the ranks that follow this one."""
        if self._leading is not None:
            self._leading.end()
        if self._pipeline is not None:
            self._pipeline.end()

    def rest(self) -> bool:
        """Take part in one pass of other ranks; False if there was nothing to do."""
        return self._lockstep is not None and self._lockstep.rest()

    def finish(self) -> None:
        """Take part in other ranks' passes until all have finished."""
        if self._lockstep is not None:
            self._lockstep.finish()


def _nodes(engines: Sequence[Sequence[int]], size: int) -> Nodes | None:
    """The nodes of ``size`` ranks that each engine spans; None if an engine fits on one."""
    if not size or any(len(ranks) <= size for ranks in engines):
        return None
    inside = [ranks[i : i + size] for ranks in engines for i in range(0, len(ranks), size)]
    across = [ranks[i::size] for ranks in engines for i in range(size)]
    return Nodes(Group.split(inside), Group.split(across))
