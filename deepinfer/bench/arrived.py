"""Tokens that absent ranks have sent: made once, and read as those that really came."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from deepinfer.kernels.exchange import Arrivals, Buffers, ExchangeLayout, token_block

if TYPE_CHECKING:
    from deepinfer.kernels.gemm.activations import Activations

_E4M3_MAX, _E8M0_BIAS = 448.0, 127


def fill_tokens(buffers: Buffers, rank: int) -> None:
    """Rows of normal numbers of ``rank``, rounded as those that are sent, and zeros for who chose
    them.  Normal, because what products compute with decides how much power they take."""
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
    """As many as any layer asks for, in one buffer for all of them: layers take turns, and none
    finds in a cache what the one before has read if it is larger than that.

    Results go to one buffer, a row for each choice of this rank's tokens, as if all of them came
    from here: so many are written there as go to all ranks, and read as come back from all.
    """

    def __init__(self) -> None:
        self._arrivals: list[Arrivals] = []

    def tokens(
        self, count: int, own: int, width: int, num_choices: int, device: torch.device
    ) -> Arrivals:
        """At least ``count`` tokens, without choices, where this rank has ``own`` ones.  What was
        given out before stays valid."""
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
    """This rank brings none.  Imported here: a machine without Triton imports this module, too."""
    from deepinfer.kernels.gemm.activations import Activations
    from deepinfer.kernels.gemm.k_order import KOrder
    from deepinfer.kernels.gemm.matrix_path import MatrixPath

    return Activations.empty(0, width, MatrixPath.of(device), KOrder.PLAIN, device)
