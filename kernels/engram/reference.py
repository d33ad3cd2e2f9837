"""Engram in plain torch: the specification.  T tokens, S streams, d width, C table columns."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.kernels.numeric import inverse_rms, sigmoid, split_last

_NORM_EPS = 1e-20
_MIN_DOT = 1e-6


def engram_hash_reference(
    lookback: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor
) -> Tensor:
    """Table rows of the n-grams that end at each token.

    Shapes: lookback [T, G] i64: compressed ids of the token and the G - 1 before it; multipliers
    [G] i64 odd; primes and offsets [(G - 1), heads] i64; returns [T, (G - 1) * heads] i64.
    """
    products = lookback * multipliers
    mixed = products[:, 0]
    rows = []
    for order in range(1, lookback.shape[1]):
        mixed = mixed ^ products[:, order]
        rows.append(mixed[:, None] % primes[order - 1] + offsets[order - 1])
    return torch.cat(rows, dim=-1)


def engram_lookup_reference(table: Tensor, scales: Tensor, rows: Tensor) -> Tensor:
    """Dequantized table rows, concatenated.

    Shapes: table [N, D] e4m3fn, scales [N, D/32] e8m0fnu, rows [T, C] i64; returns [T, C * D] bf16.
    """
    values = table.view(torch.uint8)[rows].view(torch.float8_e4m3fn).float()
    factors = scales.view(torch.uint8)[rows].view(torch.float8_e8m0fnu).float()
    block = values.shape[-1] // factors.shape[-1]
    return (split_last(values, block) * factors[..., None]).flatten(1).to(torch.bfloat16)


def engram_gate_reference(
    streams: Tensor, key_value: Tensor, q_weight: Tensor, k_weight: Tensor
) -> Tensor:
    """Add the memory's value to each stream, gated by the similarity of stream and key.

    Shapes: streams [T, S, d] bf16, key_value [T, (S + 1) * d] bf16 (S keys, then the value),
    q_weight and k_weight [S, d]; returns [T, S, d] bf16.  Batch-invariant: yes.
    """
    num_streams, width = q_weight.shape
    x = streams.float()
    keys, value = torch.split(key_value.float(), [num_streams * width, width], -1)
    keys = split_last(keys, width)
    weight = q_weight.float() * k_weight.float()
    dot = (x * weight * keys).sum(-1, keepdim=True)
    dot = dot * inverse_rms(x, _NORM_EPS) * inverse_rms(keys, _NORM_EPS) * width**-0.5
    gate = sigmoid(torch.copysign(dot.abs().clamp(min=_MIN_DOT).sqrt(), dot))
    return (x + gate * value[:, None, :]).to(torch.bfloat16)
