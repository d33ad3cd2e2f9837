"""Launches of ``gluon_kernel.py``: hyper-connections on NVIDIA SM90."""

from __future__ import annotations

from torch import Tensor

from deepinfer.kernels.gemm.gluon_tiles import described_tiles
from deepinfer.kernels.launch import cdiv, multiprocessors
from deepinfer.kernels.relaunch import launch

from .gluon_kernel import PADDED_ROWS, TOKENS, WIDTH, advance_kernel
from .reference import HyperMix, Mixer

_STAGES = 3


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
    """Fills ``expanded`` and ``collapsed``, ``products`` and ``squares``; at least a token."""
    tokens, _, width = streams.shape
    tile = TOKENS.value, WIDTH.value
    x = described_tiles(streams.reshape(tokens, -1), *tile)
    kept = described_tiles(collapsed, *tile)
    fn = mixer.fn.bf16_parts.flatten(0, 1)
    pieces = squares.shape[0]
    # As many programs as run at once, a whole number of them for each piece.
    most = max(1, multiprocessors(streams.device) // pieces)
    launch(advance_kernel, (pieces, min(most, cdiv(tokens, TOKENS.value))))(
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
        tokens,
        width,
        EXPAND=expanded is not None,
        STAGES=_STAGES,
        num_warps=4,
        enable_fp_fusion=True,
    )
