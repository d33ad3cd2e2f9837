"""Compression of token pairs into one latent."""

from __future__ import annotations

from .reference import pool_pairs_reference as pool_pairs

__all__ = ["pool_pairs"]
