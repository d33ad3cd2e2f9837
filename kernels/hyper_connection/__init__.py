"""Hyper-connections (residual streams): mixing coefficients, collapse, expansion, sub-block
entry."""

from __future__ import annotations

from .dispatch import advance_streams as advance_streams
from .dispatch import collapse_streams as collapse_streams
from .dispatch import enter_streams as enter_streams
from .dispatch import expand_streams as expand_streams
from .reference import Entrance as Entrance
from .reference import Entry as Entry
from .reference import HyperMix as HyperMix
from .reference import Mixer as Mixer

__all__ = [
    "Entrance",
    "Entry",
    "HyperMix",
    "Mixer",
    "advance_streams",
    "collapse_streams",
    "enter_streams",
    "expand_streams",
]
