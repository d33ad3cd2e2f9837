"""Prefix hits of starting requests, and prefixes that running prefills will provide soon."""

from __future__ import annotations

from itertools import takewhile

from deepinfer.engine.cache.block_manager import BlockManager, block_digests
from deepinfer.engine.cache.prefix_hit import (
    NO_HIT,
    PrefixHit,
    replayed_hit,
    restored_hit,
    snapshot_boundaries,
)
from deepinfer.engine.cache.snapshots import SnapshotStore
from deepinfer.engine.config import EngineConfig

from .request_state import RequestState


class PrefixSharing:
    """Finds prefixes to share; ``window``: the model's sliding window."""

    def __init__(
        self, config: EngineConfig, blocks: BlockManager, snapshots: SnapshotStore, window: int
    ) -> None:
        self.config = config
        self.blocks = blocks
        self.snapshots = snapshots
        self.window = window

    def find_hit(self, state: RequestState) -> tuple[PrefixHit, list[int]]:
        """The part of the prompt to take from the cache, and the matching blocks."""
        block_size = self.config.block_size
        state.boundaries = ()
        if not self.config.enable_prefix_caching:
            return NO_HIT, []
        state.digests = block_digests(state.token_ids, block_size, state.digests)
        matched = self.blocks.match(state.digests)
        num_matched = len(matched) * block_size
        num_tokens = len(state.token_ids)
        if not self.config.restores_snapshots:
            args = (num_matched, num_tokens, state.decoder_start, self.window, block_size)
            return replayed_hit(*args), matched
        limit = self._restore_limit(state)
        hit = restored_hit(state.digests, num_matched, limit, block_size, self.snapshots)
        if self.snapshots.capacity:
            boundaries = snapshot_boundaries(num_matched, limit, block_size)
            state.boundaries = tuple(b for b in boundaries if b > hit.num_tokens)
        return hit, matched

    def is_due(self, other: RequestState, state: RequestState, hit: PrefixHit) -> bool:
        """Whether ``other``, still prefilling, will provide ``state`` with a longer hit."""
        block_size = self.config.block_size
        pairs = zip(other.digests, state.digests, strict=False)
        num_common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) * block_size
        if num_common <= hit.num_tokens or other.num_computed_tokens >= num_common:
            return False
        if not self.config.restores_snapshots:
            args = (state.decoder_start, self.window, block_size)
            return replayed_hit(num_common, len(state.token_ids), *args).num_tokens > hit.num_tokens
        limit = min(num_common, self._restore_limit(state))
        due = (b for b in other.boundaries if b > other.num_computed_tokens)
        return any(hit.num_tokens < boundary <= limit for boundary in due)

    def _restore_limit(self, state: RequestState) -> int:
        """Upper bound of a hit with saved rings: where the decoder layers start (their rings are
        not saved), unless they run on every token from the beginning."""
        return len(state.token_ids) - 1 if self.config.exact else state.decoder_start
