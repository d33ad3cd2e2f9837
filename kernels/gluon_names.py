"""Gluon functions whose names changed after Triton 3.6."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import tma

_HAS_REINTERPRET = gl.constexpr(hasattr(gl.shared_memory_descriptor, "reinterpret"))

# cp.async: from global to shared memory.
async_load = getattr(async_copy, "async_load", async_copy.async_copy_global_to_shared)
# TMA copies of tiles between global and shared memory.
load_tile = getattr(tma, "async_load", tma.async_copy_global_to_shared)
store_tile = getattr(tma, "async_store", tma.async_copy_shared_to_global)
# Barrier of the threads of a warp partition.
thread_barrier = getattr(gl, "thread_barrier", None) or gl.barrier


@gluon.jit
def seen_as(memory, DTYPE: gl.constexpr, SHAPE: gl.constexpr, LAYOUT: gl.constexpr):
    """Reinterpret shared memory with another type, shape and layout."""
    if _HAS_REINTERPRET:
        return memory.reinterpret(DTYPE, SHAPE, LAYOUT)
    else:  # noqa: RET505 - both are compiled otherwise
        return memory._reinterpret(DTYPE, SHAPE, LAYOUT)
