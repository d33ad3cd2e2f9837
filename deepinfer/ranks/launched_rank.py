"""A rank other than 0 that torchrun or SLURM started: it only computes."""

from __future__ import annotations

from deepinfer.engine.parallel.launch import run_rank
from deepinfer.engine.parallel.launched import Place, meeting_place, reach_driver

from .worker import rank_main


def serve(place: Place) -> None:
    """Serve until rank 0 ends; errors are sent to it."""
    store = meeting_place(place)
    connection = reach_driver(place, store)
    if connection is not None:
        run_rank(rank_main, connection, connection.recv())
