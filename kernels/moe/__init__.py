"""Mixture of experts: router, routed experts, SwiGLU."""

from __future__ import annotations

from .reference import experts_reference as experts
from .reference import route_reference as route
from .reference import swiglu_reference as swiglu

__all__ = ["experts", "route", "swiglu"]
