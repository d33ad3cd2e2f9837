"""The steps of an expert exchange, and copies of blocks.  CPU ranks exchange through gloo
instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepinfer.errors import TensorError

from .buffers import Buffers
from .reference import copy_blocks_reference

if TYPE_CHECKING:
    from deepinfer.kernels.gemm.activations import Activations
    from deepinfer.kernels.norm import NormedRows


def token_block(device: torch.device) -> int:
    """How many values of a token share a scale, as the expert GEMMs on ``device`` expect."""
    from deepinfer.kernels.gemm.matrix_path import MatrixPath

    return MatrixPath.of(device).block


def sendable(rows: NormedRows) -> Activations:
    """Tokens quantized as the expert GEMMs on their device expect; often the norm has done that."""
    from deepinfer.kernels.gemm.activations import Activations, quantize_activations
    from deepinfer.kernels.gemm.k_order import KOrder
    from deepinfer.kernels.gemm.matrix_path import MatrixPath

    found = rows.operand
    if isinstance(found, Activations) and found.scales is not None and found.order is KOrder.PLAIN:
        return found
    is_fp8 = MatrixPath.of(rows.values.device) is MatrixPath.FP8
    path = MatrixPath.FP8 if is_fp8 else MatrixPath.SCALED
    return quantize_activations(rows.values, path, KOrder.PLAIN)


def make_heads(
    buffers: Buffers,
    tokens: Activations,
    ids: Tensor,
    weights: Tensor,
    table: tuple[Tensor, Tensor, Tensor],
    most_tokens: int,
) -> Tensor:
    """``make_heads_triton``."""
    from .triton_launch import make_heads_triton

    return make_heads_triton(buffers, tokens, ids, weights, table, most_tokens)


def copy_tokens(buffers: Buffers, tokens: Activations, peer: int, most_tokens: int) -> None:
    """Copy this rank's tokens to ``peer``, then their headers, then the round number.

    On a GPU, copy engines do this, in order on the current stream.
    """
    own, there, layout = buffers.own, buffers.peers[peer], buffers.layout
    layout.check_room(len(tokens.values), most_tokens)
    values = tokens.values.view(torch.uint8).flatten()
    start = buffers.values_of(buffers.rank).start
    there[start : start + len(values)].copy_(values)
    start = buffers.heads_of(buffers.rank).start
    heads = slice(start, start + most_tokens * layout.head_bytes)
    there[heads].copy_(own[heads])
    number = buffers.sent_by(buffers.rank)
    there[number].copy_(own[number])


def receive_tokens(buffers: Buffers, most_tokens: int) -> tuple[Tensor, Tensor]:
    """``receive_tokens_triton``."""
    from .triton_launch import receive_tokens_triton

    return receive_tokens_triton(buffers, most_tokens)


def end_round(buffers: Buffers) -> None:
    """``end_round_triton``."""
    from .triton_launch import end_round_triton

    end_round_triton(buffers)


def copy_blocks(source: Tensor, rows: Tensor, address: int, targets: Tensor) -> None:
    """``copy_blocks_reference``.  Raises: TensorError for other shapes or dtypes."""
    ok = source.dim() == 2 and source.dtype == torch.uint8 and source.is_contiguous()
    ok = ok and rows.dim() == 1 and rows.shape == targets.shape
    if not ok or not all(x.dtype == torch.int64 and x.is_contiguous() for x in (rows, targets)):
        raise TensorError(
            "copy_blocks: expected contiguous source [B, n] u8, rows and targets [M] i64, found "
            + ", ".join(f"{x.dtype} {list(x.shape)}" for x in (source, rows, targets))
        )
    if not source.is_cuda:
        copy_blocks_reference(source, rows, address, targets)
        return
    from .triton_launch import copy_blocks_triton

    copy_blocks_triton(source, rows, address, targets)
