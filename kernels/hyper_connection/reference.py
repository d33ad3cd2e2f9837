"""Hyper-connections in plain torch: the specification.  T tokens, S streams, d width."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.kernels.gemm import Weight, fp32_linear
from deepinfer.kernels.numeric import constant, inverse_rms, sigmoid, split_last

_NORM_EPS = 1e-20


class HyperMix(NamedTuple):
    """Coefficients of one sub-block, f32: pre [T, S], post [T, S], comb [T, S (from), S (to)]."""

    pre: Tensor
    post: Tensor
    comb: Tensor


def hyper_mix_reference(
    streams: Tensor, fn: Weight, scale: Tensor, base: Tensor, *, iterations: int, eps: float
) -> HyperMix:
    """Coefficients from the streams: a linear of their normalised concatenation.

    Shapes: streams [T, S, d] bf16, fn [S * (2 + S), S * d] f32, scale [3], base [S * (2 + S)] f32.
    ``comb`` is made nearly doubly stochastic by ``iterations`` Sinkhorn rounds, a column
    normalisation last.  Batch-invariant: yes.
    """
    num_streams = streams.shape[1]
    parts = [num_streams, num_streams, num_streams**2]
    x = streams.flatten(1).float()
    mixed = fp32_linear(x, fn) * inverse_rms(x, _NORM_EPS)
    pre, post, comb = torch.split(mixed, parts, -1)
    pre_base, post_base, comb_base = torch.split(base, parts)
    comb = comb * scale[2] + comb_base
    return HyperMix(
        pre=sigmoid(pre * scale[0] + pre_base) + constant(eps),
        post=constant(2.0) * sigmoid(post * scale[1] + post_base),
        comb=_sinkhorn(split_last(comb, num_streams), iterations, eps),
    )


def collapse_streams_reference(streams: Tensor, pre: Tensor) -> Tensor:
    """Weighted sum of the streams: [T, S, d] bf16 and [T, S] f32 -> [T, d] bf16."""
    return (pre[..., None] * streams.float()).sum(1).to(torch.bfloat16)


def expand_streams_reference(streams: Tensor, output: Tensor, mix: HyperMix) -> Tensor:
    """Mix the streams and add a sub-block's output to each: [T, S, d] bf16, [T, d] bf16."""
    residual = (mix.comb[..., None] * streams.float()[:, :, None, :]).sum(1)
    return (mix.post[..., None] * output.float()[:, None, :] + residual).to(torch.bfloat16)


def _sinkhorn(comb: Tensor, iterations: int, eps: float) -> Tensor:
    small = constant(eps)
    exponentials = torch.exp(comb - comb.amax(-1, keepdim=True))
    comb = exponentials / exponentials.sum(-1, keepdim=True) + small
    comb = comb / comb.sum(-2, keepdim=True).add_(small)
    for _ in range(iterations - 1):
        comb = comb / comb.sum(-1, keepdim=True).add_(small)
        comb = comb / comb.sum(-2, keepdim=True).add_(small)
    return comb
