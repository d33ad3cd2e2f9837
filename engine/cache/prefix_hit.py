"""How much of a prompt a prefix hit may skip, and what has to be recomputed for it.

Blocks hold the global KV but not the window rings.  Either the last window before the end of the
hit is recomputed (default; its own windows begin there, an approximation that production makes,
too), or the rings saved at that boundary are restored (batch-invariant and exact mode: no
approximation).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .snapshots import SnapshotStore


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixHit:
    """``num_tokens`` come from the cache; computation starts at ``start`` <= ``num_tokens``."""

    num_tokens: int = 0
    start: int = 0
    snapshot: object = None


NO_HIT = PrefixHit()


def replayed_hit(
    num_matched_tokens: int, num_tokens: int, decoder_start: int, window: int, block_size: int
) -> PrefixHit:
    """The longest hit that leaves the last token, and all tokens from ``decoder_start`` on, to be
    computed.  A hit within the first window would save nothing."""
    limit = min(num_matched_tokens, num_tokens - 1, decoder_start + window)
    hit = limit // block_size * block_size
    return PrefixHit(num_tokens=hit, start=hit - window) if hit > window else NO_HIT


def restored_hit(
    digests: Sequence[bytes],
    num_matched_tokens: int,
    limit: int,
    block_size: int,
    snapshots: SnapshotStore,
) -> PrefixHit:
    """The longest hit that ends at a block boundary with a snapshot, at most at ``limit``."""
    for count in range(min(num_matched_tokens, limit) // block_size, 0, -1):
        digest = digests[count - 1]
        if digest in snapshots:
            end = count * block_size
            return PrefixHit(num_tokens=end, start=end, snapshot=snapshots.get(digest))
    return NO_HIT


def snapshot_boundaries(num_matched_tokens: int, limit: int, block_size: int) -> tuple[int, ...]:
    """Where a prefill stops to save rings: at the end of the shared prefix, so that the next prompt
    with it can start there, and at the last boundary that a hit could use."""
    last = limit // block_size * block_size
    return tuple(sorted({min(num_matched_tokens, last), last} - {0}))
