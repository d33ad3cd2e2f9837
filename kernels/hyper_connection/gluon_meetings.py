"""Barriers between the programs of a launch: those that run ahead wait, so that all access memory
that is close together.  No result depends on them, and waits time out: if other kernels occupy SMs,
some programs start only after others have finished."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# Distance of counters in 64-bit integers: 128 bytes.
COUNTER_STRIDE = gl.constexpr(16)
# About 50 microseconds.
_MOST_LOOKS = gl.constexpr(70)


@gluon.jit
def arrive(counter, mates):
    """Arrive at the barrier of ``mates`` programs, which all arrive equally often; returns the
    count at which all have arrived.  ``counter`` i64 starts at 0 and is never reset."""
    before = gl.atomic_add(counter, 1, sem="relaxed")
    return before - before % mates + mates


@gluon.jit
def wait_for_mates(counter, expected):
    """Wait until all programs have arrived, or time out; returns whether they have."""
    looks = 0
    count = gl.load(counter, volatile=True)
    while (looks < _MOST_LOOKS) & (count < expected):
        count = gl.load(counter, volatile=True)
        looks += 1
    return count >= expected
