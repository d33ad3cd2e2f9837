"""Meetings of the programs of a launch: those that run ahead wait, so that all work on what lies
close together in memory.  No result depends on them, so nobody waits for long: where other kernels
have taken multiprocessors, some programs begin only when others have ended."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# From one counter to the next, in its numbers of 64 bits: 128 bytes.
COUNTER_STRIDE = gl.constexpr(16)
# Some 50 microseconds.
_MOST_LOOKS = gl.constexpr(70)


@gluon.jit
def arrive(counter, mates):
    """Say that the program is here, one of ``mates`` that come equally often; the count to expect
    when all are.  ``counter`` i64 begins at 0 and is never set again."""
    before = gl.atomic_add(counter, 1, sem="relaxed")
    return before - before % mates + mates


@gluon.jit
def wait_for_mates(counter, expected):
    """Until all mates have come to the meeting of ``arrive``; whether they came."""
    looks = 0
    count = gl.load(counter, volatile=True)
    while (looks < _MOST_LOOKS) & (count < expected):
        count = gl.load(counter, volatile=True)
        looks += 1
    return count >= expected
