"""Launchers of the exchange kernels in ``triton_kernel.py`` and ``triton_arrivals.py``."""

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

_COPIED_BYTES = 8192  # of a block, per program
_HEADS = 4  # headers per program
_READ_ROWS = 32  # headers read per program
_MOVED_ROWS = 2  # tokens gathered per program at a time
_SENT_ROWS = 4  # results sent per program at a time
_MOST_SENDERS = 128  # programs
_MOST_MOVERS = 2112  # programs: 16 per SM of an H200


def make_heads_triton(
    buffers: Buffers,
    tokens: Activations,
    ids: Tensor,
    weights: Tensor,
    table: tuple[Tensor, Tensor, Tensor],
    most_tokens: int,
) -> Tensor:
    """Write the headers of this rank's T tokens and the round number to its own buffer.

    Shapes: ids [T, K] i64, weights [T, K] f32; ``table`` of the replicas of each expert: rank and
    index there [E, M] i64, and their number [E] i64.  Returns the row of ``Buffers.results`` for
    each pair, [T K] i32, -1 for those without an owner.
    Raises: TensorError for a wrong dtype, shape or layout, and if the capacity is exceeded.
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
        TOP_K=choices,
        TOP_K_PADDED=next_power_of_2(choices),
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

    Returns local expert indices [N, K] i64, -1 for experts of other ranks, and weights [N, K] f32.
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
        TOP_K=choices,
        TOP_K_PADDED=next_power_of_2(choices),
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
    """Gather the arrived tokens in the order of ``rows``, in the format of
    ``quantize_activations``."""
    buffers, layout = arrivals.buffers, arrivals.buffers.layout
    assert layout.block == path.block, "tokens were quantized in other blocks than experts expect"
    width, own = layout.hidden_size, buffers.own
    out = Activations.empty(len(rows.pair), width, path, order, own.device)
    values, scales = out.values.view(torch.int32), out.scales
    programs = min(cdiv(len(rows.pair), _MOVED_ROWS), _MOST_MOVERS)
    launch(gather_kernel, (programs,))(
        own, own[layout.heads :], arrivals.tokens.values.view(torch.uint8), rows.pair, rows.used,
        values, values if scales is None else scales, out.scale_stride,
        arrivals.most_tokens, layout.capacity, buffers.rank,
        TOP_K=layout.num_choices,
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
    """Store outputs [R, d] bf16 of experts where the tokens of ``rows`` came from."""
    width, choices = arrivals.buffers.layout.hidden_size, arrivals.buffers.layout.num_choices
    check_tensor("outputs", outputs, torch.bfloat16, (len(rows.pair), width), rows.pair)
    launch(send_rows_kernel, (min(_MOST_SENDERS, cdiv(len(outputs), _SENT_ROWS)),))(
        outputs.view(torch.int16), rows.pair, rows.used, arrivals.buffers.homes,
        arrivals.most_tokens,
        TOP_K=choices,
        WIDTH=width,
        COLUMNS=next_power_of_2(width),
        ROWS=_SENT_ROWS,
        num_warps=8,
        enable_fp_fusion=True,
    )  # fmt: skip


def end_round_triton(buffers: Buffers) -> None:
    """Signal that this rank has returned all results, wait for all others, and count the round."""
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
