"""The four steps of an exchange, and copies of blocks.  On a CPU ranks exchange through gloo."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.errors import TensorError

from .layout import ExchangeLayout
from .reference import copy_blocks_reference


def send_tokens(
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
    """``send_tokens_triton``."""
    from .triton_launch import send_tokens_triton

    return send_tokens_triton(
        layout, peers, rank, round_number, x, ids, weights, table, most_tokens
    )


def receive_tokens(
    layout: ExchangeLayout, own: Tensor, round_number: Tensor, most_tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    """``receive_tokens_triton``."""
    from .triton_launch import receive_tokens_triton

    return receive_tokens_triton(layout, own, round_number, most_tokens)


def send_results(
    layout: ExchangeLayout,
    peers: Tensor,
    rank: int,
    round_number: Tensor,
    outputs: Tensor,
    row_of_pair: Tensor,
) -> None:
    """``send_results_triton``."""
    from .triton_launch import send_results_triton

    send_results_triton(layout, peers, rank, round_number, outputs, row_of_pair)


def receive_results(
    layout: ExchangeLayout, own: Tensor, round_number: Tensor, ranks: Tensor
) -> Tensor:
    """``receive_results_triton``."""
    from .triton_launch import receive_results_triton

    return receive_results_triton(layout, own, round_number, ranks)


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
