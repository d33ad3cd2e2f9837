"""Engram on the device of its tensors."""

from __future__ import annotations

from torch import Tensor

from .reference import engram_gate_reference, engram_hash_reference, engram_lookup_reference


def engram_hash(lookback: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor) -> Tensor:
    """See ``engram_hash_reference``."""
    if lookback.is_cuda:
        from .triton_kernel import engram_hash_triton

        return engram_hash_triton(lookback, multipliers, primes, offsets)
    return engram_hash_reference(lookback, multipliers, primes, offsets)


def engram_lookup(table: Tensor, scales: Tensor, rows: Tensor) -> Tensor:
    """See ``engram_lookup_reference``; for rows [T, C] on a GPU the table may lie elsewhere.

    A table in pinned host memory is read by the GPU itself.  For one in other host memory, such as
    a mapped file, the CPU looks the rows up: correct at any size, but it waits for the GPU.
    """
    if rows.is_cuda and (table.is_cuda or table.is_pinned()):
        from .triton_kernel import engram_lookup_triton

        return engram_lookup_triton(table, scales, rows)
    return engram_lookup_reference(table, scales, rows.to(table.device)).to(rows.device)


def engram_gate(streams: Tensor, key_value: Tensor, q_weight: Tensor, k_weight: Tensor) -> Tensor:
    """See ``engram_gate_reference``."""
    if streams.is_cuda:
        from .triton_kernel import engram_gate_triton

        return engram_gate_triton(streams, key_value, q_weight, k_weight)
    return engram_gate_reference(streams, key_value, q_weight, k_weight)
