"""Memory-bound operations, written so that ``torch.compile`` fuses them and gradients are always finite.

Each equals an operation in ``deepinfer.kernels``; ``tests/training/test_pointwise.py`` compares them.
N rows, S streams, d width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

NORM_EPS = 1e-20
FP8_BLOCK, FP8_MAX, FP8_MIN_AMAX = 32, 448.0, 1e-4
MANTISSA_BITS, EXPONENT_BITS = 0x7FFFFF, 0x7F800000
MIN_DOT = 1e-6
LOWEST_GATE = -60.0


def round_fp8(x: Tensor) -> Tensor:
    """[..., K] rounded to E4M3 with one power-of-two scale per 32 values, in the dtype of ``x``."""
    blocks = x.float().unflatten(-1, (-1, FP8_BLOCK))
    amax = blocks.abs().amax(-1, keepdim=True).clamp(min=FP8_MIN_AMAX)
    bits = (amax * (1.0 / FP8_MAX)).view(torch.int32) + MANTISSA_BITS
    scale = (bits & EXPONENT_BITS).view(torch.float32)
    values = (blocks / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return (values.float() * scale).flatten(-2).to(x.dtype)


def stream_mix(
    streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor, iterations: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """pre [N, S], post [N, S] and comb [N, S, S] f32 of streams [N, S, d] bf16."""
    num_streams = streams.shape[1]
    x = streams.flatten(1).float()
    mixed = (x @ fn.t()) * torch.rsqrt(x.square().mean(-1, keepdim=True) + NORM_EPS)
    sizes = [num_streams, num_streams, num_streams**2]
    pre, post, comb = mixed.split(sizes, dim=-1)
    pre_base, post_base, comb_base = base.split(sizes)
    comb = (comb * scale[2] + comb_base).unflatten(-1, (num_streams, num_streams))
    comb = comb.softmax(-1) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    pre = torch.sigmoid(pre * scale[0] + pre_base) + eps
    return pre, 2.0 * torch.sigmoid(post * scale[1] + post_base), comb


def collapse(streams: Tensor, pre: Tensor) -> Tensor:
    """Weighted sum of the streams, [N, d] bf16."""
    return (pre[..., None] * streams.float()).sum(1).to(torch.bfloat16)


def expand(streams: Tensor, output: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Mix the streams and add a sub-block's output [N, d] to each, [N, S, d] bf16."""
    x = streams.float()
    mixed = post[..., None] * output.float()[:, None, :]
    for source in range(streams.shape[1]):
        mixed = mixed + comb[:, source, :, None] * x[:, source, None, :]
    return mixed.to(torch.bfloat16)


def swiglu(gate_up: Tensor, limit: float, weights: Tensor) -> Tensor:
    """``weights * silu(gate) * up`` of gate_up [N, 2 I] bf16 with weights [N] f32, [N, I] bf16."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    gate, up = gate.clamp(LOWEST_GATE, limit), up.clamp(-limit, limit)
    return (weights[:, None] * (functional.silu(gate) * up)).to(torch.bfloat16)


def engram_gate(streams: Tensor, key_value: Tensor, q_weight: Tensor, k_weight: Tensor) -> Tensor:
    """streams [N, S, d] plus the memory's value, gated by the similarity of its keys."""
    num_streams, width = q_weight.shape
    x = streams.float()
    keys, value = key_value.float().split([num_streams * width, width], dim=-1)
    keys = keys.unflatten(-1, (num_streams, width))
    dot = (x * (q_weight.float() * k_weight.float()) * keys).sum(-1, keepdim=True) * width**-0.5
    dot = dot * torch.rsqrt(x.square().mean(-1, keepdim=True) + NORM_EPS)
    dot = dot * torch.rsqrt(keys.square().mean(-1, keepdim=True) + NORM_EPS)
    gate = torch.sigmoid(torch.sign(dot) * dot.abs().clamp(min=MIN_DOT).sqrt())
    return (x + gate * value[:, None, :]).to(torch.bfloat16)


def softmax_parts(
    window: Tensor, hidden: Tensor, picked: Tensor, absent: Tensor, sink: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One softmax over two lists of raw scores [N, H, ...] bf16, masked by ``hidden`` and ``absent``
    [N, 1, ...]: unnormalized weights in bf16, and 1 / their sum including the sink [H]."""
    window = (window.float() * scale).masked_fill(hidden, -torch.inf)
    picked = (picked.float() * scale).masked_fill(absent, -torch.inf)
    highest = torch.maximum(window.amax(-1, keepdim=True), picked.amax(-1, keepdim=True))
    highest = highest.clamp(min=-1e30).detach()
    window, picked = torch.exp(window - highest), torch.exp(picked - highest)
    total = window.sum(-1, keepdim=True) + picked.sum(-1, keepdim=True)
    total = total + torch.exp(sink[:, None] - highest)
    return window.to(torch.bfloat16), picked.to(torch.bfloat16), 1.0 / total
