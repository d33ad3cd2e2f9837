"""Sparse latent attention over packed window rows and packed compressed rows."""

from __future__ import annotations

from .reference import sparse_attention_reference as sparse_attention

__all__ = ["sparse_attention"]
