"""``RankModel``: the model, caches and requests of one rank's share, on one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from deepinfer.engine.cache.kv_cache import KVCache
from deepinfer.engine.config import EngineConfig
from deepinfer.engine.execution.bound_model import BoundModel
from deepinfer.engine.execution.decode_step import DecodeStep, pieces_for
from deepinfer.engine.execution.runner import Runner
from deepinfer.engine.execution.slot_table import SlotTable
from deepinfer.engine.memory.weight_bytes import weight_bytes
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.model import Model
from deepinfer.engine.model.share import Share
from deepinfer.engine.sampling.sampler import Sampler
from deepinfer.engine.scheduling.intake import detached_state
from deepinfer.engine.scheduling.request_state import RequestState
from deepinfer.engine.speculation.draft_backlog import DraftBacklog
from deepinfer.errors import ConfigError
from deepinfer.kernels.quant import pack_index_rows, pack_main_rows, pack_window_rows

from .limits import requests_that_fit
from .rank_share import SliceShare
from .rank_tensors import HOST_TABLE_BYTES, RandomTensors, rank_config

BLOCK_SIZE = 64
_SPARE_SLOTS = EngineConfig(batch_invariant=True).num_spare_slots
# Number of different cache rows, a prime, so that no two requests have the same ones.
_DIFFERENT_ROWS = 65_521


@dataclass(frozen=True, slots=True, kw_only=True)
class RankModel:
    """The share of one rank, for ``num_slots`` requests of ``context`` tokens.

    ``experts_as_fp8``: the format of the experts' weights, see ``EngineConfig.expert_weights``.
    ``share.routing`` determines what the other ranks send; captured graphs replay the old routing,
    so a change needs a new ``worker``.  ``present``: the number of ranks that really exist;
    ``runner``: the model in lockstep with them, None for one rank."""

    config: ModelConfig
    ranks: int
    share: SliceShare
    model: Model
    cache: KVCache
    context: int
    num_slots: int
    device: torch.device
    experts_as_fp8: bool = False
    present: int = 1
    runner: Runner | None = None

    @classmethod
    def make(
        cls,
        model: ModelConfig,
        *,
        ranks: int,
        context: int,
        num_slots: int,
        seed: int,
        device: torch.device | str,
        num_redundant: int = 0,
        real_share: Share | None = None,
        experts_as_fp8: bool = False,
        output_as_fp8: bool = False,
        tables_on_host: bool = False,
    ) -> RankModel:
        """``num_redundant``: redundant experts on this rank, for balanced routing.
        ``real_share``: the share of a rank that has present peers.  ``tables_on_host``: Engram rows
        are read from pinned host memory, from smaller tables than a rank's."""
        device = torch.device(device)
        config = rank_config(model, ranks, HOST_TABLE_BYTES if tables_on_host else None)
        share = SliceShare(ranks, seed, num_redundant)
        generator = torch.Generator().manual_seed(seed)
        most = max(1, config.engram_compressed_vocab_size)
        built = Model(
            config,
            RandomTensors(config, seed, device, tables_on_host=tables_on_host),
            device=device,
            token_map=torch.randint(0, most, (config.vocab_size,), generator=generator),
            share=real_share or share,
            experts_as_fp8=experts_as_fp8,
            output_as_fp8=output_as_fp8,
        )
        blocks_each = -(-(context + config.dspark_block_size + 1) // BLOCK_SIZE)
        cache = KVCache.allocate(
            config,
            num_blocks=num_slots * blocks_each,
            block_size=BLOCK_SIZE,
            num_slots=num_slots + _SPARE_SLOTS,
            device=device,
        )
        _fill(cache, config, seed)
        return cls(
            config=config,
            ranks=ranks,
            share=share,
            model=built,
            cache=cache,
            context=context,
            num_slots=num_slots,
            device=device,
            experts_as_fp8=experts_as_fp8,
        )

    def decoding(self, contexts: Sequence[int]) -> list[RequestState]:
        """Decoding requests with these context lengths and their own blocks.

        Raises: ConfigError if the caches have no room for them."""
        most, window = self.config.dspark_block_size + 1, self.config.sliding_window
        states = self._states([context + most for context in contexts])
        for state, context in zip(states, contexts, strict=True):
            state.num_computed_tokens = context
            state.decoder_start = max(0, context - window)
        return states

    def prompts(self, lengths: Sequence[int], replay_tokens: int | None) -> list[RequestState]:
        """Prompts of these lengths, not computed yet; decoder layers run on their last
        ``replay_tokens``, one window if None.  Raises: ConfigError as ``decoding``."""
        replay = self.config.sliding_window if replay_tokens is None else replay_tokens
        token_ids = [t % self.config.vocab_size for t in range(max(lengths))]
        states = self._states(lengths)
        for state, length in zip(states, lengths, strict=True):
            state.token_ids, state.num_prompt_tokens = token_ids[:length], length
            state.decoder_start = max(0, length - replay)
        return states

    def worker(
        self,
        num_drafts: int,
        context: int | None = None,
        num_requests: int | None = None,
        *,
        is_batch_invariant: bool = False,
    ) -> DecodeStep:
        """The decode steps that an engine for ``num_requests`` makes, for requests of at most
        ``context`` tokens and ``num_drafts`` drafts."""
        longest = (context or self.context) + self.config.dspark_block_size + 1
        table = SlotTable(self.num_slots, longest, BLOCK_SIZE, str(self.device))
        window, device = self.config.sliding_window, str(self.device)
        backlog = DraftBacklog(self.num_slots, window, device) if num_drafts else None
        bound = BoundModel(self.runner or self.model, self.cache, backlog=backlog)
        sampler = Sampler(self.num_slots, str(self.device))
        pieces = pieces_for((num_requests or self.num_slots) * (1 + num_drafts))
        return DecodeStep(
            bound,
            table,
            sampler,
            num_drafts=num_drafts,
            keeps_draft_logits=False,
            piece_keys=None if is_batch_invariant or self.device.type != "cuda" else pieces,
        )

    def _states(self, sizes: Sequence[int]) -> list[RequestState]:
        """Requests with blocks for ``sizes`` tokens, in slots 0, 1, ..."""
        counts = [-(-size // BLOCK_SIZE) for size in sizes]
        ends = list(accumulate(counts))
        if len(sizes) > self.num_slots or ends[-1] > self.cache.num_blocks:
            raise ConfigError(
                f"{len(sizes)} requests of {sum(sizes):,} tokens together: the caches have room "
                f"for {self.num_slots} and {self.cache.num_blocks * BLOCK_SIZE:,}"
            )
        states = [detached_state(slot) for slot in range(len(sizes))]
        for slot, (state, count, end) in enumerate(zip(states, counts, ends, strict=True)):
            state.slot, state.blocks = slot, list(range(end - count, end))
        return states


def num_that_fit(
    model: ModelConfig,
    ranks: int,
    context: int,
    device: torch.device | str,
    *,
    experts_as_fp8: bool = False,
    tables_on_host: bool = False,
) -> int | None:
    """Requests of ``context`` tokens that fit in free memory besides the weights of 1 of ``ranks``,
    with or without its Engram tables; None if unknown."""
    if torch.device(device).type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    # A tenth is left for activations, graphs and temporary memory of loading.
    room = 0.9 * free + (weight_bytes(model).tables / ranks if tables_on_host else 0)
    return requests_that_fit(model, context, ranks, room, experts_as_fp8=experts_as_fp8)


def _fill(cache: KVCache, config: ModelConfig, seed: int) -> None:
    """Fill the cache with packed rows of normally distributed numbers: operands determine power,
    and thereby the clock."""
    generator = torch.Generator(cache.window.device).manual_seed(seed)
    rings = [cache.window, cache.draft]
    for pools, width, pack in (
        (cache.main.values(), config.head_dim, pack_main_rows),
        (cache.index.values(), config.index_head_dim, pack_index_rows),
        (rings, config.head_dim, pack_window_rows),
    ):
        for pool in pools:
            rows = pool.view(-1, pool.shape[-1])
            shape = (min(len(rows), _DIFFERENT_ROWS), width)
            normal = torch.randn(shape, generator=generator, device=rows.device)
            packed = pack(normal.to(torch.bfloat16))
            for part in torch.split(rows, len(packed) or 1):
                part.copy_(packed[: len(part)])
