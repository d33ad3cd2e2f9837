"""Compiles what the Hopper launchers of attention, scores and streams launch; prints JSON lines.

    python hopper_cases.py [all]

A script of its own because the kernels of the test process are interpreted.  It needs no GPU.
"""

from __future__ import annotations

import json
import sys
from functools import partial

import torch

from deepinfer.kernels.attention.gluon_launch import sparse_attention_gluon
from deepinfer.kernels.compile_task import task_of
from deepinfer.kernels.compile_worker import compile_task
from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.gemm.activations import Activations
from deepinfer.kernels.gemm.k_order import KOrder
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.hyper_connection import Entrance, HyperMix, Mixer
from deepinfer.kernels.hyper_connection.gluon_launch import (
    finish_streams_gluon,
    pass_streams_gluon,
)
from deepinfer.kernels.indexer.gluon_launch import (
    listed_index_scores_gluon,
    paged_index_scores_gluon,
)
from deepinfer.kernels.rehearsal import PretendedDevice, rehearse


def launch(every: bool) -> None:
    """The released model: whole lists of many rows with quantised results, which take the most
    registers, scores, one tile of streams; or more of these, few rows, pieces, no lists of
    compressed keys, all that is optional, lists of blocks, the other order of quantised rows."""
    byte, long = partial(torch.zeros, dtype=torch.uint8), partial(torch.zeros, dtype=torch.int64)
    q, sink, rope = torch.zeros(3, 64, 512).bfloat16(), torch.zeros(64), torch.zeros(3, 64)
    main, none = (byte(999, 288), long(3, 512)), (None, None)
    forms = [(999, main, None, True)]
    more = [
        (9, main, None, False),
        (9, main, None, True),
        (999, main, None, False),
        (999, main, 128, False),
        (999, main, 128, True),
    ]
    more.append((999, none, None, False))
    for num_rows, (rows, picks), pieces, quantized in forms + more if every else forms:
        window, keys = byte(num_rows, 528), None if rows is None else rows[:num_rows]
        sparse_attention_gluon(
            q, window, long(3, 128), keys, picks, sink, 1.0,
            rope=(rope, rope), piece_keys=pieces, quantized=quantized,
        )  # fmt: skip
    if every:
        sparse_attention_gluon(
            q, byte(9, 528), long(3, 128), byte(9, 288), long(3, 512), sink, 1.0,
            rope=(rope, rope), quantized=True, lse=torch.zeros(3, 64), q_norm_eps=1e-6,
        )  # fmt: skip
    pool, table = byte(4, 64, 68), long(2, 4)
    for count in (3, 9):  # fewer and more than four of each request
        operands = (
            byte(count, 32, 68),
            torch.zeros(count, 32).bfloat16(),
            pool,
            table,
            long(count),
        )
        paged_index_scores_gluon(*operands, long(count), 256)
    if every:
        listed_index_scores_gluon(*operands, long(9, 32), long(9), block_size=8)
    mixer = Mixer(Weight(torch.zeros(24, 4 * 5120)), torch.zeros(3), torch.zeros(24), 20, 1e-6)
    for count in (3, 65) if every else (65,):  # tiles of 16 tokens, and of 64
        streams, row = torch.zeros(count, 4, 5120).bfloat16(), torch.zeros(count, 5120).bfloat16()
        square = torch.zeros(count, 4, 4)
        mix = HyperMix(square[:, 0].contiguous(), square[:, 1].contiguous(), square)
        sums = torch.zeros(32, count, 24), torch.zeros(32, count)
        advanced = (row, mix, streams.clone())
        for form in (advanced, (None, None, None)) if every else (advanced,):
            pass_streams_gluon(streams, *form, mix.pre, row, mixer, *sums)
        entrance = Entrance(row[0], 1e-6, mixer.fn)
        for order in (KOrder.PLAIN, KOrder.FRAGMENT) if every else (KOrder.PLAIN,):
            acts = Activations.empty(count, 5120, MatrixPath.FP8, order, row.device)
            finish_streams_gluon(row, *sums, mixer, entrance, mix, acts)


def main() -> None:
    with rehearse(PretendedDevice((9, 0))) as launches:
        launch(every="all" in sys.argv)
    for noted in launches.values():
        task = task_of(noted) | {"target": ["cuda", 90, 32]}
        print(json.dumps({"kernel": noted.kernel.__name__} | compile_task(task)))


if __name__ == "__main__":
    main()
