"""Fused row-wise operations between GEMMs: norm, rotation, quantization, packing."""

from __future__ import annotations

from .dispatch import pack_latents as pack_latents
from .dispatch import split_projection as split_projection
from .dispatch import store_latents as store_latents
from .reference import RowFormat as RowFormat
