"""Compression of token pairs into one latent."""

from __future__ import annotations

from .dispatch import pool_tokens as pool_tokens
from .reference import pool_pairs_reference as pool_pairs

__all__ = ["pool_pairs", "pool_tokens"]
