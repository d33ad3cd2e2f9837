"""The steps of an exchange, and copies of blocks.  On a CPU ranks exchange through gloo."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepinfer.errors import TensorError

from .layout import ExchangeLayout
from .reference import copy_blocks_reference

if TYPE_CHECKING:
    from deepinfer.kernels.gemm.expert_rows import ExpertRows


def token_block(device: torch.device) -> int:
    """How many numbers of a token share a scale: as experts on ``device`` take them."""
    from deepinfer.kernels.gemm.matrix_path import MatrixPath

    return MatrixPath.of(device).block


def send_tokens(
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
    """``send_tokens_triton``."""
    from .triton_launch import send_tokens_triton

    return send_tokens_triton(layout, peers, rank, rounds, x, ids, weights, table, most_tokens)


def receive_tokens(
    layout: ExchangeLayout, own: Tensor, rounds: Tensor, most_tokens: int
) -> tuple[Tensor, Tensor]:
    """``receive_tokens_triton``."""
    from .triton_launch import receive_tokens_triton

    return receive_tokens_triton(layout, own, rounds, most_tokens)


def send_results(
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
    """``send_results_triton``."""
    from .triton_launch import send_results_triton

    place = (layout, peers, rank, rounds)
    send_results_triton(*place, outputs, rows, most_tokens, part, first_column)


def end_round(
    layout: ExchangeLayout, own: Tensor, rounds: Tensor, most_tokens: int, num_parts: int = 1
) -> None:
    """``end_round_triton``."""
    from .triton_launch import end_round_triton

    end_round_triton(layout, own, rounds, most_tokens, num_parts)


def copy_blocks(source: Tensor, rows: Tensor, address: int, targets: Tensor) -> None:
    """``copy_blocks_reference``.  Raises: TensorError for other shapes or dtypes."""
    ok = source.dim() == 2 and source.dtype == torch.uint8 and source.is_contiguous()
    if not ok or rows.shape != targets.shape or rows.dtype != torch.int64:
        raise TensorError(
            f"copy_blocks: expected contiguous [B, n] bytes and as many rows as targets, found "
            f"{source.dtype} {list(source.shape)}, {list(rows.shape)} and {list(targets.shape)}"
        )
    if not source.is_cuda:
        copy_blocks_reference(source, rows, address, targets)
        return
    from .triton_launch import copy_blocks_triton

    copy_blocks_triton(source, rows, address, targets)
