"""Moves nested values with tensors to another device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch import Tensor


def on_device(value: Any, device: str) -> Any:
    """``value`` with all tensors in its dataclasses and sequences moved to ``device``."""
    if isinstance(value, Tensor):
        return value.to(device)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{f.name: on_device(getattr(value, f.name), device) for f in fields(value)}
        )
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return type(value)(on_device(item, device) for item in value)  # type: ignore[call-arg]
    return value
