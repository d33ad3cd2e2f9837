"""Hashed n-gram memory: hash to table rows, lookup, gated addition."""

from __future__ import annotations

from .dispatch import engram_gate as engram_gate
from .dispatch import engram_hash as engram_hash
from .dispatch import engram_lookup as engram_lookup

__all__ = ["engram_gate", "engram_hash", "engram_lookup"]
