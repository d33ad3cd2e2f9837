"""Runs whose processes torchrun or SLURM has started: the first one reads and writes, the others
only compute."""

from __future__ import annotations

import os
from collections.abc import Callable

from deepinfer.engine.parallel.launched import launched_place
from deepinfer.engine.parallel.sizes import ParallelSizes
from deepinfer_cli.settings.as_given import errors_as_given
from deepinfer_cli.settings.layers import Resolved

_WAIT_S = 60.0


def run_as_rank(resolved: Resolved, run: Callable[[], int]) -> int:
    """Call ``run`` in the first or only process; serve as a rank in the others."""
    settings = resolved.settings
    with errors_as_given(resolved.origins):
        sizes = ParallelSizes(
            expert_parallel_size=settings.expert_parallel_size,
            tensor_parallel_size=settings.tensor_parallel_size,
            pipeline_parallel_size=settings.pipeline_parallel_size,
            prefill_ranks=settings.prefill_ranks,
            decode_ranks=settings.decode_ranks,
        )
    place = launched_place(os.environ, sizes.world_size)
    if place is None:
        return run()
    if place.rank > 0:
        from deepinfer.ranks.launched_rank import serve

        serve(place)
        return 0
    try:
        return run()
    finally:
        from deepinfer.engine.parallel.launched import let_go

        let_go(place, _WAIT_S)
