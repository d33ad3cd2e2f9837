"""Launchers of ``gluon_kernel.py`` and ``gluon_finish.py``: hyper-connections on NVIDIA SM90."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from deepinfer.kernels.gemm.activations import GROUP, Activations
from deepinfer.kernels.gemm.gluon_tiles import described_tiles
from deepinfer.kernels.launch import cdiv, multiprocessors, next_power_of_2
from deepinfer.kernels.norm.triton_kernel import norm_operands
from deepinfer.kernels.relaunch import launch

from .gluon_barrier import COUNTER_STRIDE
from .gluon_coefficients import MADE_TOKENS
from .gluon_finish import finish_gluon_kernel
from .gluon_kernel import advance_kernel
from .gluon_producer import PADDED_ROWS, TOKENS, WIDTH
from .reference import Entrance, HyperMix, Mixer

# With more, programs drift further apart: slower, although more loads are in flight.
_STAGES = 4
# Up to so many tokens, tiles have 16 tokens.
_FEW, _TILE_OF_FEW = 64, 16


def pass_streams_gluon(
    streams: Tensor,
    output: Tensor | None,
    mix: HyperMix | None,
    expanded: Tensor | None,
    pre: Tensor,
    collapsed: Tensor,
    mixer: Mixer,
    products: Tensor,
    squares: Tensor,
) -> None:
    """Fill ``expanded`` and ``collapsed``, ``products`` and ``squares``; at least one token."""
    tokens, _, width = streams.shape
    tile_tokens = _TILE_OF_FEW if tokens <= _FEW else TOKENS.value
    tile = tile_tokens, WIDTH.value
    x = described_tiles(streams.reshape(tokens, -1), *tile)
    kept = described_tiles(collapsed, *tile)
    fn = mixer.fn.bf16_parts.flatten(0, 1)
    slices = squares.shape[0]
    # As many programs as fit on the device at once, the same number for each slice.
    most = max(1, multiprocessors(streams.device) // slices)
    launch(advance_kernel, (slices, min(most, cdiv(tokens, tile_tokens))))(
        x,
        kept if output is None else described_tiles(output, *tile),
        described_tiles(fn, PADDED_ROWS.value, WIDTH.value),
        x if expanded is None else described_tiles(expanded.view(tokens, -1), *tile),
        kept,
        pre if mix is None else mix.post,
        pre if mix is None else mix.comb,
        pre,
        products,
        squares,
        barrier_counters(streams.device, slices, most),
        tokens,
        width,
        EXPAND=expanded is not None,
        STEPS=width // slices // WIDTH.value,
        STAGES=_STAGES,
        num_warps=4,
        enable_fp_fusion=True,
    )


@cache
def barrier_counters(device: torch.device, slices: int, most: int) -> Tensor:
    """Barrier counters, one for each of ``most`` groups of ``slices`` programs that process the
    same tiles.  They only grow: all launches with as many slices share them."""
    return torch.zeros(most, COUNTER_STRIDE.value, dtype=torch.int64, device=device)


def finish_streams_gluon(
    rows: Tensor,
    products: Tensor,
    squares: Tensor,
    mixer: Mixer,
    entrance: Entrance,
    mix: HyperMix,
    acts: Activations,
) -> None:
    """Fill ``mix`` and ``acts`` (FP8), and normalize ``rows`` in place; at least one token."""
    tokens, width = rows.shape
    pairs, weight = norm_operands(rows, entrance.weight)
    launch(finish_gluon_kernel, (tokens + cdiv(tokens, MADE_TOKENS.value),))(
        pairs,
        weight,
        *acts.writer,
        acts.scale_stride,
        entrance.eps,
        products,
        squares,
        mixer.scale,
        mixer.base,
        *mix,
        tokens,
        1.0 / (mix.pre.shape[1] * width),
        mixer.eps,
        D=width,
        BLOCKS=next_power_of_2(width // GROUP),
        ORDER=int(acts.order),
        SLICES=squares.shape[0],
        ROUNDS=mixer.iterations,
        num_warps=4,
        launch_pdl=True,
        enable_fp_fusion=True,
    )
