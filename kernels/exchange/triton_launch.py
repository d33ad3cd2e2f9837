"""Launches of the kernels that exchange tokens between the GPUs of a host; ``triton_kernel``."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.gemm.activations import Activations
from deepinfer.kernels.gemm.expert_rows import ExpertRows
from deepinfer.kernels.gemm.k_order import KOrder
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.launch import cdiv, check_tensor, describe, next_power_of_2
from deepinfer.kernels.relaunch import launch

from .arrivals import Arrivals
from .buffers import Buffers
from .triton_arrivals import gather_kernel
from .triton_kernel import (
    copy_blocks_kernel,
    end_round_kernel,
    heads_kernel,
    receive_tokens_kernel,
    send_rows_kernel,
)

_COPIED_BYTES = 8192  # of a block, by one program
_HEADS = 4  # by one program
_READ_ROWS = 32  # of places and weights, by one program
_MOVED_ROWS = 2  # of experts, by one program at a time
_SENT_ROWS = 4  # of results, by one program
_MOST_SENDERS = 128  # programs
_MOST_MOVERS = 2112  # 16 for each multiprocessor of an H200


def make_heads_triton(
    buffers: Buffers,
    tokens: Activations,
    ids: Tensor,
    weights: Tensor,
    table: tuple[Tensor, Tensor, Tensor],
    most_tokens: int,
) -> Tensor:
    """Heads of this rank's T tokens into its own buffer, and the number of the round.

    Shapes: ids [T, K] i64, weights [T, K] f32; ``table`` as (rank, place) [E, M] i64 and count [E]
    i64 of the replicas.  Returns where each choice's result will be, [T K] i32 rows of
    ``Buffers.results``, -1 for those that will not come.
    Raises: TensorError for a wrong dtype, shape or layout, and for more tokens than there is room
    for.
    """
    layout, own = buffers.layout, buffers.own
    count, choices = len(tokens.values), layout.num_choices
    check_tensor("ids", ids, torch.int64, (count, choices), ids)
    check_tensor("weights", weights, torch.float32, (count, choices), ids)
    layout.check_room(count, most_tokens)
    _check_table(*table)
    assert tokens.scales is not None and layout.block == tokens.path.block
    result_row = torch.empty(count * choices, dtype=torch.int32, device=own.device)
    scales = layout.hidden_size // layout.block
    launch(heads_kernel, (cdiv(most_tokens, _HEADS),))(
        ids, weights, tokens.scales, *table, own[buffers.heads_of(buffers.rank)], buffers.sent,
        buffers.rounds, result_row, count, most_tokens, tokens.scale_stride, buffers.rank,
        table[0].shape[1],
        CHOICES=choices,
        PADDED=next_power_of_2(choices),
        SCALES=scales,
        BLOCKS=next_power_of_2(scales),
        HEAD_BYTES=layout.head_bytes,
        PATH=int(tokens.path),
        TOKENS=_HEADS,
        enable_fp_fusion=True,
    )  # fmt: skip
    return result_row


def _check_table(rank: Tensor, place: Tensor, count: Tensor) -> None:
    is_whole = all(x.dtype == torch.int64 and x.is_contiguous() for x in (rank, place, count))
    fits = rank.dim() == 2 and rank.shape == place.shape and count.shape == rank.shape[:1]
    if not is_whole or not fits:
        raise TensorError(
            "table: expected contiguous rank and place [E, M] i64 and count [E] i64, found "
            + ", ".join(describe(x) for x in (rank, place, count))
        )


def receive_tokens_triton(buffers: Buffers, most_tokens: int) -> tuple[Tensor, Tensor]:
    """Wait for all tokens of this round.

    Returns places [N, K] i64, -1 where a choice is not here, and weights [N, K] f32.
    """
    layout, own = buffers.layout, buffers.own
    layout.check_room(0, most_tokens)
    count, choices = layout.num_ranks * most_tokens, layout.num_choices
    places = torch.empty(count, choices, dtype=torch.int64, device=own.device)
    weights = torch.empty(count, choices, dtype=torch.float32, device=own.device)
    launch(receive_tokens_kernel, (cdiv(count, _READ_ROWS),))(
        own[layout.heads :], buffers.sent, buffers.rounds, places, weights,
        most_tokens, layout.capacity, buffers.rank,
        RANKS=layout.num_ranks,
        CHOICES=choices,
        PADDED=next_power_of_2(choices),
        SCALES=layout.hidden_size // layout.block,
        HEAD_BYTES=layout.head_bytes,
        ROWS=_READ_ROWS,
        FLAGS=128,
        num_warps=4,
        enable_fp_fusion=True,
    )  # fmt: skip
    return places, weights


def gather_tokens_triton(
    arrivals: Arrivals, rows: ExpertRows, path: MatrixPath, order: KOrder
) -> Activations:
    """What ``quantize_activations`` would give for ``rows`` of the arrivals, from their bytes."""
    buffers, layout = arrivals.buffers, arrivals.buffers.layout
    assert layout.block == path.block, "sent in other blocks than the experts read"
    width, own = layout.hidden_size, buffers.own
    out = Activations.empty(len(rows.pair), width, path, order, own.device)
    values, scales = out.values.view(torch.int32), out.scales
    programs = min(cdiv(len(rows.pair), _MOVED_ROWS), _MOST_MOVERS)
    launch(gather_kernel, (programs,))(
        own, own[layout.heads :], arrivals.tokens.values.view(torch.uint8), rows.pair, rows.used,
        values, values if scales is None else scales, out.scale_stride,
        arrivals.most_tokens, layout.capacity, buffers.rank,
        CHOICES=layout.num_choices,
        WIDTH=width,
        BLOCK=layout.block,
        HEAD_BYTES=layout.head_bytes,
        WORDS=next_power_of_2(width // 4),
        BLOCKS=next_power_of_2(width // layout.block),
        ROWS=_MOVED_ROWS,
        PATH=int(path),
        ORDER=int(out.order),
        enable_fp_fusion=True,
    )  # fmt: skip
    return out


def send_rows_triton(arrivals: Arrivals, outputs: Tensor, rows: ExpertRows) -> None:
    """Write outputs [R, d] bf16 of experts to where the tokens of ``rows`` came from."""
    width, choices = arrivals.buffers.layout.hidden_size, arrivals.buffers.layout.num_choices
    check_tensor("outputs", outputs, torch.bfloat16, (len(rows.pair), width), rows.pair)
    launch(send_rows_kernel, (min(_MOST_SENDERS, cdiv(len(outputs), _SENT_ROWS)),))(
        outputs.view(torch.int16), rows.pair, rows.used, arrivals.buffers.homes,
        arrivals.most_tokens,
        CHOICES=choices,
        WIDTH=width,
        COLUMNS=next_power_of_2(width),
        ROWS=_SENT_ROWS,
        num_warps=8,
        enable_fp_fusion=True,
    )  # fmt: skip


def end_round_triton(buffers: Buffers) -> None:
    """Say that all results of this rank are where they belong, wait for those of this round, and
    count it."""
    layout = buffers.layout
    launch(end_round_kernel, (1,))(
        buffers.returned, buffers.homes, buffers.rounds, buffers.rank,
        layout.returned - layout.results,
        RANKS=layout.num_ranks,
        FLAGS=32,
        num_warps=1,
        enable_fp_fusion=True,
    )  # fmt: skip


def copy_blocks_triton(source: Tensor, rows: Tensor, address: int, targets: Tensor) -> None:
    """As ``copy_blocks_reference``."""
    width = source.shape[1]
    is_wide = not (width % 16 or address % 16 or source.data_ptr() % 16)
    if len(rows):
        launch(copy_blocks_kernel, (len(rows), cdiv(width, _COPIED_BYTES)))(
            source.view(torch.int32) if is_wide else source, rows, address, targets,
            width // 4 if is_wide else width,
            IS_WIDE=is_wide, TILE=_COPIED_BYTES // 4 if is_wide else _COPIED_BYTES,
            enable_fp_fusion=True,
        )  # fmt: skip
