"""Root-mean-square normalisation."""

from __future__ import annotations

from .reference import rms_norm_reference as rms_norm

__all__ = ["rms_norm"]
