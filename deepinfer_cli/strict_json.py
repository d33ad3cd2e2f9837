"""Strict JSON: refuses NaN and infinities, whether by name or as numbers that are too large."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:20]} is too large")
    return number


def read_json(data: bytes) -> Any:
    """Parse JSON.  Raises: ValueError, RecursionError."""
    return json.loads(data, parse_constant=refuse_constant, parse_float=finite)
