"""Four ranks that stay up for a module of tests and run functions of ``rank_jobs``."""

from __future__ import annotations

from itertools import combinations
from multiprocessing.connection import Connection
from typing import Any

from deepinfer.engine.parallel.launch import RankProcesses
from deepinfer.engine.parallel.mailbox import Mailbox, make_link

WORLD_SIZE = 4


def serve(mailbox: Mailbox, argument: tuple[int, int, dict[int, Connection]]) -> None:
    """A rank of the pool: joins the others, then runs jobs until the pool ends."""
    import rank_jobs
    import torch
    import torch.distributed as dist

    from deepinfer.engine.parallel.groups import join

    rank, port, links = argument
    rank_jobs.LINKS.update(links)
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    join(store, rank, WORLD_SIZE, facts={"test": "pool"}, timeout_s=60)
    while True:
        name, arguments = mailbox.wait()
        mailbox.send(getattr(rank_jobs, name)(*arguments))


class RankPool:
    """``run`` calls a job on every rank at once and returns the results by rank."""

    def __init__(self) -> None:
        from deepinfer.engine.parallel.groups import host_store

        self.store = host_store()
        links: list[dict[int, Connection]] = [{} for _ in range(WORLD_SIZE)]
        for one, other in combinations(range(WORLD_SIZE), 2):
            links[one][other], links[other][one] = make_link()
        arguments = [(rank, self.store.port, links[rank]) for rank in range(WORLD_SIZE)]
        # The last one is for engines that other tests of this process start from the same server.
        modules = ("rank_jobs", "golden_ranks", "deepinfer.ranks.worker")
        self.ranks = RankProcesses(serve, arguments, preload=modules)
        for ends in links:
            for end in ends.values():
                end.close()

    def run(self, name: str, *arguments: Any) -> list[Any]:
        for rank in range(WORLD_SIZE):
            self.ranks.send(rank, (name, arguments))
        results: dict[int, Any] = {}
        while len(results) < WORLD_SIZE:
            results.update(self.ranks.receive(120))
        return [results[rank] for rank in range(WORLD_SIZE)]

    def close(self) -> None:
        self.ranks.close()
