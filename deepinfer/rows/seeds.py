"""The seed of a sample: the row's own, or derived from run seed, row number and sample index.

Derived seeds depend on nothing else, so sharding and resuming do not change a row's answer.
"""

from __future__ import annotations

import struct
from hashlib import blake2b


def sample_seed(own: int | None, *, run_seed: int, row: int, sample: int) -> int:
    """The 64-bit seed of one sample.

    A row's own seed is used as it is for sample 0; every other seed is the little-endian number in
    the 8-byte BLAKE2b digest of three little-endian 64-bit words: (run seed, row number, sample
    index) with personalization ``deepinfer-run``, or (own seed, 0, sample index) with
    ``deepinfer-own``.
    """
    if own is None:
        return _hash(b"deepinfer-run", run_seed, row, sample)
    return own if sample == 0 else _hash(b"deepinfer-own", own, 0, sample)


def _hash(purpose: bytes, *words: int) -> int:
    data = struct.pack("<3Q", *(word % 2**64 for word in words))
    return int.from_bytes(blake2b(data, digest_size=8, person=purpose).digest(), "little")
