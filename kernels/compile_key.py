"""Triton's cache key of a compiled kernel: a bundle stores the key that a run looks up."""

from __future__ import annotations

from typing import Any

import triton
from triton import knobs
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.backends.compiler import GPUTarget
from triton.runtime.cache import FileCacheManager
from triton.runtime.jit import JITCallable

from .compile_task import Json, kernel_of, options_of, source_of

_SETTLED: set[int] = set()


def lookup_key(task: Json) -> str:
    """Triton's cache key of a task in this process; nothing is compiled."""
    settle(kernel_of(task))
    before = knobs.cache.manager_class
    knobs.cache.manager_class = _Asked
    try:
        triton.compile(source_of(task), GPUTarget(*task["target"]), options_of(task))
    except _Looked as looked:
        return looked.key
    finally:
        knobs.cache.manager_class = before
    raise AssertionError("Triton compiled without a look into its cache")


def settle(function: JITCallable) -> None:
    """Make Triton's digest of a function independent of what was launched or compiled before.

    Triton 3.6 includes the global constants of a callee only if it has hashed the callee already,
    so callees are hashed first.  Must be called before the function is launched.
    """
    if id(function) in _SETTLED:
        return
    _SETTLED.add(id(function))
    for name in function.fn.__code__.co_names:
        callee = function.fn.__globals__.get(name)
        if isinstance(callee, JITCallable):
            settle(callee)
    function.hash = None
    _ = function.cache_key  # computes it


def compiler_settings() -> dict[str, str]:
    """Environment variables that are part of every key, because they change machine code."""
    found: dict[str, str] = get_cache_invalidating_env_vars()
    return found


class _Looked(Exception):  # noqa: N818 (a way out, not an error)
    def __init__(self, key: str) -> None:
        self.key = key


class _Asked(FileCacheManager):  # type: ignore[misc]
    """A cache manager that raises on the first lookup, to return the key."""

    def __init__(self, key: str, *more: Any, **named: Any) -> None:
        raise _Looked(key)
