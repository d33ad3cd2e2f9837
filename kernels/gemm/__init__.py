"""Linear layers on packed and plain weights."""

from __future__ import annotations

from .reference import fp32_linear_reference as fp32_linear
from .reference import grouped_linear_reference as grouped_linear
from .reference import linear_reference as linear
from .reference import quantized_linear_reference as quantized_linear
from .weights import Weight as Weight

__all__ = ["Weight", "fp32_linear", "grouped_linear", "linear", "quantized_linear"]
