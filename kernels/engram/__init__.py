"""Hashed n-gram memory: row numbers, table rows, gated addition."""

from __future__ import annotations

from .reference import engram_gate_reference as engram_gate
from .reference import engram_hash_reference as engram_hash
from .reference import engram_lookup_reference as engram_lookup

__all__ = ["engram_gate", "engram_hash", "engram_lookup"]
