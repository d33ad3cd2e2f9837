"""Launches of the kernels that exchange tokens between the GPUs of a host; ``triton_kernel``."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from deepinfer.kernels.gemm.activations import MOST_PROGRAMS, Activations
from deepinfer.kernels.gemm.expert_rows import ExpertRows
from deepinfer.kernels.gemm.k_order import KOrder
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.launch import bf16_pairs, check_tensor, has_native_fp8

from .layout import ExchangeLayout
from .triton_arrivals import gather_kernel
from .triton_kernel import (
    copy_blocks_kernel,
    end_round_kernel,
    receive_tokens_kernel,
    send_rows_kernel,
    send_sums_kernel,
    send_tokens_kernel,
)

_SENT_TOKENS = 4  # at once, by one program
_COPIED_BYTES = 8192  # of a block, by one program
_READ_ROWS = 128  # of places and weights, by one program
_MOST_FLAGS = 2048


def send_tokens_triton(
    layout: ExchangeLayout,
    peers: Tensor,
    rank: int,
    rounds: Tensor,
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    table: tuple[Tensor, Tensor, Tensor],
    most_tokens: int,
) -> Tensor:
    """Write each token to the ranks of its experts, and its choices to all ranks.

    ``most_tokens`` is M: the same number on all ranks, at most the capacity.

    Shapes: peers [R] i64 addresses of the buffers, rounds [1] i32 (ended so far), x [T, d] bf16,
    ids [T, K] i64, weights [T, K] f32; ``table`` as (rank, place) [E, M] i64 and count [E] i64 of
    the replicas.  Returns where each token's results will be, [T S] i32 rows of ``results_of``, -1
    for those that will not come.
    """
    count, choices = ids.shape
    check_tensor("ids", ids, torch.int64, (len(x), layout.num_choices), x)
    check_tensor("weights", weights, torch.float32, (count, choices), x)
    pairs = bf16_pairs("x", x)
    result_row = torch.empty(count * layout.num_slots, dtype=torch.int32, device=x.device)
    table_rank, table_place, table_count = table
    send_tokens_kernel[(_senders(most_tokens),)](
        pairs, ids, weights, table_rank, table_place, table_count, peers, rounds, result_row,
        count, most_tokens, pairs.stride(0), rank, layout.capacity, layout.sent,
        table_rank.shape[1],
        RANKS=layout.num_ranks,
        CHOICES=choices,
        PADDED=triton.next_power_of_2(choices),
        WIDTH=layout.hidden_size,
        BLOCK=layout.block,
        BLOCKS=triton.next_power_of_2(layout.hidden_size // layout.block),
        ROW_BYTES=layout.row_bytes,
        PROGRAMS=layout.PROGRAMS,
        TOKENS=_SENT_TOKENS,
        NATIVE=has_native_fp8(x.device),
        IS_EXACT=layout.is_exact,
        num_warps=16,
        enable_fp_fusion=True,
    )  # fmt: skip
    return result_row


def receive_tokens_triton(
    layout: ExchangeLayout,
    own: Tensor,
    rounds: Tensor,
    most_tokens: int,
) -> tuple[Tensor, Tensor]:
    """Wait for all tokens of this round in ``own``, this rank's buffer [num_bytes] u8.

    Returns places [N, K] i64, -1 where a choice is not here, and weights [N, K] f32.
    """
    count, choices = layout.num_ranks * most_tokens, layout.num_choices
    places = torch.empty(count, choices, dtype=torch.int64, device=own.device)
    weights = torch.empty(count, choices, dtype=torch.float32, device=own.device)
    programs = _senders(most_tokens)
    receive_tokens_kernel[(triton.cdiv(count, _READ_ROWS),)](
        own, own[layout.sent :].view(torch.int32), rounds, places, weights,
        programs, most_tokens, layout.capacity,
        RANKS=layout.num_ranks,
        CHOICES=choices,
        PADDED=triton.next_power_of_2(choices),
        WIDTH=layout.hidden_size,
        BLOCK=layout.block,
        ROW_BYTES=layout.row_bytes,
        PROGRAMS=layout.PROGRAMS,
        ROWS=_READ_ROWS,
        FLAGS=_flags(layout.num_ranks),
        enable_fp_fusion=True,
    )  # fmt: skip
    return places, weights


def gather_tokens_triton(
    layout: ExchangeLayout,
    own: Tensor,
    most_tokens: int,
    rows: ExpertRows,
    path: MatrixPath,
    order: KOrder,
) -> Activations:
    """What ``quantize_activations`` would give for ``rows`` of the arrivals, from their bytes."""
    assert layout.block == path.block, "sent in other blocks than the experts read"
    width = layout.hidden_size
    out = Activations.empty(len(rows.pair), width, path, order, own.device)
    values, scales = out.values.view(torch.int32), out.scales
    gather_kernel[(min(len(rows.pair), MOST_PROGRAMS),)](
        own, rows.pair, rows.used, values, values if scales is None else scales, out.scale_stride,
        most_tokens, layout.capacity,
        CHOICES=layout.num_choices,
        WIDTH=width,
        BLOCK=layout.block,
        ROW_BYTES=layout.row_bytes,
        WORDS=triton.next_power_of_2(width // 4),
        BLOCKS=triton.next_power_of_2(width // layout.block),
        PATH=int(path),
        ORDER=int(out.order),
        enable_fp_fusion=True,
    )  # fmt: skip
    return out


def send_results_triton(
    layout: ExchangeLayout,
    peers: Tensor,
    rank: int,
    rounds: Tensor,
    outputs: Tensor,
    rows: ExpertRows,
    most_tokens: int,
    part: int = 0,
    first_column: int = 0,
) -> None:
    """Write outputs [R, c] bf16 of experts, some columns of them, to where the tokens came from.

    Every rank sends the same parts in every round.
    """
    check_tensor("outputs", outputs, torch.bfloat16, (None, None), outputs)
    width = outputs.shape[1]
    bits = outputs.view(torch.int16)
    flags = layout.returned + 4 * part * layout.num_ranks * layout.PROGRAMS
    place = (peers, rounds, rank, most_tokens, layout.results + 2 * first_column, flags)
    constants = {
        "RANKS": layout.num_ranks,
        "CHOICES": layout.num_choices,
        "WIDTH": layout.hidden_size,
        "PART": width,
        "COLUMNS": triton.next_power_of_2(width),
        "PROGRAMS": layout.PROGRAMS,
        "num_warps": 8,
    }
    grid = (_returners(layout, most_tokens),)
    if layout.is_exact:
        send_rows_kernel[grid](
            bits, rows.pair, rows.used, *place, ROWS=4, **constants, enable_fp_fusion=True
        )
    else:
        send_sums_kernel[grid](
            bits, rows.row, *place, ROWS=2, **constants, enable_fp_fusion=True
        )  # fmt: skip


def end_round_triton(
    layout: ExchangeLayout, own: Tensor, rounds: Tensor, most_tokens: int, num_parts: int = 1
) -> None:
    """Wait for all results of this round in ``own``, and count the round in ``rounds``."""
    end_round_kernel[(1,)](
        own[layout.returned :].view(torch.int32), rounds, _returners(layout, most_tokens),
        layout.num_ranks * num_parts,
        PROGRAMS=layout.PROGRAMS,
        FLAGS=_flags(layout.num_ranks * layout.MOST_PARTS),
        enable_fp_fusion=True,
    )  # fmt: skip


def copy_blocks_triton(source: Tensor, rows: Tensor, address: int, targets: Tensor) -> None:
    """As ``copy_blocks_reference``."""
    width = source.shape[1]
    is_wide = not (width % 16 or address % 16 or source.data_ptr() % 16)
    if len(rows):
        copy_blocks_kernel[(len(rows), triton.cdiv(width, _COPIED_BYTES))](
            source.view(torch.int32) if is_wide else source, rows, address, targets,
            width // 4 if is_wide else width,
            IS_WIDE=is_wide, TILE=_COPIED_BYTES // 4 if is_wide else _COPIED_BYTES,
            enable_fp_fusion=True,
        )  # fmt: skip


# The fewest programs that keep the link of an H200 busy, since others compute meanwhile; nearly all
# multiprocessors where a pass is so large that it does not matter.


def _senders(most_tokens: int) -> int:
    """Programs that send tokens."""
    limit = 32 if most_tokens <= 1024 else 64 if most_tokens <= 2048 else 128
    return min(limit, -(-most_tokens // _SENT_TOKENS))


def _returners(layout: ExchangeLayout, most_tokens: int) -> int:
    """Programs that send results; adding them up takes more, and tiles that are filled with rows of
    nobody, as those of few tokens are, take time to look through."""
    if most_tokens <= 128 or most_tokens > 2048:
        return min(128, most_tokens)
    return 32 if layout.is_exact else 64


def _flags(num_senders: int) -> int:
    """Flags looked at together: the same for all passes, so that they need the same kernels."""
    count = num_senders * ExchangeLayout.PROGRAMS
    return min(_MOST_FLAGS, 1 << (count - 1).bit_length())
