"""Hyper-connections on the device of their tensors."""

from __future__ import annotations

from torch import Tensor

from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.placement import on_accelerator

from .reference import (
    HyperMix,
    collapse_streams_reference,
    expand_streams_reference,
    hyper_mix_reference,
)


def hyper_mix(
    streams: Tensor, fn: Weight, scale: Tensor, base: Tensor, *, iterations: int, eps: float
) -> HyperMix:
    """See ``hyper_mix_reference``."""
    if on_accelerator(streams):
        from .triton_kernel import hyper_mix_triton

        return hyper_mix_triton(streams, fn, scale, base, iterations=iterations, eps=eps)
    return hyper_mix_reference(streams, fn, scale, base, iterations=iterations, eps=eps)


def collapse_streams(streams: Tensor, pre: Tensor) -> Tensor:
    """See ``collapse_streams_reference``."""
    if on_accelerator(streams):
        from .triton_kernel import collapse_streams_triton

        return collapse_streams_triton(streams, pre)
    return collapse_streams_reference(streams, pre)


def expand_streams(streams: Tensor, output: Tensor, mix: HyperMix) -> Tensor:
    """See ``expand_streams_reference``."""
    if on_accelerator(streams):
        from .triton_kernel import expand_streams_triton

        return expand_streams_triton(streams, output, mix)
    return expand_streams_reference(streams, output, mix)


def advance_streams(
    streams: Tensor,
    output: Tensor,
    mix: HyperMix,
    fn: Weight,
    scale: Tensor,
    base: Tensor,
    *,
    iterations: int,
    eps: float,
) -> tuple[Tensor, HyperMix, Tensor]:
    """What lies between two sub-blocks: expand, mix what came out, collapse it with ``mix.pre``.

    Shapes: those of ``expand_streams`` and ``hyper_mix``; returns the new streams [T, S, d] bf16,
    their coefficients, and the next sub-block's input [T, d] bf16 before its norm.
    """
    if on_accelerator(streams):
        from .triton_kernel import advance_streams_triton

        return advance_streams_triton(
            streams, output, mix, fn, scale, base, iterations=iterations, eps=eps
        )
    expanded = expand_streams_reference(streams, output, mix)
    next_mix = hyper_mix_reference(expanded, fn, scale, base, iterations=iterations, eps=eps)
    return expanded, next_mix, collapse_streams_reference(expanded, mix.pre)
