"""Hyper-connections: the reference on a CPU, Triton or Gluon kernels on a GPU."""

from __future__ import annotations

from torch import Tensor

from deepinfer.kernels.moe.pair_outputs import PairOutputs
from deepinfer.kernels.placement import on_accelerator

from .reference import (
    Entrance,
    Entry,
    HyperMix,
    Mixer,
    advance_streams_reference,
    collapse_streams_reference,
    enter_streams_reference,
    expand_streams_reference,
)


def collapse_streams(streams: Tensor, pre: Tensor) -> Tensor:
    """See ``collapse_streams_reference``."""
    if on_accelerator(streams):
        from .triton_kernel import collapse_streams_triton

        return collapse_streams_triton(streams, pre)
    return collapse_streams_reference(streams, pre)


def expand_streams(streams: Tensor, output: Tensor | PairOutputs, mix: HyperMix) -> Tensor:
    """See ``expand_streams_reference``; on a GPU ``PairOutputs`` are summed first."""
    if on_accelerator(streams):
        from .triton_kernel import expand_streams_triton

        return expand_streams_triton(streams, output, mix)
    assert isinstance(output, Tensor)
    return expand_streams_reference(streams, output, mix)


def enter_streams(streams: Tensor, pre: Tensor, mixer: Mixer, entrance: Entrance) -> Entry:
    """See ``enter_streams_reference``."""
    if on_accelerator(streams):
        from .triton_kernel import enter_streams_triton

        return enter_streams_triton(streams, pre, mixer, entrance)
    return enter_streams_reference(streams, pre, mixer, entrance)


def advance_streams(
    streams: Tensor, output: Tensor | PairOutputs, mix: HyperMix, mixer: Mixer, entrance: Entrance
) -> tuple[Tensor, Entry]:
    """See ``advance_streams_reference``; on a GPU ``PairOutputs`` are summed first."""
    if on_accelerator(streams):
        from .triton_kernel import advance_streams_triton

        return advance_streams_triton(streams, output, mix, mixer, entrance)
    assert isinstance(output, Tensor)
    return advance_streams_reference(streams, output, mix, mixer, entrance)
