"""Root-mean-square normalisation."""

from __future__ import annotations

from .dispatch import rms_norm as rms_norm

__all__ = ["rms_norm"]
