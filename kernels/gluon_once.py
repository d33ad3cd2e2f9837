"""Copies of tiles that nobody reads again, so that they do not push other lines out of L2.

Lines of such copies make room for each other: what was there before stays, and need not be written
back if it was modified.  Where Triton has no argument for that, the compiler's text marks the copy,
and the hint is added there; without it nothing but time would change.
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
    """Whether a weight that so many tiles of rows share leaves best at once: each of them reads it
    at about the same time, but more than two so far apart that some would not find it any more."""
    return row_tiles <= 2


@gluon.jit
def load_tile_once(tile, place, bar, memory, inside, ONCE: gl.constexpr):
    """``load_tile``, and if ONCE of what nobody reads later."""
    if not ONCE:
        load_tile(tile, place, bar, memory, inside)
    elif _HAS_POLICY:
        load_tile(tile, place, bar, memory, inside, cache_policy=_POLICY)
    else:
        gl.inline_asm_elementwise(_MARK, "=r", [], gl.int32, is_pure=False, pack=1)
        load_tile(tile, place, bar, memory, inside)


def _add_hints(
    _backend: Any = None, stages: dict[str, Callable[..., str]] | None = None, *_more: Any
) -> tuple[str, str]:
    """Triton's hook for its stages, and for more of a cache key: marks are in the source."""
    if stages is not None and "ptx" in stages:
        make = stages["ptx"]
        stages["ptx"] = lambda *args: _COPY.sub(_HINTED, make(*args))
    return "", ""


# Whoever watches Triton's stages with a hook of their own keeps it, and does without hints.
if not _HAS_POLICY.value and knobs.runtime.add_stages_inspection_hook is None:
    knobs.runtime.add_stages_inspection_hook = _add_hints
