"""Root-mean-square normalisation."""

from __future__ import annotations

from .dispatch import rms_norm as rms_norm
from .dispatch import rms_norm_quantized as rms_norm_quantized
from .reference import NormedRows as NormedRows

__all__ = ["NormedRows", "rms_norm", "rms_norm_quantized"]
