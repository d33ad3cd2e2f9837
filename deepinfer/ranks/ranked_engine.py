"""``RankedEngine``: drives the ranks that take rows, wherever they run.

Each row goes to the rank with the fewest; every rank renders, computes and parses its own
rows.  The rows of a lost rank go to the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from deepinfer.engine.config import EngineConfig
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.parallel.mailbox import Lost
from deepinfer.engine.types import EngineStats, SamplingParams
from deepinfer.errors import ConfigError, EngineError
from deepinfer.outputs import RequestOutput
from deepinfer.recipes.constraints.spec import ConstraintSpec
from deepinfer.recipes.types import Thinking
from deepinfer.rows.row_stream import ROWS_AHEAD

from .merged_stats import merge_stats
from .messages import Begin, End, Finished, Ready, Row


class Ranks(Protocol):
    """``RankProcesses``, or the equivalent in a cluster."""

    @property
    def process_ids(self) -> list[int]: ...

    def send(self, rank: int, message: Any) -> None: ...

    def receive(self, timeout_s: float | None = None) -> list[tuple[int, Any]]: ...

    def close(self) -> None: ...


class RankedEngine:
    """Waits until all ranks are loaded.  One ``run`` at a time.

    ``row_ranks`` take rows; ``other_ranks`` only report that they are ready.
    Raises: the error of a rank, with its name; ConfigError if ranks have different versions.
    """

    def __init__(
        self, ranks: Ranks, row_ranks: Sequence[int], other_ranks: Sequence[int], device: str
    ) -> None:
        self._ranks = ranks
        self._stats: dict[int, EngineStats] = {}
        self._is_running = self._is_closed = False
        self._row_ranks = list(row_ranks)
        ready: dict[int, Ready] = {}
        try:
            while len(ready) < len(row_ranks) + len(other_ranks):
                for rank, message in ranks.receive():
                    if isinstance(message, Lost):
                        raise EngineError(message.reason)
                    ready[rank] = message
            first = ready[row_ranks[0]]
            _check_same(first, ready)
        except BaseException:
            self.close()
            raise
        self.folder: Path = first.folder
        self.model_config: ModelConfig = first.model_config
        self.config: EngineConfig = replace(first.engine_config, device=device)
        self.notes = dict(first.notes)
        assert self.config.max_model_len is not None
        self.max_model_len: int = self.config.max_model_len

    @property
    def process_ids(self) -> list[int]:
        return self._ranks.process_ids

    def run(
        self,
        rows: Iterable[tuple[int, Any, SamplingParams]],
        *,
        raw: bool = False,
        thinking: Thinking | None = None,
        constraint: ConstraintSpec | None = None,
    ) -> Iterator[RequestOutput]:
        """As ``RowStream.run``."""
        self._check_open()
        if self._is_running:
            raise EngineError(
                "another stream of this engine is still open; read it to its end or close it first"
            )
        self._is_running = True
        self._send_all(Begin(raw=raw, thinking=thinking, constraint=constraint))
        try:
            yield from self._answer(iter(rows))
            self._end(End())
        except GeneratorExit:
            if not self._is_closed:
                self._end(End(is_abort=True))
            raise
        except BaseException:
            self.close()
            raise
        finally:
            self._is_running = False

    def stats(self) -> EngineStats:
        """Merged counters of all ranks, as last reported."""
        return merge_stats(list(self._stats.values())) if self._stats else EngineStats()

    def close(self) -> None:
        """Stop the ranks.  Idempotent."""
        self._is_closed = True
        self._ranks.close()

    def _answer(self, rows: Iterator[tuple[int, Any, SamplingParams]]) -> Iterator[RequestOutput]:
        """Each row's output exactly once, in order of completion."""
        source: Iterator[tuple[int, Any, SamplingParams]] | None = rows
        again: deque[Row] = deque()
        in_flight: dict[int, list[Row]] = {rank: [] for rank in self._row_ranks}
        while source is not None or again or any(in_flight.values()):
            while (rank := self._with_room(in_flight)) is not None and (source or again):
                if again:
                    row = again.popleft()
                else:
                    assert source is not None
                    triple = next(source, None)
                    if triple is None:
                        source = None
                        break
                    row = Row(*triple)
                in_flight[rank].append(row)
                self._ranks.send(rank, row)
            if not any(in_flight.values()):
                continue
            for rank, message in self._ranks.receive():
                if isinstance(message, Lost):
                    again += in_flight.pop(rank, [])
                    self._lose(message)
                    continue
                self._stats[rank] = message.stats
                for output in message.outputs:
                    flying = in_flight[rank]
                    flying.remove(next(row for row in flying if row.number == output.row))
                    yield output
                    self._check_open()

    def _end(self, message: End) -> None:
        """End the run on all ranks, so that another one can begin."""
        self._send_all(message)
        finished: set[int] = set()
        while not finished.issuperset(self._row_ranks):
            for rank, found in self._ranks.receive():
                if isinstance(found, Lost):
                    self._lose(found)
                    continue
                self._stats[rank] = found.stats
                if isinstance(found, Finished):
                    finished.add(rank)

    def _lose(self, lost: Lost) -> None:
        """Continue without a rank.  Raises: EngineError if no other takes rows."""
        self.notes[f"rank {lost.rank}"] = f"{lost.reason}; others took its work"
        if lost.rank in self._row_ranks:
            self._row_ranks.remove(lost.rank)
        if not self._row_ranks:
            raise EngineError(f"{lost.reason}; no other is left")

    def _with_room(self, in_flight: dict[int, list[Row]]) -> int | None:
        rank = min(in_flight, key=lambda rank: len(in_flight[rank]))
        return rank if len(in_flight[rank]) < ROWS_AHEAD * self.config.max_num_seqs else None

    def _send_all(self, message: Begin | End) -> None:
        for rank in self._row_ranks:
            self._ranks.send(rank, message)

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineError("the engine was closed while this stream was open")


def _check_same(first: Ready, ready: dict[int, Ready]) -> None:
    for rank, other in ready.items():
        for name, value in other.facts.items():
            if first.facts.get(name) != value:
                raise ConfigError(
                    f"{name} is {value} on rank {rank} and {first.facts.get(name)} on rank 0: all "
                    "ranks need the same"
                )
