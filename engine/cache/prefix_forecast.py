"""``PrefixForecast``: predicts the tokens that the prefix cache will save, from token ids alone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from deepinfer.engine.config import EngineConfig

from .block_manager import block_digests
from .prefix_hit import PrefixHit, replayed_hit, restored_hit, snapshot_boundaries
from .snapshots import SnapshotStore


class PrefixForecast:
    """Takes prompts in the order in which they run.  Eviction is modelled as if only prompts filled
    the cache, so a full cache saves somewhat less than predicted."""

    def __init__(self, config: EngineConfig, window: int) -> None:
        assert config.num_blocks is not None
        self._config = config
        self._window = window
        self._blocks: OrderedDict[bytes, None] = OrderedDict()
        self._snapshots = SnapshotStore(config.most_snapshots)

    def hit(self, token_ids: Sequence[int]) -> PrefixHit:
        """The hit of the next prompt; later prompts can then hit its blocks."""
        config, length = self._config, len(token_ids)
        if not config.enable_prefix_caching:
            return PrefixHit()
        size = config.block_size
        digests = block_digests(token_ids, size)
        count = 0
        while count < len(digests) and digests[count] in self._blocks:
            count += 1
        decoder_start = 0 if config.exact else max(0, length - self._window)
        if not config.restores_snapshots:
            hit = replayed_hit(count * size, length, decoder_start, self._window, size)
        else:
            limit = length - 1 if config.exact else decoder_start
            hit = restored_hit(digests, count * size, limit, size, self._snapshots)
            for boundary in snapshot_boundaries(count * size, limit, size):
                self._snapshots.put(digests[boundary // size - 1], None)
        for digest in digests:
            self._blocks[digest] = None
            self._blocks.move_to_end(digest)
        assert config.num_blocks is not None
        while len(self._blocks) > config.num_blocks:
            self._snapshots.discard(self._blocks.popitem(last=False)[0])
        return hit
