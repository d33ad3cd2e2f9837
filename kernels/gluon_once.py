"""TMA loads with the L2 hint evict-first, for weights that are not read again.

Lines of such loads are evicted first, so the rest of L2 stays cached and modified lines need not be
written back.  If Triton's API has no argument for the hint, an inline-assembly marker is placed
before the load, and the hint is patched into the PTX; without it only the time would change.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import signature
from typing import Any

from triton import knobs
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import ampere

from .gluon_names import load_tile

_HAS_POLICY = gl.constexpr("cache_policy" in signature(load_tile).parameters)
_POLICY = gl.constexpr(
    ampere.CachePolicy(l2=ampere.FractionalEvictionPolicy("evict_first", 1.0))
    if _HAS_POLICY.value
    else None
)
_MARK = gl.constexpr("mov.u32 $0, 0; // read once")
_COPY = re.compile(
    r"(// read once.*?)(@%p\d+ cp\.async\.bulk\.tensor\.\S+::bytes)( [^;]+);", re.DOTALL
)
_HINTED = (
    r"\1{ .reg .b64 once; createpolicy.fractional.L2::evict_first.b64 once, 1.0; "
    r"\2.L2::cache_hint\3, once; }"
)


def is_read_once(row_tiles: int) -> bool:
    """Whether a weight shared by so many row tiles should be evicted first: up to two tiles read it
    at about the same time, more so far apart that some would miss in L2."""
    return row_tiles <= 2


@gluon.jit
def load_tile_once(tile, place, bar, memory, inside, EVICT_FIRST: gl.constexpr):
    """``load_tile``, with the hint if EVICT_FIRST."""
    if not EVICT_FIRST:
        load_tile(tile, place, bar, memory, inside)
    elif _HAS_POLICY:
        load_tile(tile, place, bar, memory, inside, cache_policy=_POLICY)
    else:
        gl.inline_asm_elementwise(_MARK, "=r", [], gl.int32, is_pure=False, pack=1)
        load_tile(tile, place, bar, memory, inside)


def _add_hints(
    _backend: Any = None, stages: dict[str, Callable[..., str]] | None = None, *_more: Any
) -> tuple[str, str]:
    """Triton's hook for compiler stages; it adds nothing to the cache key, as markers are in the
    source."""
    if stages is not None and "ptx" in stages:
        make = stages["ptx"]
        stages["ptx"] = lambda *args: _COPY.sub(_HINTED, make(*args))
    return "", ""


# A hook of the user is not replaced; there are no hints then.
if not _HAS_POLICY.value and knobs.runtime.add_stages_inspection_hook is None:
    knobs.runtime.add_stages_inspection_hook = _add_hints
