"""``RankedEngine``: the driver of an engine whose ranks are processes of this machine.

Rows go to the rank that has the fewest; every rank renders, computes and parses its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from deepinfer.engine.config import EngineConfig
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.parallel.groups import TIMEOUT_S, host_store
from deepinfer.engine.parallel.launch import Lost, RankProcesses, make_link
from deepinfer.engine.parallel.launched import accept_ranks, launched_place, meeting_place
from deepinfer.engine.parallel.sizes import ParallelSizes
from deepinfer.engine.types import EngineStats, SamplingParams
from deepinfer.recipes.constraints.spec import ConstraintSpec
from deepinfer.recipes.types import Thinking

from .errors import ConfigError, EngineError
from .merged_stats import merge_stats
from .outputs import RequestOutput
from .rank_messages import Begin, End, Finished, RankOrder, Ready, Row
from .rank_worker import rank_main
from .row_stream import ROWS_AHEAD


class RankedEngine:
    """Starts the ranks and waits until they have loaded.  One ``run`` at a time.

    ``order`` is that of rank 0, without a port.
    Raises: what a rank raised, with its name.
    """

    def __init__(self, order: RankOrder) -> None:
        sizes = order.sizes
        remote, host, port = None, order.host, 0
        place = launched_place(os.environ, sizes.world_size)
        if place is None:
            self._store: Any = host_store(order.host)
            port = self._store.port
        else:
            if sizes.has_roles:
                raise ConfigError(
                    "prefill_ranks and decode_ranks need processes of one machine: start the run "
                    "without a launcher"
                )
            self._store, host, port = meeting_place(place), place.host, place.port
            remote = accept_ranks(place, self._store, TIMEOUT_S)
        links = _links(sizes)
        orders = [
            replace(
                order,
                rank=rank,
                host=host,
                port=port,
                profile_path=order.profile_path if rank == 0 else None,
                links=links[rank],
            )
            for rank in range(sizes.world_size)
        ]
        self._ranks = RankProcesses(
            rank_main,
            orders,
            preload=(rank_main.__module__,),
            expendable=frozenset(sizes.prefill),
            remote=remote,
        )
        for link in (end for ends in links for end in ends.values()):
            link.close()
        self._row_ranks = list(sizes.row_ranks)
        self._stats: dict[int, EngineStats] = {}
        self._is_running = self._is_closed = False
        ready: dict[int, Ready] = {}
        try:
            while len(ready) < len(sizes.row_ranks) + len(sizes.prefill):
                for rank, message in self._ranks.receive():
                    if isinstance(message, Lost):
                        raise EngineError(message.reason)
                    ready[rank] = message
        except BaseException:
            self.close()
            raise
        first = ready[0]
        self.folder: Path = first.folder
        self.model_config: ModelConfig = first.model_config
        self.config: EngineConfig = replace(first.engine_config, device=order.device)
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
        source: Iterator[tuple[int, Any, SamplingParams]] | None = iter(rows)
        in_flight = dict.fromkeys(self._row_ranks, 0)
        finished: set[int] = set()
        try:
            while len(finished) < len(self._row_ranks):
                while source is not None and (rank := self._with_room(in_flight)) is not None:
                    triple = next(source, None)
                    if triple is None:
                        source = None
                        self._send_all(End())
                        break
                    in_flight[rank] += 1
                    self._ranks.send(rank, Row(*triple))
                for rank, message in self._ranks.receive():
                    if isinstance(message, Lost):
                        self.notes[f"rank {rank}"] = f"{message.reason}; others read its prompts"
                        continue
                    self._stats[rank] = message.stats
                    if isinstance(message, Finished):
                        finished.add(rank)
                        self.notes.update(message.notes)
                        continue
                    for output in message.outputs:
                        in_flight[rank] -= 1
                        yield output
                        self._check_open()
        except GeneratorExit:
            self._forget(finished)
            raise
        except BaseException:
            self.close()
            raise
        finally:
            self._is_running = False

    def stats(self) -> EngineStats:
        """The sum over all ranks, as far as they have told."""
        return merge_stats(self._stats.values()) if self._stats else EngineStats()

    def close(self) -> None:
        """Stop the ranks.  May be called twice."""
        self._is_closed = True
        self._ranks.close()

    def _forget(self, finished: set[int]) -> None:
        """Have all ranks drop what they run, so that another run can begin."""
        if self._is_closed:
            return
        self._send_all(End(is_abort=True))
        while len(finished) < len(self._row_ranks):
            for rank, message in self._ranks.receive():
                if isinstance(message, Finished):
                    finished.add(rank)

    def _with_room(self, in_flight: dict[int, int]) -> int | None:
        rank = min(in_flight, key=in_flight.__getitem__)
        return rank if in_flight[rank] < ROWS_AHEAD * self.config.max_num_seqs else None

    def _send_all(self, message: Begin | End) -> None:
        for rank in self._row_ranks:
            self._ranks.send(rank, message)

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineError("the engine was closed while this stream was open")


def _links(sizes: ParallelSizes) -> list[dict[int, Connection]]:
    """By rank, its ends of the connections to each rank of the other role."""
    links: list[dict[int, Connection]] = [{} for _ in range(sizes.world_size)]
    if sizes.has_roles:
        for decode, prefill in product(sizes.row_ranks, sizes.prefill):
            links[decode][prefill], links[prefill][decode] = make_link()
    return links
