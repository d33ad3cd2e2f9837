"""Engram: the reference on a CPU, Triton kernels on a GPU."""

from __future__ import annotations

from torch import Tensor

from deepinfer.kernels.placement import is_reached, on_accelerator

from .reference import engram_gate_reference, engram_hash_reference, engram_lookup_reference


def engram_hash(lookback: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor) -> Tensor:
    """See ``engram_hash_reference``."""
    if on_accelerator(lookback):
        from .triton_kernel import engram_hash_triton

        return engram_hash_triton(lookback, multipliers, primes, offsets)
    return engram_hash_reference(lookback, multipliers, primes, offsets)


def engram_lookup(table: Tensor, scales: Tensor, rows: Tensor) -> Tensor:
    """See ``engram_lookup_reference``; rows [T, C] may be on a device and the table elsewhere.

    If kernels cannot access the table (``is_reached``), such as a mapped file, the CPU looks up the
    rows: this works at any size, but synchronizes with the device.
    """
    if on_accelerator(rows) and is_reached(table, rows.device):
        from .triton_kernel import engram_lookup_triton

        return engram_lookup_triton(table, scales, rows)
    return engram_lookup_reference(table, scales, rows.to(table.device)).to(rows.device)


def engram_gate(streams: Tensor, key_value: Tensor, q_weight: Tensor, k_weight: Tensor) -> Tensor:
    """See ``engram_gate_reference``."""
    if on_accelerator(streams):
        from .triton_kernel import engram_gate_triton

        return engram_gate_triton(streams, key_value, q_weight, k_weight)
    return engram_gate_reference(streams, key_value, q_weight, k_weight)
