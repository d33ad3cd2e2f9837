"""Merges the counters of several engines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import zip_longest
from typing import Any

from deepinfer.engine.types import EngineStats

# Not added: engines run concurrently, and expert-parallel ranks rebalance together.
_LARGEST = {"prefill_s", "decode_s", "schedule_s", "capture_s", "num_expert_moves"}
_WORST = {"expert_imbalance_before", "expert_imbalance_after"}


def merge_stats(parts: Iterable[EngineStats]) -> EngineStats:
    """Add counts, take the maximum of times, and average means over stretches."""
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    merged: dict[str, Any] = {}
    for field in fields(EngineStats):
        values = [getattr(part, field.name) for part in parts]
        if field.name in _LARGEST:
            merged[field.name] = max(values, default=0.0)
        elif field.name in _WORST:
            merged[field.name] = max((v for v in values if v is not None), default=None)
        elif field.name == "calibration_error":
            known = [value for value in values if value is not None]
            merged[field.name] = sum(known) / len(known) if known else None
        elif field.name in ("verify_lengths", "decode_batches"):
            merged[field.name] = tuple(map(_mean, zip_longest(*values)))
        elif isinstance(field.default, tuple):
            merged[field.name] = tuple(map(sum, zip_longest(*values, fillvalue=0)))
        else:
            merged[field.name] = sum(values)
    return EngineStats(**merged)


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 3)
