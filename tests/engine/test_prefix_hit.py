from __future__ import annotations

import pytest

from deepinfer.engine.cache.prefix_hit import (
    NO_HIT,
    replayed_hit,
    restored_hit,
    snapshot_boundaries,
)
from deepinfer.engine.cache.snapshots import SnapshotStore

DIGESTS = [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    "matched, tokens, decoder_start, expected",
    [
        (40, 100, 92, (40, 32)),
        (40, 40, 32, (36, 28)),  # the last token is left to compute
        (8, 100, 92, (0, 0)),  # within the first window: nothing would be saved
        (12, 100, 92, (12, 4)),
        (80, 90, 30, (36, 28)),  # preempted: decoder layers have to run from 30 on
        (0, 10, 2, (0, 0)),
    ],
)
def test_replayed_hits(
    matched: int, tokens: int, decoder_start: int, expected: tuple[int, int]
) -> None:
    hit = replayed_hit(matched, tokens, decoder_start, window=8, block_size=4)
    assert (hit.num_tokens, hit.start) == expected
    assert hit.start <= decoder_start and hit.snapshot is None


def test_restored_hits_need_saved_rings_at_or_before_the_limit() -> None:
    store = SnapshotStore(3)
    assert restored_hit(DIGESTS, 20, 20, 4, store) is NO_HIT
    store.put(b"1", "rings at 8")
    store.put(b"4", "rings at 20")
    hit = restored_hit(DIGESTS, 20, 20, 4, store)
    assert (hit.num_tokens, hit.start, hit.snapshot) == (20, 20, "rings at 20")
    for matched, limit in ((19, 99), (20, 19), (8, 8), (11, 99)):
        hit = restored_hit(DIGESTS, matched, limit, 4, store)
        assert (hit.num_tokens, hit.start, hit.snapshot) == (8, 8, "rings at 8")
    assert restored_hit(DIGESTS, 20, 7, 4, store) is NO_HIT


def test_boundaries_are_the_shared_part_and_the_last_usable_one() -> None:
    assert snapshot_boundaries(0, 25, 4) == (24,)
    assert snapshot_boundaries(12, 25, 4) == (12, 24)
    assert snapshot_boundaries(80, 25, 4) == (24,)
    assert snapshot_boundaries(0, 3, 4) == ()
