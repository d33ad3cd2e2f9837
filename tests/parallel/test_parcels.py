"""Packed state through landing areas: here a sender and a receiver of one process."""

from __future__ import annotations

import torch
from golden_ranks import checkpoint_of
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.engine.cache.kv_cache import KVCache
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.parallel.handover import block_rows, ring_rows
from deepinfer.engine.parallel.parcels import Inbox, Outbox, Parcel, Rows, Taken


def filled_cache(config: ModelConfig, seed: int) -> KVCache:
    cache = KVCache.allocate(config, num_blocks=6, block_size=8, num_slots=3)
    generator = torch.Generator().manual_seed(seed)
    for tensor in (*cache.main.values(), *cache.index.values(), cache.window, cache.draft):
        tensor.random_(0, 256, generator=generator)
    cache.history.random_(0, 1000, generator=generator)
    for partial in cache.partial.values():
        partial.normal_(generator=generator)
    return cache


def test_blocks_and_rings_go_from_one_cache_to_another() -> None:
    config = checkpoint_of("tiny-a")[0].config
    theirs, ours = filled_cache(config, 1), filled_cache(config, 2)
    area = torch.zeros(1 << 20, dtype=torch.uint8)
    outbox, inbox = Outbox(area.data_ptr(), len(area)), Inbox(area)
    blocks = outbox.send(block_rows(theirs, [5, 0, 2]))
    rings = outbox.send(ring_rows(theirs, 1))
    assert blocks is not None and rings is not None
    inbox.take(rings, ring_rows(ours, 2))
    inbox.take(blocks, block_rows(ours, [1, 3, 4]))
    for name in ("main", "index"):
        for layer, pool in getattr(ours, name).items():
            assert torch.equal(pool[[1, 3, 4]], getattr(theirs, name)[layer][[5, 0, 2]])
    pairs = zip(ours.snapshot(2).rings, theirs.snapshot(1).rings, strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    untouched = zip(ours.snapshot(0).rings, filled_cache(config, 2).snapshot(0).rings, strict=True)
    assert all(torch.equal(one, other) for one, other in untouched)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), max_size=40))
def test_nothing_is_overwritten_before_it_was_taken(steps: list[tuple[int, int]]) -> None:
    """Parcels of many sizes, taken in any order: each arrives as it was sent, or there was no
    room; when all were taken there is room again."""
    area = torch.zeros(10 * 32, dtype=torch.uint8)
    outbox, inbox = Outbox(area.data_ptr(), len(area)), Inbox(area)
    under_way: list[tuple[Parcel, torch.Tensor]] = []

    def take(place: int) -> None:
        parcel, sent = under_way.pop(place % len(under_way))
        got = torch.zeros_like(sent)
        inbox.take(parcel, [Rows(got, torch.arange(len(got)))])
        assert torch.equal(got, sent)
        outbox.free(Taken(parcel.number))

    for number, (count, place) in enumerate(steps):
        sent = torch.full((count, 32), number + 1, dtype=torch.uint8)
        parcel = outbox.send([Rows(sent, torch.arange(count))])
        if parcel is not None:
            under_way.append((parcel, sent))
        else:
            assert under_way
        if place and under_way:
            take(place)
    while under_way:
        take(0)
    assert outbox.send([Rows(area.view(10, 32).clone(), torch.arange(10))]) is not None


def test_what_is_larger_than_the_area_does_not_go_through_it() -> None:
    area = torch.zeros(64, dtype=torch.uint8)
    rows = Rows(torch.ones(3, 32, dtype=torch.uint8), torch.arange(3))
    assert Outbox(area.data_ptr(), len(area)).send([rows]) is None and not area.any()
