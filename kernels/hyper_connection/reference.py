"""Hyper-connections in plain torch: the specification.  T tokens, S streams, d width."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from deepinfer.kernels.gemm import HopperWeight, Weight, fp32_linear
from deepinfer.kernels.gemm.reference import ROW_MULTIPLE
from deepinfer.kernels.norm import NormedRows
from deepinfer.kernels.norm.reference import rms_norm_reference
from deepinfer.kernels.numeric import by_rows, constant, inverse_rms, sigmoid, split_last

_NORM_EPS = 1e-20


class HyperMix(NamedTuple):
    """Coefficients of one sub-block, f32: pre [T, S], post [T, S], comb [T, S (from), S (to)]."""

    pre: Tensor
    post: Tensor
    comb: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Mixer:
    """Parameters of the coefficients: fn [S * (2 + S), S * d] f32, scale [3] and base [S * (2 + S)]
    f32, and the number of Sinkhorn ``iterations`` with their ``eps``."""

    fn: Weight
    scale: Tensor
    base: Tensor
    iterations: int
    eps: float


@dataclass(frozen=True, slots=True, eq=False)
class Entrance:
    """The start of a sub-block: an RMS norm with weight [d] bf16, then the weight ``linear``."""

    weight: Tensor
    eps: float
    linear: Weight | HopperWeight


class Entry(NamedTuple):
    """A sub-block's coefficients and its normalized input [T, d] bf16."""

    mix: HyperMix
    rows: NormedRows


def enter_streams_reference(
    streams: Tensor, pre: Tensor, mixer: Mixer, entrance: Entrance
) -> Entry:
    """Coefficients of streams [T, S, d] bf16, and their collapse by ``pre`` [T, S] f32,
    normalized."""
    normed = rms_norm_reference(
        collapse_streams_reference(streams, pre), entrance.weight, entrance.eps
    )
    return Entry(hyper_mix_reference(streams, mixer), NormedRows(normed, normed))


def advance_streams_reference(
    streams: Tensor, output: Tensor, mix: HyperMix, mixer: Mixer, entrance: Entrance
) -> tuple[Tensor, Entry]:
    """From one sub-block to the next: ``expand_streams``, then ``enter_streams`` with ``mix.pre``.

    Shapes: those of ``expand_streams``; returns the new streams [T, S, d] bf16 and their entry.
    """
    expanded = expand_streams_reference(streams, output, mix)
    return expanded, enter_streams_reference(expanded, mix.pre, mixer, entrance)


def hyper_mix_reference(streams: Tensor, mixer: Mixer) -> HyperMix:
    """Coefficients from the streams: a linear layer on their normalized concatenation.

    Shapes: streams [T, S, d] bf16.  Sinkhorn iterations make ``comb`` nearly doubly stochastic;
    columns are normalized last.  Batch-invariant: yes.
    """
    fn, scale, base, eps = mixer.fn, mixer.scale, mixer.base, mixer.eps
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
        comb=_sinkhorn(comb, mixer.iterations, eps),
    )


def collapse_streams_reference(streams: Tensor, pre: Tensor) -> Tensor:
    """Weighted sum of the streams: [T, S, d] bf16 and [T, S] f32 -> [T, d] bf16."""
    return (pre[..., None] * streams.float()).sum(1).to(torch.bfloat16)


def expand_streams_reference(streams: Tensor, output: Tensor, mix: HyperMix) -> Tensor:
    """Mix the streams and add a sub-block's output to each: [T, S, d] bf16, [T, d] bf16."""
    return by_rows(_expand, streams, output, mix.post, mix.comb, row_elements=16 * streams.shape[2])


def _expand(streams: Tensor, output: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    residual = (comb[..., None] * streams.float()[:, :, None, :]).sum(1)
    return (post[..., None] * output.float()[:, None, :] + residual).to(torch.bfloat16)


def _sinkhorn(comb: Tensor, iterations: int, eps: float) -> Tensor:
    """comb [T, S * S] logits, row-major -> [T, S, S].

    A matmul with a matrix of ones and zeros sums each row (or column) of the S x S matrices and
    broadcasts the sum over it.  Tokens are padded as in ``fp32_linear``.
    """
    num_tokens, num_streams = comb.shape[0], math.isqrt(comb.shape[1])
    comb = functional.pad(comb, (0, 0, 0, -num_tokens % ROW_MULTIPLE))
    highest = split_last(comb, num_streams).amax(-1, keepdim=True)
    comb = torch.exp(split_last(comb, num_streams) - highest).flatten(1)
    row_sums, column_sums = _summing_matrices(num_streams, comb.device)
    small = constant(eps).to(comb.device).expand(num_streams**2)
    comb = comb / (comb @ row_sums) + small
    comb = comb / torch.addmm(small, comb, column_sums)
    for _ in range(iterations - 1):
        comb = comb / torch.addmm(small, comb, row_sums)
        comb = comb / torch.addmm(small, comb, column_sums)
    return split_last(comb, num_streams)[:num_tokens]


@cache
def _summing_matrices(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Two [size^2, size^2] matrices: each element of x @ them is the sum of its row (column)."""
    with torch.inference_mode(False):
        same, all_of_them = torch.eye(size), torch.ones(size, size)
        return (
            torch.kron(same, all_of_them).to(device),
            torch.kron(all_of_them, same).to(device),
        )
