"""Single-pass hyper-connections: mixing coefficients, collapse, expansion."""

from __future__ import annotations

from .dispatch import advance_streams as advance_streams
from .dispatch import collapse_streams as collapse_streams
from .dispatch import expand_streams as expand_streams
from .dispatch import hyper_mix as hyper_mix
from .reference import HyperMix as HyperMix

__all__ = ["HyperMix", "advance_streams", "collapse_streams", "expand_streams", "hyper_mix"]
