"""Sparse latent attention over packed window rows and packed compressed rows."""

from __future__ import annotations

from .dispatch import sparse_attention as sparse_attention
