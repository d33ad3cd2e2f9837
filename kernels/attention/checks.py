"""Checks of the operands of both GPU implementations of sparse attention."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.launch import check_tensor, describe, sizes
from deepinfer.kernels.rope.checks import check_rope


def main_list(main_rows: Tensor | None, main_index: Tensor | None, window_index: Tensor) -> Tensor:
    """``main_index``, with no columns if there are no compressed rows.

    Raises: TensorError if one of them is given without the other.
    """
    if (main_rows is None) != (main_index is None):
        raise TensorError("main_rows, main_index: expected both or none, found only one")
    return window_index[..., :0] if main_index is None else main_index


def check_operands(
    q: Tensor,
    window_rows: Tensor,
    window_index: Tensor,
    main_rows: Tensor | None,
    main_index: Tensor,
    sink: Tensor,
    rope: tuple[Tensor, Tensor] | None,
    lse: Tensor | None,
) -> None:
    """Raises: TensorError that names the tensor, what was expected and what was found."""
    num_queries, heads, width = sizes("q", q, 3)
    if q.dtype != torch.bfloat16 or not width or width % 32:
        raise TensorError(
            f"q: expected bf16 with a positive multiple of 32 as head width, found {describe(q)}"
        )
    check_tensor("window_rows", window_rows, torch.uint8, (None, width + width // 32), q)
    check_tensor("window_index", window_index, torch.int64, (num_queries, None), q)
    check_tensor("sink", sink, torch.float32, (heads,), q)
    if main_rows is not None:
        check_tensor("main_rows", main_rows, torch.uint8, (None, width // 2 + width // 16), q)
        check_tensor("main_index", main_index, torch.int64, (num_queries, None), q)
    if rope is not None:
        check_rope(rope, width, q, num_queries)
    if lse is not None:
        check_tensor("lse", lse, torch.float32, (num_queries, heads), q)
