"""``EngineFacts``: what an ``OfflineEngine`` is made of, for reports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deepinfer.engine.types import MemoryPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """``device`` is cpu, cuda or cuda:N; ``device_name`` what it is, with the threads of a CPU.
    ``model_folder`` is None for a model without files."""

    device: str
    device_name: str
    model_folder: Path | None = None
    memory: MemoryPlan | None = None
