"""``RankRows``: takes rows from a rank's mailbox through its engine, and sends answers back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

from deepinfer.engine.engine import LLMEngine
from deepinfer.engine.parallel.placed_experts import Balance
from deepinfer.engine.types import Completion, EngineStats, Request, SamplingParams
from deepinfer.loading import LoadedModel
from deepinfer.rows.row_stream import ROWS_AHEAD, RowStream

from .messages import Answered, Begin, End, Finished, Row

_REST_S = 0.001
_STATS_EVERY_S = 0.5


class RowMailbox(Protocol):
    """The part of ``Mailbox`` that ``RankRows`` uses."""

    def send(self, message: Any) -> None: ...
    def take(self) -> Any: ...
    def wait(self) -> Any: ...


class Others(Protocol):
    """The part of ``Rank`` that ``RankRows`` uses."""

    @property
    def balances(self) -> list[Balance]: ...

    def rest(self) -> bool: ...
    def finish(self) -> None: ...


class Alone:
    """No other ranks."""

    balances: list[Balance] = []

    def rest(self) -> bool:
        return False

    def finish(self) -> None:
        pass


class RankRows:
    """Feeds rows from a mailbox to an engine; without rows it takes part in others' passes."""

    def __init__(self, mailbox: RowMailbox, loaded: LoadedModel, rank: Others, seed: int) -> None:
        self._mailbox = mailbox
        self._engine = loaded.engine
        self._rank = rank
        self._waiting: list[Row] = []
        self._has_ended = False
        self._is_aborted = False
        self._told = time.monotonic()
        self._rows = RowStream(
            _WatchedEngine(self._engine, self),
            loaded.tokenizer,
            max_model_len=self._engine.max_model_len,
            vocab_size=loaded.config.vocab_size,
            max_in_flight=ROWS_AHEAD * self._engine.config.max_num_seqs,
            seed=seed,
        )

    def serve(self) -> None:
        """Serve one run after another, until the process is stopped."""
        while True:
            begin = self._mailbox.wait()
            if isinstance(begin, End):
                continue  # about a run that was finished here already
            assert isinstance(begin, Begin), begin
            self._has_ended = self._is_aborted = False
            self._run(begin)
            self._rank.finish()
            self._mailbox.send(Finished(self._stats()))

    def read_messages(self) -> None:
        """Read messages, and report progress from time to time."""
        while (message := self._mailbox.take()) is not None:
            if isinstance(message, Row):
                self._waiting.append(message)
            else:
                assert isinstance(message, End), message
                self._has_ended, self._is_aborted = True, message.is_abort
        if time.monotonic() - self._told > _STATS_EVERY_S:
            self._tell([])

    def check_aborted(self) -> None:
        self.read_messages()
        if self._is_aborted:
            raise _AbortedError

    def rest(self) -> None:
        """Nothing to compute: take part in another rank's pass, or wait briefly."""
        if not self._rank.rest():
            time.sleep(_REST_S)

    def _run(self, begin: Begin) -> None:
        outputs = self._rows.run(
            self._source(), raw=begin.raw, thinking=begin.thinking, constraint=begin.constraint
        )
        try:
            for output in outputs:
                self._tell([output])
        except _AbortedError:
            self._waiting.clear()

    def _source(self) -> Iterator[tuple[int, object, SamplingParams] | None]:
        """Rows received so far; None if there is none yet, after a pass for the others."""
        while True:
            self.check_aborted()
            if self._waiting:
                row = self._waiting.pop(0)
                yield row.number, row.fields, row.sampling
            elif self._has_ended:
                return
            else:
                if not self._engine.has_unfinished():
                    self.rest()
                yield None

    def _tell(self, outputs: list[object]) -> None:
        self._told = time.monotonic()
        self._mailbox.send(Answered(outputs, self._stats()))  # type: ignore[arg-type]

    def _stats(self) -> EngineStats:
        """The engine's counters, with the balance of experts."""
        stats, balances = self._engine.stats(), self._rank.balances
        if not balances:
            return stats
        return replace(
            stats,
            expert_imbalance_before=round(max(b.before for b in balances), 3),
            expert_imbalance_after=round(balances[-1].after, 3),
            num_expert_moves=sum(b.num_moved for b in balances),
        )


class _WatchedEngine:
    """The engine; before every step it checks the mailbox."""

    def __init__(self, engine: LLMEngine, rows: RankRows) -> None:
        self._engine = engine
        self._rows = rows

    def add_request(self, request: Request) -> None:
        self._engine.add_request(request)

    def step(self) -> list[Completion]:
        self._rows.check_aborted()
        completions = self._engine.step()
        if not completions and self._engine.is_waiting:
            self._rows.rest()
        return completions

    def abort(self, request_id: str) -> bool:
        return self._engine.abort(request_id)

    def stats(self) -> EngineStats:
        return self._engine.stats()


class _AbortedError(Exception):
    """The driver has aborted this run."""
