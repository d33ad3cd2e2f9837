"""Rotary position embedding: frequencies (plain and YaRN), tables for positions, rotation."""

from __future__ import annotations

from .dispatch import apply_rope as apply_rope
from .tables import rope_frequencies as rope_frequencies
from .tables import rope_table as rope_table

__all__ = ["apply_rope", "rope_frequencies", "rope_table"]
