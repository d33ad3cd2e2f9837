"""Single-pass hyper-connections: mixing coefficients, collapse, expansion."""

from __future__ import annotations

from .reference import HyperMix as HyperMix
from .reference import collapse_streams_reference as collapse_streams
from .reference import expand_streams_reference as expand_streams
from .reference import hyper_mix_reference as hyper_mix

__all__ = ["HyperMix", "collapse_streams", "expand_streams", "hyper_mix"]
