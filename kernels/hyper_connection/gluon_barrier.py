"""Barriers between the programs of a launch: those that run ahead wait, so that all access memory
that is close together.  No result depends on them, and waits time out: if other kernels occupy SMs,
some programs start only after others have finished."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# Distance of counters in 64-bit integers: 128 bytes.
COUNTER_STRIDE = gl.constexpr(16)
# About 50 microseconds.
_MOST_POLLS = gl.constexpr(70)


@gluon.jit
def arrive(counter, programs):
    """Arrive at the barrier of ``programs`` programs, which all arrive equally often; returns the
    count at which all have arrived.  ``counter`` i64 starts at 0 and is never reset."""
    before = gl.atomic_add(counter, 1, sem="relaxed")
    return before - before % programs + programs


@gluon.jit
def wait_for_all(counter, expected):
    """Wait until all programs have arrived, or time out; returns whether they have."""
    polls = 0
    count = gl.load(counter, volatile=True)
    while (polls < _MOST_POLLS) & (count < expected):
        count = gl.load(counter, volatile=True)
        polls += 1
    return count >= expected
