"""The ranks of an engine: processes started on this machine, or by a launcher."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import product
from multiprocessing.connection import Connection

from deepinfer.engine.parallel.groups import TIMEOUT_S, host_store
from deepinfer.engine.parallel.launch import RankProcesses
from deepinfer.engine.parallel.launched import accept_ranks, launched_place, meeting_place
from deepinfer.engine.parallel.mailbox import make_link
from deepinfer.engine.parallel.sizes import ParallelSizes
from deepinfer.errors import ConfigError

from .messages import RankOrder
from .ranked_engine import RankedEngine
from .worker import rank_main


class LocalRanks(RankProcesses):
    """The processes and their rendezvous store; ``order``: that of rank 0, without a port."""

    def __init__(self, order: RankOrder) -> None:
        sizes = order.sizes
        place = launched_place(os.environ, sizes.world_size)
        remote = None
        if place is None:
            own = host_store(order.host)
            self._store: object = own  # it lives as long as the ranks
            order = replace(order, port=own.port)
        else:
            if sizes.has_roles:
                raise ConfigError(
                    "prefill_ranks and decode_ranks need all ranks on one machine: start the run "
                    "without a launcher"
                )
            self._store = found = meeting_place(place)
            sizes = replace(sizes, ranks_per_node=place.ranks_per_node)
            order = replace(order, host=place.host, port=place.port, sizes=sizes)
            remote = accept_ranks(place, found, TIMEOUT_S)
        links = _links(sizes)
        orders = [
            replace(
                order,
                rank=rank,
                profile_path=order.profile_path if rank == 0 else None,
                links=links[rank],
            )
            for rank in range(sizes.world_size)
        ]
        super().__init__(
            rank_main,
            orders,
            expendable=frozenset(sizes.prefill),
            remote=remote,
        )
        for link in (end for ends in links for end in ends.values()):
            link.close()


def start_ranks(order: RankOrder) -> RankedEngine:
    """An engine with the ranks of ``order.sizes``."""
    sizes = order.sizes
    return RankedEngine(LocalRanks(order), sizes.row_ranks, sizes.prefill, order.device)


def _links(sizes: ParallelSizes) -> list[dict[int, Connection]]:
    """For each rank, its ends of the connections to the ranks of the other role."""
    links: list[dict[int, Connection]] = [{} for _ in range(sizes.world_size)]
    if sizes.has_roles:
        for decode, prefill in product(sizes.row_ranks, sizes.prefill):
            links[decode][prefill], links[prefill][decode] = make_link()
    return links
