"""Tokens that absent ranks have sent: made once, and read as those that really came.

E4M3 codes below 2 and scales of 1, so that they have about the size of normalised activations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.kernels.exchange import Arrivals, ExchangeLayout, token_block

_ONE_E8M0 = 127


def fill_tokens(rows: Tensor, layout: ExchangeLayout) -> None:
    """Random tokens, and zeros for who chose them, into rows [..., row_bytes] u8 of arrivals."""
    width, scales = layout.hidden_size, layout.hidden_size // layout.block
    rows[..., :width].random_(0, 256)
    rows[..., :width] &= 0xBF  # magnitudes below 2, no NaN
    rows[..., width : width + scales] = _ONE_E8M0


class ArrivedTokens:
    """As many as any layer asks for, in one buffer for all of them: layers take turns, and none
    finds in a cache what the one before has read if it is larger than that."""

    def __init__(self) -> None:
        self._rows = torch.empty(0, 0, dtype=torch.uint8)

    def tokens(self, count: int, width: int, num_choices: int, device: torch.device) -> Arrivals:
        """The first ``count`` tokens; their choices are not in them.  What was given out before
        stays valid."""
        layout = ExchangeLayout(
            num_ranks=1,
            capacity=count,
            num_choices=num_choices,
            hidden_size=width,
            is_exact=False,
            block=token_block(device),
        )
        if len(self._rows) < count or self._rows.shape[1] != layout.row_bytes:
            self._rows = torch.zeros(count, layout.row_bytes, dtype=torch.uint8, device=device)
            fill_tokens(self._rows, layout)
        return Arrivals(layout, self._rows.flatten(), count)
