"""Synthetic tokens of absent ranks, made once and read like tokens that really arrived."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from deepinfer.kernels.exchange import Arrivals, Buffers, ExchangeLayout, token_block

if TYPE_CHECKING:
    from deepinfer.kernels.gemm.activations import Activations

_E4M3_MAX, _E8M0_BIAS = 448.0, 127


def fill_tokens(buffers: Buffers, rank: int) -> None:
    """Fill the tokens of ``rank`` with normally distributed numbers, quantized like those that are
    sent, and their headers with zeros.  Normal, since a GEMM's power depends on its operands."""
    layout = buffers.layout
    values, heads = buffers.own[buffers.values_of(rank)], buffers.own[buffers.heads_of(rank)]
    blocks = (layout.capacity, layout.hidden_size // layout.block, layout.block)
    normal = torch.randn(blocks, device=values.device)
    exponent = (normal.abs().amax(-1) / _E4M3_MAX).log2().ceil()
    codes = torch.ldexp(normal, -exponent[..., None]).to(torch.float8_e4m3fn)
    values.view(blocks).copy_(codes.view(torch.uint8))
    heads.zero_()
    heads.view(layout.capacity, -1)[:, : blocks[1]] = (exponent + _E8M0_BIAS).to(torch.uint8)


class ArrivedTokens:
    """One buffer for all layers, with as many tokens as any layer needs.  If it is larger than the
    caches, no layer finds the tokens of the previous one cached.

    Results go to one buffer with a row for each expert choice of this rank's tokens: as many are
    written there as would be sent to all ranks, and as many read as would return from all.
    """

    def __init__(self) -> None:
        self._arrivals: list[Arrivals] = []

    def tokens(
        self, count: int, own: int, width: int, num_choices: int, device: torch.device
    ) -> Arrivals:
        """At least ``count`` tokens, without expert choices, on a rank with ``own`` tokens.  What
        was returned before stays valid."""
        for found in self._arrivals:
            layout = found.buffers.layout
            is_fitting = (layout.hidden_size, layout.num_choices) == (width, num_choices)
            if is_fitting and layout.capacity >= own and layout.num_ranks * own >= count:
                return replace(found, most_tokens=own)
        layout = ExchangeLayout(
            num_ranks=-(-count // own),
            capacity=own,
            num_choices=num_choices,
            hidden_size=width,
            block=token_block(device),
        )
        memory = torch.zeros(layout.num_bytes, dtype=torch.uint8, device=device)
        home = memory.data_ptr() + layout.results
        buffers = Buffers(
            layout=layout,
            rank=-1,  # none of the tokens are its own
            own=memory,
            peers={},
            homes=torch.full((layout.num_ranks,), home, dtype=torch.int64, device=device),
            rounds=torch.zeros(1, dtype=torch.int32, device=device),
        )
        for rank in range(layout.num_ranks):
            fill_tokens(buffers, rank)
        self._arrivals.insert(0, Arrivals(buffers, _no_tokens(width, device), own))
        return self._arrivals[0]


def _no_tokens(width: int, device: torch.device) -> Activations:
    """No tokens of this rank.  Imported here, since machines without Triton use this module."""
    from deepinfer.kernels.gemm.activations import Activations
    from deepinfer.kernels.gemm.k_order import KOrder
    from deepinfer.kernels.gemm.matrix_path import MatrixPath

    return Activations.empty(0, width, MatrixPath.of(device), KOrder.PLAIN, device)
