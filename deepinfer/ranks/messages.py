"""Messages between the driver and the ranks of an engine."""

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
    """Everything that a rank needs to start.  ``settings``: fields of ``EngineConfig``; ``links``:
    connections to the ranks of the other role, with disaggregated prefill."""

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
    """A rank that takes rows, or only prefills, is loaded.  ``facts`` must be the same on all
    ranks."""

    folder: Path
    model_config: ModelConfig
    engine_config: EngineConfig
    notes: Mapping[str, str]
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """The start of a run, with what applies to all its rows."""

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
    """No more rows.  ``is_abort``: also drop those that are running."""

    is_abort: bool = False


@dataclass(frozen=True, slots=True)
class Answered:
    outputs: list[RequestOutput]
    stats: EngineStats


@dataclass(frozen=True, slots=True)
class Finished:
    """All rows, of this rank and of all others, are answered or dropped."""

    stats: EngineStats
