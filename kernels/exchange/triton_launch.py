"""Launches of the kernels that exchange tokens between the GPUs of a host; ``triton_kernel``."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from deepinfer.kernels.launch import bf16_pairs, check_tensor, has_native_fp8

from .layout import ExchangeLayout
from .triton_kernel import (
    copy_blocks_kernel,
    receive_results_kernel,
    receive_tokens_kernel,
    send_results_kernel,
    send_tokens_kernel,
)

_COPIED_BYTES = 8192  # of a block, by one program


def send_tokens_triton(
    layout: ExchangeLayout,
    peers: Tensor,
    rank: int,
    round_number: Tensor,
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    table: tuple[Tensor, Tensor, Tensor],
    most_tokens: int,
) -> Tensor:
    """Write each token to the ranks of its experts, and to all ranks that it was written.

    ``most_tokens`` is M: the same number on all ranks, at most the capacity.

    Shapes: peers [R] i64 addresses of the buffers, round_number [1] i32, x [T, d] bf16, ids [T, K]
    i64, weights [T, K] f32; ``table`` as (rank, place) [E, M] i64 and count [E] i64 of the
    replicas.  Returns the rank of each choice, [T, K] i32.
    """
    count, choices = ids.shape
    check_tensor("ids", ids, torch.int64, (len(x), layout.num_choices), x)
    check_tensor("weights", weights, torch.float32, (count, choices), x)
    pairs = bf16_pairs("x", x)
    ranks = torch.empty(count, choices, dtype=torch.int32, device=x.device)
    table_rank, table_place, table_count = table
    send_tokens_kernel[(most_tokens,)](
        pairs, ids, weights, table_rank, table_place, table_count, peers, round_number, ranks,
        count, pairs.stride(0), rank, layout.capacity, layout.arrived, table_rank.shape[1],
        RANKS=layout.num_ranks,
        CHOICES=choices,
        PADDED=triton.next_power_of_2(choices),
        WIDTH=layout.hidden_size,
        BLOCKS=triton.next_power_of_2(layout.hidden_size // 32),
        ROW_BYTES=layout.row_bytes,
        NATIVE=has_native_fp8(x.device),
        num_warps=8,
        enable_fp_fusion=True,
    )  # fmt: skip
    return ranks


def receive_tokens_triton(
    layout: ExchangeLayout, own: Tensor, round_number: Tensor, most_tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Wait for all arrivals of this round in ``own``, this rank's buffer [num_bytes] u8.

    Returns x [N, d] bf16 (undefined for tokens without an expert here), places [N, K] i64 (-1 where
    a choice is not here) and weights [N, K] f32.
    """
    rows, choices = layout.num_ranks * most_tokens, layout.num_choices
    x = torch.empty(rows, layout.hidden_size, dtype=torch.bfloat16, device=own.device)
    places = torch.empty(rows, choices, dtype=torch.int64, device=own.device)
    weights = torch.empty(rows, choices, dtype=torch.float32, device=own.device)
    receive_tokens_kernel[(rows,)](
        own, own[layout.arrived :].view(torch.int32), round_number, x.view(torch.int32), places,
        weights, most_tokens, layout.capacity,
        CHOICES=choices,
        PADDED=triton.next_power_of_2(choices),
        WIDTH=layout.hidden_size,
        BLOCKS=triton.next_power_of_2(layout.hidden_size // 32),
        ROW_BYTES=layout.row_bytes,
        num_warps=8,
        enable_fp_fusion=True,
    )  # fmt: skip
    return x, places, weights


def send_results_triton(
    layout: ExchangeLayout,
    peers: Tensor,
    rank: int,
    round_number: Tensor,
    outputs: Tensor,
    row_of_pair: Tensor,
) -> None:
    """Write the expert outputs of arrivals to the ranks where the tokens are.

    Shapes: outputs [P, d] bf16, row_of_pair [N K] i32: row of each choice's output, -1 for none.
    """
    choices = layout.num_choices
    rows = len(row_of_pair) // choices
    check_tensor("row_of_pair", row_of_pair, torch.int32, (rows * choices,), outputs)
    check_tensor("outputs", outputs, torch.bfloat16, (None, layout.hidden_size), outputs)
    send_results_kernel[(rows, choices if layout.is_exact else 1)](
        outputs.view(torch.int16), row_of_pair, peers, round_number,
        rank, rows // layout.num_ranks, layout.results, layout.returned,
        CHOICES=choices,
        SLOTS=layout.num_slots,
        WIDTH=layout.hidden_size,
        IS_EXACT=layout.is_exact,
        COLUMNS=triton.next_power_of_2(layout.hidden_size),
        num_warps=8,
        enable_fp_fusion=True,
    )  # fmt: skip


def receive_results_triton(
    layout: ExchangeLayout, own: Tensor, round_number: Tensor, ranks: Tensor
) -> Tensor:
    """Wait for the results of this rank's tokens and add them in the order of slots: choices in the
    exact form, ranks in the reduced one.  ``ranks`` is from ``send_tokens``; returns [T, d] f32."""
    count, width = len(ranks), layout.hidden_size
    out = torch.empty(count, width, dtype=torch.float32, device=own.device)
    if count:
        receive_results_kernel[(count,)](
            own[layout.results :].view(torch.int16), own[layout.returned :].view(torch.int32),
            round_number, ranks, out,
            CHOICES=ranks.shape[1],
            PADDED=triton.next_power_of_2(ranks.shape[1]),
            SLOTS=layout.num_slots,
            WIDTH=width,
            IS_EXACT=layout.is_exact,
            COLUMNS=triton.next_power_of_2(width),
            num_warps=8,
            enable_fp_fusion=True,
        )  # fmt: skip
    return out


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
