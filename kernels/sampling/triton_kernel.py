"""Seeded sampling in Triton: one program per row does all of ``sample``, including filters.

A token of weight exp((logit - best) / temperature) has the score weight / noise, and the best score
wins.  The logarithms of the noise are expensive, so a single pass over the logits computes an upper
bound of the scores of each tile, and only the one or two tiles that may contain the winner are
computed exactly.  Weights are not normalized: the argmax is the same, and the filters compare with
the sum where needed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.launch import cdiv, check_tensor, next_power_of_2, sizes
from deepinfer.kernels.relaunch import launch

from .checks import check_logits

_TILE = 1024


def sample_triton(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """``sample``; the row stride of ``logits`` may exceed V.  The host does not synchronize."""
    rows, vocab_size = check_logits("logits", logits)
    for name, x in (("temperature", temperature), ("top_p", top_p), ("min_p", min_p)):
        check_tensor(name, x, torch.float32, (rows,), logits)
    for name, x in (("top_k", top_k), ("seeds", seeds), ("positions", positions)):
        check_tensor(name, x, torch.int64, (rows,), logits)
    chosen = torch.empty_like(positions)
    if rows:
        tile = min(_TILE, next_power_of_2(vocab_size))
        launch(sample_kernel, (rows,))(
            logits, temperature, top_p, top_k, min_p, seeds, positions, chosen,
            logits.stride(0), vocab_size, TILE=tile,
            TILES=next_power_of_2(cdiv(vocab_size, tile)),
            num_warps=8, enable_fp_fusion=False,
        )  # fmt: skip
    return chosen


def exponential_noise_triton(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """``exponential_noise``: the same uniforms, logarithms within 2 ulps."""
    [rows] = sizes("seeds", seeds, 1)
    check_tensor("seeds", seeds, torch.int64, (rows,), seeds)
    check_tensor("positions", positions, torch.int64, (rows,), seeds)
    noise = torch.empty(rows, vocab_size, dtype=torch.float32, device=seeds.device)
    if noise.numel():
        launch(noise_kernel, (rows, cdiv(vocab_size, _TILE)))(
            seeds, positions, noise, vocab_size, TILE=_TILE, num_warps=8, enable_fp_fusion=False
        )
    return noise


@triton.jit
def noise_kernel(seeds_ptr, positions_ptr, noise_ptr, vocab_size, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * TILE + tl.arange(0, TILE)
    word = row_word(tl.load(seeds_ptr + row), tl.load(positions_ptr + row))
    noise = exponential(word, token)
    tl.store(noise_ptr + row * vocab_size + token, noise, mask=token < vocab_size)


@triton.jit
def sample_kernel(
    logits_ptr, temperature_ptr, top_p_ptr, top_k_ptr, min_p_ptr, seeds_ptr, positions_ptr,
    chosen_ptr, row_stride, vocab_size, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits = logits_ptr + row * row_stride
    temperature = tl.load(temperature_ptr + row)
    if temperature == 0.0:
        chosen = _first_best(logits, vocab_size, TILE)
    else:
        word = row_word(tl.load(seeds_ptr + row), tl.load(positions_ptr + row))
        chosen = _draw(
            logits, temperature, tl.load(top_p_ptr + row), tl.load(top_k_ptr + row),
            tl.load(min_p_ptr + row), word, vocab_size, TILE, TILES,
        )  # fmt: skip
    tl.store(chosen_ptr + row, chosen.to(tl.int64))


@triton.jit
def _first_best(logits, vocab_size, TILE: tl.constexpr):
    """The first token with the largest logit, -1 for a row with NaN or without any above -inf."""
    lane = tl.arange(0, TILE)
    best = tl.full([TILE], float("-inf"), tl.float32)
    best_first = tl.zeros([TILE], tl.int32)
    num_nan = tl.zeros([TILE], tl.int32)
    for first in range(0, vocab_size, TILE):
        x = tl.load(logits + first + lane, mask=first + lane < vocab_size, other=float("-inf"))
        is_better = x > best
        best = tl.where(is_better, x, best)
        best_first = tl.where(is_better, first, best_first)
        num_nan += (x != x).to(tl.int32)
    top = tl.max(best, 0)
    token = tl.min(tl.where(best == top, best_first + lane, 2147483647), 0)
    is_valid = (tl.max(num_nan, 0) == 0) & (top > float("-inf"))
    return tl.where(is_valid, token, -1)


@triton.jit
def _draw(
    logits, temperature, top_p, top_k, min_p, word, vocab_size,
    TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """One token at a positive temperature, -1 as in ``_first_best``."""
    log_scale = 1.4426950408889634 / tl.maximum(temperature, 1e-30)
    best, is_nan, bounds = _bounds(logits, log_scale, word, vocab_size, TILE, TILES)
    chosen = -1
    if (is_nan == 0) & (best > float("-inf")):
        # Allowance for the rounding of bounds, which are logarithms, relative to exact scores.
        top = best * log_scale
        slack = 0.01 + 2e-6 * tl.abs(top)
        least = tl.where(temperature > 1e-29, top - slack, float("-inf"))
        least = tl.where(tl.abs(top) < float("inf"), least, float("-inf"))  # no bound is one then
        is_filtered = (top_p < 1.0) | (top_k > 0) | (min_p > 0.0)
        # Only tokens above the weight of the last dropped winner are considered.
        floor, is_searching = -1.0, 1
        while is_searching > 0:
            chosen, weight = _winner(
                logits, best, temperature, word, floor, bounds, least, vocab_size, TILE, TILES
            )
            is_searching = 0
            if is_filtered:
                count, above, total = more_likely(
                    logits, best, temperature, weight, vocab_size, TILE
                )
                is_dropped = (top_k > 0) & (count >= top_k)
                is_dropped = is_dropped | ((top_p < 1.0) & (above >= top_p * total))
                # The largest weight is 1 and never dropped.
                is_dropped = (is_dropped | (weight < min_p)) & (weight < 1.0)
                is_searching = is_dropped.to(tl.int32)
                floor = weight
    return chosen


@triton.jit
def _bounds(logits, log_scale, word, vocab_size, TILE: tl.constexpr, TILES: tl.constexpr):
    """The single pass over all logits: the largest, whether any is NaN, and for each tile an upper
    bound of log2(weight / noise), up to a constant of the row and rounding.

    The noise of a uniform u is -log(1 - u) >= u, and the bits of u, read as an integer, give a
    lower bound of log2(u).
    """
    lane = tl.arange(0, TILE)
    tile = tl.arange(0, TILES)
    best = tl.full([TILE], float("-inf"), tl.float32)
    num_nan = tl.zeros([TILE], tl.int32)
    bounds = tl.full([TILES], float("-inf"), tl.float32)
    for first in range(0, vocab_size, TILE):
        token = first + lane
        x = tl.load(logits + token, mask=token < vocab_size, other=float("-inf"))
        best = tl.maximum(best, x)
        num_nan += (x != x).to(tl.int32)
        uniform = ((_hash(word, token) >> 8) | 0x3F800000).to(tl.float32, bitcast=True) - 1.0
        log = uniform.to(tl.int32, bitcast=True).to(tl.float32) * 1.1920928955078125e-07
        # Finite unless +inf, so that tiles whose scaled logits are below the range of fp32 are
        # considered, too.
        bound = tl.maximum(tl.max(x * log_scale - log, 0) + 127.0, -3e38)
        bounds = tl.where(tile == first // TILE, bound, bounds)
    return tl.max(best, 0), tl.max(num_nan, 0), bounds


@triton.jit
def _winner(
    logits, best, temperature, word, floor, bounds, least, vocab_size,
    TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """The first token with the best weight / noise among those above ``floor``, and its weight.

    Tiles are searched by descending bounds, until no bound is above the best score found.
    """
    tile = tl.arange(0, TILES)
    best_score, best_token, best_weight = -1.0, 2147483647, 0.0
    threshold = float("-inf")
    bound = tl.max(bounds, 0)
    while bound > threshold:
        at = tl.min(tl.where(bounds == bound, tile, TILES), 0)
        token = at * TILE + tl.arange(0, TILE)
        weight = token_weights(logits, token, best, temperature, vocab_size)
        score = tl.div_rn(weight, exponential(word, token))
        score = tl.where((weight > floor) & (token < vocab_size), score, -1.0)
        tile_score = tl.max(score, 0)
        tile_token = tl.min(tl.where(score == tile_score, token, 2147483647), 0)
        tile_weight = tl.max(tl.where(token == tile_token, weight, 0.0), 0)
        is_better = tile_score > best_score
        is_better = is_better | ((tile_score == best_score) & (tile_token < best_token))
        best_token = tl.where(is_better, tile_token, best_token)
        best_weight = tl.where(is_better, tile_weight, best_weight)
        best_score = tl.maximum(best_score, tile_score)
        reached = tl.log2(tl.maximum(best_score, 1e-37)) + least
        threshold = tl.where(best_score > 0.0, reached, float("-inf"))
        bounds = tl.where(tile == at, float("-inf"), bounds)
        bound = tl.max(bounds, 0)
    return best_token, best_weight


@triton.jit
def token_weights(logits, token, best, temperature, vocab_size):
    """Unnormalized probabilities, 1 at the best; all infinite logits have 1."""
    x = tl.load(logits + token, mask=token < vocab_size, other=float("-inf"))
    finite = tl.exp(tl.div_rn(x - best, temperature + tl.zeros_like(x)))
    infinite = tl.where(x == float("inf"), 1.0, 0.0)
    return tl.where(best == float("inf"), infinite, finite)


@triton.jit
def more_likely(logits, best, temperature, weight, vocab_size, TILE: tl.constexpr):
    """The number of tokens with more than ``weight``, the sum of their weights, and of all."""
    count = tl.zeros([TILE], tl.int32)
    above = tl.zeros([TILE], tl.float32)
    total = tl.zeros([TILE], tl.float32)
    for first in range(0, vocab_size, TILE):
        weights = token_weights(logits, first + tl.arange(0, TILE), best, temperature, vocab_size)
        is_above = weights > weight
        count += is_above.to(tl.int32)
        above += tl.where(is_above, weights, 0.0)
        total += weights
    return tl.sum(count, 0), tl.sum(above, 0), tl.sum(total, 0)


@triton.jit
def row_word(seed, position):
    """Output number ``position`` of SplitMix64 started at ``seed``, i64."""
    x = seed + (position + 1) * -7046029254386353131
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit
def exponential(word, token):
    """Exponential variables of mean 1 for tokens, from the row's 64-bit word."""
    negative = _hash(word, token).to(tl.float32) * -4.6566125955216364e-10 - 2.3283064365386963e-10
    return -_log1p(negative)


@triton.jit
def _hash(word, token):
    """31-bit hashes of tokens, from the row's 64-bit word."""
    first = word.to(tl.int32)
    second = (word >> 32).to(tl.int32) | 1
    hashed = ((token * -1640531527) ^ first) * 2146121005
    hashed = (hashed ^ ((hashed >> 16) & 0xFFFF)) * second
    return ((hashed ^ ((hashed >> 15) & 0x1FFFF)) * -2073254261) & 0x7FFFFFFF


@triton.jit
def _log1p(x):
    """log(1 + x) in fp32 for -1 < x <= 0, accurate for tiny x; basic arithmetic only.

    1 + x is rounded to y = 2**e * (1 + f); the rounding error is added back to first order.
    log(1 + f) = 2 atanh(f / (2 + f)), whose series is truncated after the 9th power.
    """
    y = 1.0 + x
    lost = (x - (y - 1.0)) / y
    bits = y.to(tl.int32, bitcast=True)
    # Mantissas from sqrt(1/2) to sqrt(2), so that f is small on both sides.
    exponent = (bits - 0x3F3504F3) >> 23
    mantissa = (bits - (exponent << 23)).to(tl.float32, bitcast=True)
    f = mantissa - 1.0
    s = tl.div_rn(f, 2.0 + f)
    z = s * s
    series = z * (0.6666666666 + z * (0.4 + z * (0.2857142857 + z * 0.2222222222)))
    e = exponent.to(tl.float32)
    # ln 2 in two parts: the first has enough trailing zeros for its product with e to be exact.
    return e * 0.693145751953125 + ((2.0 * s + s * series) + (e * 1.42860682030941723e-06 + lost))
