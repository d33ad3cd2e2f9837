"""``EngineFacts``: device, model and memory of an ``OfflineEngine``, for reports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deepinfer.engine.types import MemoryPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """``device`` is cpu, cuda or cuda:N; ``device_name`` is its product name, on a CPU with the
    number of threads.  ``model_folder`` is None for a model without files."""

    device: str
    device_name: str
    model_folder: Path | None = None
    memory: MemoryPlan | None = None
