"""Blocks: nothing leaks, nothing is used twice, equal prefixes are found and only those."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from deepinfer.engine.cache.block_manager import BlockManager, block_digests
from deepinfer.engine.cache.snapshots import SnapshotStore
from deepinfer.engine.cache.state_slots import StateSlots
from deepinfer.errors import EngineError

NUM_BLOCKS = 8
BLOCK_SIZE = 2


class Blocks(RuleBasedStateMachine):
    """Holders come and go with prompts over two token ids, so that prefixes often coincide.

    ``content`` is what a cache would hold: the prefix whose state was last computed in a block.
    """

    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[bytes] = []
        self.manager = BlockManager(NUM_BLOCKS, self.evicted.append)
        self.tables: list[list[int]] = []
        self.content: dict[int, tuple[int, ...]] = {}

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=10), is_published=st.booleans())
    def start(self, prompt: list[int], is_published: bool) -> None:
        digests = block_digests(prompt, BLOCK_SIZE)
        shared = self.manager.match(digests)
        for i, block in enumerate(shared):
            assert self.content[block] == tuple(prompt[: (i + 1) * BLOCK_SIZE])
        self.manager.hold(shared)
        needed = -(-len(prompt) // BLOCK_SIZE) - len(shared)
        if needed > self.manager.num_free:
            with pytest.raises(EngineError, match="check num_free first"):
                self.manager.allocate(needed)
            self.manager.release(shared)
            return
        table = shared + self.manager.allocate(needed)
        for i in range(len(shared), len(table)):
            self.content[table[i]] = tuple(prompt[: (i + 1) * BLOCK_SIZE])
        if is_published:
            for block, digest in zip(table, digests, strict=False):
                self.manager.publish(block, digest)
        self.tables.append(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        self.manager.release(self.tables.pop(index))

    @invariant()
    def everything_is_accounted_for(self) -> None:
        self.manager.check_integrity(self.tables)
        held = {block for table in self.tables for block in table}
        assert self.manager.num_free == NUM_BLOCKS - len(held)
        assert self.manager.peak_blocks >= len(held)


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@settings(max_examples=100, deadline=None)
@given(
    a=st.lists(st.integers(0, 2), max_size=12),
    b=st.lists(st.integers(0, 2), max_size=12),
    size=st.integers(1, 4),
)
def test_digests_are_equal_exactly_for_equal_beginnings(
    a: list[int], b: list[int], size: int
) -> None:
    pairs = zip(block_digests(a, size), block_digests(b, size), strict=False)
    for i, (x, y) in enumerate(pairs, start=1):
        assert (x == y) == (a[: i * size] == b[: i * size])
    assert block_digests(a, size, block_digests(a[: size + 1], size)) == block_digests(a, size)


def test_the_block_unused_longest_goes_first_and_a_prefix_loses_its_end_first() -> None:
    evicted: list[bytes] = []
    manager = BlockManager(4, evicted.append)
    old, new = [b"old0", b"old1"], [b"new0", b"new1"]
    for digests in (old, new):
        table = manager.allocate(2)
        for block, digest in zip(table, digests, strict=True):
            manager.publish(block, digest)
        manager.release(table)
    assert len(manager.match(old)) == 2
    manager.allocate(1)
    assert evicted == [b"old1"] and len(manager.match(old)) == 1
    manager.hold(manager.match(old))
    manager.allocate(1)
    assert evicted == [b"old1", b"new1"]


def test_damage_is_noticed() -> None:
    manager = BlockManager(3)
    table = manager.allocate(2)
    manager.check_integrity([table])
    for tables in ([], [table, table[:1]], [table[:1]]):
        with pytest.raises(EngineError, match="reference count"):
            manager.check_integrity(tables)
    slots = StateSlots(2)
    slot = slots.allocate()
    slots.check_integrity([slot])
    for held in ([], [slot, slot], [1 - slot]):
        with pytest.raises(EngineError, match="state slot"):
            slots.check_integrity(held)
    slots.allocate()
    with pytest.raises(EngineError, match="no free state slot"):
        slots.allocate()


def test_snapshots_are_bounded_and_forget_the_least_recently_used() -> None:
    store = SnapshotStore(2)
    store.put(b"a", 1)
    store.put(b"b", 2)
    assert store.get(b"a") == 1
    store.put(b"c", 3)
    assert len(store) == 2 and b"b" not in store and b"a" in store
    store.discard(b"a")
    store.discard(b"never there")
    assert len(store) == 1
    empty = SnapshotStore(0)
    empty.put(b"a", 1)
    assert len(empty) == 0
