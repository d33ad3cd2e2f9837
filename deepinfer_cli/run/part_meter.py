"""``PartMeter``: the measurements of one part of a run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Protocol

from deepinfer.engine.types import EngineStats
from deepinfer.engine_facts import EngineFacts
from deepinfer.errors import DeepInferError
from deepinfer.nvml import GpuEnergy
from deepinfer_cli.input.input_meter import InputMeter
from deepinfer_cli.input.rows import InputRow
from deepinfer_cli.output.fingerprint import model_fingerprint
from deepinfer_cli.report.build import Measured
from deepinfer_cli.report.timeline import Timeline

from .energy import EnergyMeter


class TellingEngine(Protocol):
    """The part of an engine that is measured here."""

    def stats(self) -> EngineStats: ...

    @property
    def notes(self) -> Mapping[str, str]: ...

    def facts(self) -> EngineFacts: ...


class PartMeter:
    """``input``: times the reading of rows.  ``timeline``: what was finished when.  ``engine``: the
    engine, None before it exists; it is queried until ``end``."""

    def __init__(self, rows: Iterator[InputRow]) -> None:
        self.input = InputMeter(rows)
        self.timeline = Timeline()
        self.engine: TellingEngine | None = None
        self.is_over = False
        self._began_at = time.time()
        self._began = self._loaded = time.monotonic()
        self._cpu_at_load = time.process_time()
        self._energy, self._gpu_energy = EnergyMeter(), GpuEnergy()
        self._stats: EngineStats | None = None
        self._notes: dict[str, str] = {}
        self._facts: EngineFacts | None = None
        self._fingerprint: str | None = None
        self._ended = 0.0
        self._cpu_s = 0.0

    def engine_is_ready(self, engine: TellingEngine) -> None:
        """Start counting the time of answering."""
        self.engine = engine
        self._notes, self._facts = dict(engine.notes), engine.facts()
        self._loaded, self._cpu_at_load = time.monotonic(), time.process_time()
        self.timeline.start()

    def end(self) -> None:
        """Stop measuring, and query the engine for the last time."""
        self._ended = time.monotonic()
        self._cpu_s = time.process_time() - self._cpu_at_load
        self.is_over = True
        if self.engine is not None:
            self._stats, self._notes = self.engine.stats(), dict(self.engine.notes)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def answering_s(self) -> float:
        """Seconds since the engine became ready; since the start, if none was needed."""
        return (self._ended if self.is_over else time.monotonic()) - self._loaded

    def measured(self, write_s: float) -> Measured:
        """All measurements so far.  ``write_s``: seconds spent on result rows."""
        return Measured(
            began=self._began_at,
            ended=self._began_at + self.elapsed_s,  # independent of changes of the system clock
            digest=self.input.digest(),
            load_s=self._loaded - self._began,
            answer_s=self.answering_s,
            read_s=self.input.read_s,
            write_s=write_s,
            cpu_s=self._cpu_s if self.is_over else time.process_time() - self._cpu_at_load,
            energy_j=self._energy.joules(),
            gpu_energy_j=self._gpu_energy.joules(),
            stats=self._stats_so_far(),
            engine_notes=self._notes,
            engine=self._facts,
            model_fingerprint=self._model_fingerprint(),
            timeline=self.timeline.report(),
        )

    def _stats_so_far(self) -> EngineStats | None:
        if self.engine is not None and not self.is_over:
            with suppress(DeepInferError):
                return self.engine.stats()
        return self._stats

    def _model_fingerprint(self) -> str | None:
        """Computed once, since a large model has many files."""
        folder = None if self._facts is None else self._facts.model_folder
        if self._fingerprint is None and folder is not None:
            self._fingerprint = model_fingerprint(folder)
        return self._fingerprint
