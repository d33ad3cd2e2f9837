"""Root-mean-square normalization."""

from __future__ import annotations

from .dispatch import rms_norm as rms_norm
from .reference import NormedRows as NormedRows

__all__ = ["NormedRows", "rms_norm"]
