"""Programs that pass over streams meet equally often, whatever the number of tokens, so that each
launch finds the counters as one before it might have left them."""

from __future__ import annotations

import pytest
import torch

from deepinfer.bench.kernels.rows import stream_case
from deepinfer.kernels.hyper_connection import advance_streams
from deepinfer.kernels.launch import is_hopper, multiprocessors

_SLICES, _TILE = 32, 64

pytestmark = pytest.mark.gpu


def test_all_programs_meet_equally_often() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    if not is_hopper(device):
        pytest.skip("kernels of SM90")
    from deepinfer.kernels.hyper_connection.gluon_launch import barrier_counters

    most = multiprocessors(device) // _SLICES
    counters = barrier_counters(device, _SLICES, most)
    for tokens in (64, 300, 5000, 640, 4097):
        before = counters.clone()
        advance_streams(*stream_case(tokens))
        tiles = -(-tokens // _TILE)
        of_each = [len(range(first, tiles, most)) for first in range(most)]
        expected = [_SLICES * max(0, count - 1) for count in of_each]
        assert (counters - before)[:, 0].tolist() == expected
