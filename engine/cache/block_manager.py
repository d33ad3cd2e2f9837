"""Blocks of the global KV: reference counts, cached prefixes, eviction.

A block without holders keeps its content for later prefix hits until its space is needed; eviction
is least recently used.  No tensors: block ids only.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

import numpy as np

from deepinfer.errors import EngineError

_DIGEST_BYTES = 24


def block_digests(
    token_ids: Sequence[int], block_size: int, known: Sequence[bytes] = ()
) -> list[bytes]:
    """One digest per full block, each over the block's tokens and the digest before it.

    Equal digests mean equal prefixes (192 bits of BLAKE2b).  ``known`` are the first digests, if
    they were computed already.
    """
    digests = list(known)
    for end in range((len(digests) + 1) * block_size, len(token_ids) + 1, block_size):
        tokens = np.asarray(token_ids[end - block_size : end], dtype="<i8").tobytes()
        parent = digests[-1] if digests else b""
        digests.append(blake2b(parent + tokens, digest_size=_DIGEST_BYTES).digest())
    return digests


class BlockManager:
    """Reference counts, prefix index and least-recently-used order of ``num_blocks`` blocks.

    ``on_evict`` is called with the digest of a block whose content is about to be lost.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[bytes], None] = lambda _: None) -> None:
        self.num_blocks = num_blocks
        self.peak_blocks = 0
        self._on_evict = on_evict
        self._holders = [0] * num_blocks
        self._digest: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that ``allocate`` can hand out, including cached ones without a holder."""
        return len(self._free) + len(self._cached)

    def match(self, digests: Sequence[bytes]) -> list[int]:
        """Blocks that hold the longest cached prefix of ``digests``.  Takes no reference."""
        blocks = []
        for digest in digests:
            block = self._block_of.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def hold(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of ``blocks``, as found by ``match``."""
        for block in blocks:
            if self._holders[block] == 0:
                del self._cached[block]
            self._holders[block] += 1
        self._note_peak()

    def allocate(self, count: int) -> list[int]:
        """``count`` blocks with one reference each, empty ones first.
        Raises: EngineError if fewer are free."""
        if count > self.num_free:
            raise EngineError(
                f"{count} blocks requested, {self.num_free} free: check num_free first"
            )
        blocks = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for block in blocks:
            self._holders[block] = 1
        self._note_peak()
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Drop a reference to each block.  The end of a prefix is evicted before its start."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                if self._digest[block] is None:
                    self._free.append(block)
                else:
                    self._cached[block] = None

    def publish(self, block: int, digest: bytes) -> None:
        """Offer a held, full block for prefix hits.  The first block with a digest is kept."""
        if digest not in self._block_of and self._digest[block] is None:
            self._block_of[digest] = block
            self._digest[block] = digest

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise EngineError unless held, free and cached blocks account for every block once."""
        held = Counter(block for table in tables for block in table)
        for block in range(self.num_blocks):
            if self._holders[block] != held[block]:
                raise EngineError(
                    f"block {block} has a reference count of {self._holders[block]}, but is held "
                    f"by {held[block]} requests"
                )
        unheld = sorted(block for block in range(self.num_blocks) if not held[block])
        if sorted([*self._free, *self._cached]) != unheld:
            raise EngineError("free and cached blocks are not exactly those without references")
        if any(self._digest[block] is not None for block in self._free):
            raise EngineError("an empty block is still in the prefix index")
        published = {d: b for b, d in enumerate(self._digest) if d is not None}
        if published != self._block_of:
            raise EngineError("the prefix index and the blocks' digests differ")

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        digest = self._digest[block]
        assert digest is not None
        self._on_evict(digest)
        del self._block_of[digest]
        self._digest[block] = None
        return block

    def _note_peak(self) -> None:
        self.peak_blocks = max(self.peak_blocks, self.num_blocks - self.num_free)
