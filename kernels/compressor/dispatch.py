"""Compression: the reference on a CPU, a Triton kernel on a GPU."""

from __future__ import annotations

from torch import Tensor

from deepinfer.kernels.placement import on_accelerator

from .reference import pool_tokens_reference


def pool_tokens(
    key_gate: Tensor,
    ring: Tensor,
    slots: Tensor,
    positions: Tensor,
    offsets: Tensor,
    places: Tensor,
) -> Tensor:
    """See ``pool_tokens_reference``."""
    arguments = (key_gate, ring, slots, positions, offsets, places)
    if on_accelerator(key_gate):
        from .triton_kernel import pool_tokens_triton

        return pool_tokens_triton(*arguments)
    return pool_tokens_reference(*arguments)
