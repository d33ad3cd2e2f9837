"""Four ranks that stay up for the whole test session and run functions of ``rank_jobs``."""

from __future__ import annotations

from typing import Any

from deepinfer.engine.parallel.launch import Mailbox, RankProcesses

WORLD_SIZE = 4


def serve(mailbox: Mailbox, argument: tuple[int, int]) -> None:
    """A rank of the pool: joins the others, then runs jobs until the pool ends."""
    import rank_jobs
    import torch
    import torch.distributed as dist

    from deepinfer.engine.parallel.groups import join

    rank, port = argument
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
        arguments = [(rank, self.store.port) for rank in range(WORLD_SIZE)]
        self.ranks = RankProcesses(serve, arguments, preload=("rank_jobs",))

    def run(self, name: str, *arguments: Any) -> list[Any]:
        for rank in range(WORLD_SIZE):
            self.ranks.send(rank, (name, arguments))
        results: dict[int, Any] = {}
        while len(results) < WORLD_SIZE:
            results.update(self.ranks.receive(120))
        return [results[rank] for rank in range(WORLD_SIZE)]

    def close(self) -> None:
        self.ranks.close()
