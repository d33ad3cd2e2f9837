"""Checks of the rotary tables that GPU kernels take."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.launch import check_tensor, describe, sizes


def check_rope(
    rope: tuple[Tensor, Tensor], width: int, like: Tensor, tokens: int | None = None
) -> None:
    """Check cos and sin [T, R] f32 of ``rope_table`` on the device of ``like``, for rows of
    ``width``; T is ``tokens`` if given.

    Raises: TensorError that names the table, what was expected and what was found.
    """
    found, rotary = sizes("rope[0]", rope[0], 2)
    for number, table in enumerate(rope):
        shape = (found if tokens is None else tokens, rotary)
        check_tensor(f"rope[{number}]", table, torch.float32, shape, like)
    if rotary % 2 or rotary > width:
        raise TensorError(
            f"rope: expected an even number of at most {width} columns, found {describe(rope[0])}"
        )
