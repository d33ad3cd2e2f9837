"""What the driver and the ranks of an engine say to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from deepinfer.engine.config import EngineConfig
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.parallel.sizes import ParallelSizes
from deepinfer.engine.types import EngineStats, SamplingParams
from deepinfer.outputs import RequestOutput
from deepinfer.recipes.constraints.spec import ConstraintSpec
from deepinfer.recipes.types import Thinking


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOrder:
    """All that a rank needs to start.  ``settings`` are fields of ``EngineConfig``; ``links`` lead
    to the ranks of the other role, if there are roles."""

    rank: int
    sizes: ParallelSizes
    host: str
    port: int
    model_path: Path | str | None
    settings: Mapping[str, Any]
    device: str
    num_threads: int | None
    profile_path: Path | None
    kernels: Path | None
    seed: int
    links: Mapping[int, Connection] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ready:
    """A rank that takes rows or only prefills has loaded its part.  ``facts`` must be the same on
    all ranks."""

    folder: Path
    model_config: ModelConfig
    engine_config: EngineConfig
    notes: Mapping[str, str]
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Rows follow, to be answered like this."""

    raw: bool
    thinking: Thinking | None
    constraint: ConstraintSpec | None


@dataclass(frozen=True, slots=True)
class Row:
    number: int
    fields: Any
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class End:
    """No more rows.  ``is_abort``: forget those that are running, too."""

    is_abort: bool = False


@dataclass(frozen=True, slots=True)
class Answered:
    outputs: list[RequestOutput]
    stats: EngineStats


@dataclass(frozen=True, slots=True)
class Finished:
    """All rows of this rank are answered or forgotten, and so are those of all others."""

    stats: EngineStats
