"""Seeded sampling in Triton: one program per row does all of ``sample``, filters included.

Weights are exp((logit - best) / temperature), not divided by their sum: the argmax does not change,
and the filters compare with the sum where they need it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.launch import check_tensor

_TILE = 4096


def sample_triton(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """``sample``; rows of ``logits`` may have gaps between them.  Nothing waits for the device."""
    rows, vocab_size = logits.shape
    for name, x in (("temperature", temperature), ("top_p", top_p), ("min_p", min_p)):
        check_tensor(name, x, torch.float32, (rows,), logits)
    for name, x in (("top_k", top_k), ("seeds", seeds), ("positions", positions)):
        check_tensor(name, x, torch.int64, (rows,), logits)
    if logits.dtype != torch.float32 or logits.stride(1) != 1:
        check_tensor("logits", logits, torch.float32, (rows, vocab_size), logits)
    chosen = torch.empty_like(positions)
    if rows:
        sample_kernel[(rows,)](
            logits, temperature, top_p, top_k, min_p, seeds, positions, chosen,
            logits.stride(0), vocab_size, TILE=min(_TILE, triton.next_power_of_2(vocab_size)),
            num_warps=8, enable_fp_fusion=False,
        )  # fmt: skip
    return chosen


def exponential_noise_triton(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """``exponential_noise``: same uniforms, logarithms within 2 units of the last place."""
    rows = len(seeds)
    check_tensor("seeds", seeds, torch.int64, (rows,), seeds)
    check_tensor("positions", positions, torch.int64, (rows,), seeds)
    noise = torch.empty(rows, vocab_size, dtype=torch.float32, device=seeds.device)
    if noise.numel():
        noise_kernel[(rows, triton.cdiv(vocab_size, _TILE))](
            seeds, positions, noise, vocab_size, TILE=_TILE, num_warps=8, enable_fp_fusion=False
        )
    return noise


@triton.jit
def noise_kernel(seeds_ptr, positions_ptr, noise_ptr, vocab_size, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * TILE + tl.arange(0, TILE)
    word = _row_word(tl.load(seeds_ptr + row), tl.load(positions_ptr + row))
    noise = _exponential(word, token)
    tl.store(noise_ptr + row * vocab_size + token, noise, mask=token < vocab_size)


@triton.jit
def sample_kernel(
    logits_ptr, temperature_ptr, top_p_ptr, top_k_ptr, min_p_ptr, seeds_ptr, positions_ptr,
    chosen_ptr, row_stride, vocab_size, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits = logits_ptr + row * row_stride
    temperature = tl.load(temperature_ptr + row)
    best, best_token, is_nan = _best_logit(logits, vocab_size, TILE)
    is_valid = (is_nan == 0) & (best > float("-inf"))
    chosen = tl.where(is_valid, best_token, -1)
    if is_valid & (temperature != 0.0):
        word = _row_word(tl.load(seeds_ptr + row), tl.load(positions_ptr + row))
        top_p, min_p = tl.load(top_p_ptr + row), tl.load(min_p_ptr + row)
        top_k = tl.load(top_k_ptr + row)
        is_filtered = (top_p < 1.0) | (top_k > 0) | (min_p > 0.0)
        # Only tokens above the weight of the last dropped winner are looked at.
        floor, is_searching = -1.0, 1
        while is_searching > 0:
            chosen, weight = _winner(logits, best, temperature, word, floor, vocab_size, TILE)
            is_searching = 0
            if is_filtered:
                count, above, total = _more_likely(
                    logits, best, temperature, weight, vocab_size, TILE
                )
                is_dropped = (top_k > 0) & (count >= top_k)
                is_dropped = is_dropped | ((top_p < 1.0) & (above >= top_p * total))
                # The largest weight is 1 and never dropped.
                is_dropped = (is_dropped | (weight < min_p)) & (weight < 1.0)
                is_searching = is_dropped.to(tl.int32)
                floor = weight
    tl.store(chosen_ptr + row, chosen.to(tl.int64))


@triton.jit
def _best_logit(logits, vocab_size, TILE: tl.constexpr):
    """Largest logit, the first token that has it, and whether any is NaN."""
    best, best_token, is_nan = float("-inf"), 0, 0
    for first in range(0, vocab_size, TILE):
        token = first + tl.arange(0, TILE)
        x = tl.load(logits + token, mask=token < vocab_size, other=float("-inf"))
        is_nan = tl.maximum(is_nan, tl.max((x != x).to(tl.int32), 0))
        tile_best = tl.max(tl.where(x == x, x, float("-inf")), 0)
        tile_token = tl.min(tl.where(x == tile_best, token, 2147483647), 0)
        best_token = tl.where(tile_best > best, tile_token, best_token)
        best = tl.maximum(best, tile_best)
    return best, best_token, is_nan


@triton.jit
def _weights(logits, token, best, temperature, vocab_size):
    """Unnormalised probabilities, 1 at the best; several infinite logits share them."""
    x = tl.load(logits + token, mask=token < vocab_size, other=float("-inf"))
    finite = tl.exp(tl.div_rn(x - best, temperature + tl.zeros_like(x)))
    infinite = tl.where(x == float("inf"), 1.0, 0.0)
    return tl.where(best == float("inf"), infinite, finite)


@triton.jit
def _winner(logits, best, temperature, word, floor, vocab_size, TILE: tl.constexpr):
    """First token with the best weight / noise among those above ``floor``, and its weight."""
    best_score, best_token, best_weight = -1.0, 0, 0.0
    for first in range(0, vocab_size, TILE):
        token = first + tl.arange(0, TILE)
        weight = _weights(logits, token, best, temperature, vocab_size)
        score = tl.div_rn(weight, _exponential(word, token))
        score = tl.where((weight > floor) & (token < vocab_size), score, -1.0)
        tile_score = tl.max(score, 0)
        tile_token = tl.min(tl.where(score == tile_score, token, 2147483647), 0)
        tile_weight = tl.max(tl.where(token == tile_token, weight, 0.0), 0)
        is_better = tile_score > best_score
        best_token = tl.where(is_better, tile_token, best_token)
        best_weight = tl.where(is_better, tile_weight, best_weight)
        best_score = tl.maximum(best_score, tile_score)
    return best_token, best_weight


@triton.jit
def _more_likely(logits, best, temperature, weight, vocab_size, TILE: tl.constexpr):
    """How many tokens are likelier than ``weight``, their weights' sum, and the sum of all."""
    count, above, total = 0, 0.0, 0.0
    for first in range(0, vocab_size, TILE):
        token = first + tl.arange(0, TILE)
        weights = _weights(logits, token, best, temperature, vocab_size)
        is_above = weights > weight
        count += tl.sum(is_above.to(tl.int32), 0)
        above += tl.sum(tl.where(is_above, weights, 0.0), 0)
        total += tl.sum(weights, 0)
    return count, above, total


@triton.jit
def _row_word(seed, position):
    """Output number ``position`` of SplitMix64 started at ``seed``, i64."""
    x = seed + (position + 1) * -7046029254386353131
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit
def _exponential(word, token):
    """Exponential variables of mean 1 of tokens, from the row's 64-bit word."""
    first = word.to(tl.int32)
    second = (word >> 32).to(tl.int32) | 1
    hashed = ((token * -1640531527) ^ first) * 2146121005
    hashed = (hashed ^ ((hashed >> 16) & 0xFFFF)) * second
    hashed = ((hashed ^ ((hashed >> 15) & 0x1FFFF)) * -2073254261) & 0x7FFFFFFF
    negative = hashed.to(tl.float32) * -4.6566125955216364e-10 - 2.3283064365386963e-10
    return -_log1p(negative)


@triton.jit
def _log1p(x):
    """log(1 + x) in fp32 for -1 < x <= 0, also where x is tiny; only plain arithmetic.

    1 + x is rounded to y = 2**e * (1 + f); what the rounding lost comes back to first order.
    log(1 + f) = 2 atanh(f / (2 + f)), whose series ends here at the 9th power.
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
    # ln 2 in two parts: the first has zeros enough for e * high to be exact.
    return e * 0.693145751953125 + ((2.0 * s + s * series) + (e * 1.42860682030941723e-06 + lost))
