"""Bucket counts of the Engram hash tables: primes, chosen as in the official code."""

from __future__ import annotations

from functools import cache
from itertools import count
from math import isqrt


@cache
def bucket_primes(
    *, num_layers: int, num_orders: int, num_heads: int, vocab_size: int
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """``[layer][order][head]``: the primes from ``vocab_size`` upwards, each used once.

    The official search restarts for every n-gram order but skips primes already used, which is the
    same as assigning one ascending sequence.
    """
    primes = (n for n in count(vocab_size) if is_prime(n))
    return tuple(
        tuple(tuple(next(primes) for _ in range(num_heads)) for _ in range(num_orders))
        for _ in range(num_layers)
    )


def is_prime(n: int) -> bool:
    if n < 4:
        return n > 1
    return n % 2 == 1 and all(n % divisor for divisor in range(3, isqrt(n) + 1, 2))
