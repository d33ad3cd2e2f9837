"""The initial residual streams."""

from __future__ import annotations

import torch
from torch import Tensor


def initial_streams(embedded: Tensor, num_streams: int) -> tuple[Tensor, Tensor]:
    """S copies [T, S, d] of embedded [T, d] as streams, and a one-hot ``pre`` [T, S] f32."""
    streams = embedded[:, None, :].expand(-1, num_streams, -1)
    pre = torch.zeros(len(embedded), num_streams, device=embedded.device)
    pre[:, 0] = 1.0
    return streams, pre


def embedded_streams(embed: Tensor, token_ids: Tensor, num_streams: int) -> tuple[Tensor, Tensor]:
    """The same for the rows ``token_ids`` [T] of embed [V, d], contiguous as kernels need."""
    copies = token_ids.repeat_interleave(num_streams)
    streams = torch.unflatten(embed[copies], 0, (-1, num_streams))
    return streams, initial_streams(streams[:, 0], num_streams)[1]
