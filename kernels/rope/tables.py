"""Rotary frequencies and the cosines and sines of given positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def rope_frequencies(
    dim: int,
    theta: float,
    *,
    yarn_factor: float = 1.0,
    original_max_position: int = 0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> Tensor:
    """Angle per position of each pair of dimensions, [dim/2] f32.

    ``yarn_factor`` above 1 divides the frequencies of slow pairs by that factor and keeps those of
    fast ones, with a linear ramp between the pairs that make ``beta_fast`` and ``beta_slow`` full
    rotations in the original context.
    Source: Su et al. 2021; Peng et al. 2023 (YaRN), section 3.2, without its attention scaling.
    """
    frequencies = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if yarn_factor == 1.0:
        return frequencies

    def pair_with(rotations: float) -> float:
        inverse_frequency = original_max_position / (rotations * 2 * math.pi)
        return dim * math.log(inverse_frequency) / (2 * math.log(theta))

    low = max(math.floor(pair_with(beta_fast)), 0)
    high = min(math.ceil(pair_with(beta_slow)), dim - 1)
    span = max(high - low, 0.001)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / span).clamp(0, 1)
    return frequencies / yarn_factor * ramp + frequencies * (1 - ramp)


def rope_table(frequencies: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin for ``apply_rope``, each [T, dim] f32, for positions [T] i64.

    The first has the cosine of each pair twice, the second its sine as (-sin, sin).
    Numerics: angles in fp32 as in the released code; cosine and sine in fp64, because those of a
    CPU in fp32 may depend on the position of an element in its tensor.  Batch-invariant: yes.
    """
    angles = (positions.float()[:, None] * frequencies).double()
    cos, sin = angles.cos().float(), angles.sin().float()
    return torch.stack([cos, cos], -1).flatten(1), torch.stack([-sin, sin], -1).flatten(1)
