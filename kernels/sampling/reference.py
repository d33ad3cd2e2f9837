"""Seeded sampling whose noise depends on (row seed, position, token id) and on nothing else.

``argmax(logit / temperature + Gumbel)`` draws from the softmax.  With E an exponential variable it
is the same as ``argmax(softmax(logit / temperature) / E)``, one logarithm cheaper.

Top-k, top-p and min-p each keep a beginning of the same order: falling probability, lower id first
among equals.  So a winner that is not kept rules out itself and everything behind it, and the best
score among the tokens before it is looked at next.  Nothing is ever sorted.
"""

from __future__ import annotations

import torch
from torch import Tensor

INVALID_TOKEN = -1

_HASH_BITS = 31
_ARGMAX_TILE = 64


def exponential_noise(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Exponential variables of mean 1, a pure function of (seed, position, token id).

    Shapes: seeds [N] i64 (the bits of a 64-bit seed), positions [N] i64; returns
    [N, vocab_size] f32.
    The uniform behind a value is (h + 0.5) / 2**31 for a 31-bit hash h, precise where it is small
    (small values win) and always strictly between 0 and 1, so every value is positive and finite.
    """
    key = _mix64(_mix64(seeds) ^ positions)
    low = _low_word(key)[:, None]
    odd = (_low_word(key >> 32) | 1)[:, None]
    token_words = torch.arange(vocab_size, dtype=torch.int32, device=seeds.device) * -1640531527
    word = token_words ^ low
    scratch = torch.empty_like(word)
    for factor, shift in ((2146121005, 16), (odd, 15), (-2073254261, 16)):
        word.mul_(factor)
        torch.bitwise_right_shift(word, shift, out=scratch)
        word.bitwise_xor_(scratch.bitwise_and_((1 << (32 - shift)) - 1))
    word.bitwise_and_((1 << _HASH_BITS) - 1)
    # The factor 1 - 2**-24 keeps the largest uniform below 1 after rounding to f32.
    negative_uniform = word.to(torch.float32).mul_(-(2.0**-_HASH_BITS) * (1 - 2.0**-24))
    return negative_uniform.sub_(0.5 * 2.0**-_HASH_BITS).log1p_().neg_()


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """Draw one token per row; temperature 0 takes the largest logit, lowest id first.

    Shapes: logits [N, V] f32; temperature, top_p, min_p [N] f32; top_k [N] i64 (0 = all);
    seeds, positions [N] i64; returns [N] i64, ``INVALID_TOKEN`` for a row that holds a NaN or
    nothing above -inf.  Several +inf logits share the whole probability.
    A token is kept if the probability before it is below top_p, if fewer than top_k tokens are
    before it, and if its probability is at least min_p times the largest; "before" is the order
    above, and all three look at softmax(logits / temperature).
    Batch-invariant: yes.  Source: Gumbel-max, Maddison et al. 2014.
    """
    best = logits.amax(-1)
    chosen = torch.full_like(positions, INVALID_TOKEN)
    is_valid = ~(torch.isnan(best) | (best == -torch.inf))
    is_greedy = temperature == 0
    greedy_rows = _rows(is_valid & is_greedy)
    if greedy_rows is not None:
        chosen[greedy_rows] = _first_argmax(logits[greedy_rows])
    rows = _rows(is_valid & ~is_greedy)
    if rows is not None:
        probs = _probabilities(logits[rows], best[rows], temperature[rows])
        scores = probs / exponential_noise(seeds[rows], positions[rows], logits.shape[1])
        winner = _first_argmax(scores)
        chosen[rows] = _filter(winner, scores, probs, top_p[rows], top_k[rows], min_p[rows])
    return chosen


def _filter(
    winner: Tensor, scores: Tensor, probs: Tensor, top_p: Tensor, top_k: Tensor, min_p: Tensor
) -> Tensor:
    """Replace winners that a filter drops by the best score that all filters keep, [N] i64."""
    prob = probs.gather(1, winner[:, None])[:, 0]
    floor = min_p * probs.amax(-1)
    # What comes before a token of probability p is at most 1 - p: most winners need no look.
    is_surely_kept = (top_p >= 1) | (prob > 1.0 - top_p + 1e-4)
    is_surely_kept &= (top_k == 0) & (prob >= floor)
    rows = (~is_surely_kept).nonzero()[:, 0]
    while rows.numel():
        row_probs = probs.index_select(0, rows)
        before, prob = _before(row_probs, winner[rows])
        count = before.sum(-1)
        mass = _ordered_sum(row_probs.mul_(before))
        kept = (mass < top_p[rows]) | (top_p[rows] >= 1)
        kept &= (count < top_k[rows]) | (top_k[rows] == 0)
        kept &= prob >= floor[rows]
        dropped = (~(kept | (count == 0))).nonzero()[:, 0]
        rows = rows[dropped]
        if rows.numel():
            scores_before = scores.index_select(0, rows).mul_(before.index_select(0, dropped))
            winner[rows] = _first_argmax(scores_before)
    return winner


def _before(probs: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """1.0 where a token comes before the row's ``token`` [N], else 0.0; and that token's own
    probability [N].  Masks are f32 because comparing into bool is several times slower on a CPU."""
    prob = probs.gather(1, token[:, None])
    above = torch.nextafter(prob, prob + 1)
    ids = torch.arange(probs.shape[1], dtype=torch.float32, device=probs.device)
    has_lower_id = ids.expand_as(probs).clone().lt_(token[:, None])
    # Equals with a lower id come before: for them the bound is the probability itself.
    bound = has_lower_id.mul_(prob - above).add_(above)
    return probs.clone().ge_(bound), prob[:, 0]


def _ordered_sum(values: Tensor) -> Tensor:
    """Row sums [N] whose bits do not depend on N (one long row alone would be split by threads)."""
    if len(values) == 1:
        return torch.cat((values, values)).sum(-1)[:1]
    return values.sum(-1)


def _probabilities(logits: Tensor, best: Tensor, temperature: Tensor) -> Tensor:
    """softmax(logits / temperature) in f32, with +inf logits sharing all of it."""
    is_infinite = best == torch.inf
    if bool(is_infinite.any()):
        at_top = torch.where(logits == torch.inf, 0.0, -torch.inf)
        logits = torch.where(is_infinite[:, None], at_top, logits)
        best = torch.where(is_infinite, 0.0, best)
    return (logits - best[:, None]).div_(temperature[:, None]).softmax(-1)


def _first_argmax(x: Tensor) -> Tensor:
    """argmax over the last dimension, lowest index first; by tiles, which is much faster."""
    N, V = x.shape
    if V % _ARGMAX_TILE or not V:
        return x.argmax(-1)
    tiles = x.view(N, V // _ARGMAX_TILE, _ARGMAX_TILE)
    tile = tiles.amax(-1).argmax(-1)
    inside = tiles[torch.arange(N, device=x.device), tile].argmax(-1)
    return tile * _ARGMAX_TILE + inside


def _rows(mask: Tensor) -> Tensor | slice | None:
    """An index for the rows of a mask: everything, some, or None for no row."""
    count = int(mask.sum())
    if count == 0:
        return None
    return slice(None) if count == mask.numel() else mask.nonzero()[:, 0]


def _mix64(x: Tensor) -> Tensor:
    """The finaliser of SplitMix64 on 64-bit words held as i64 (Steele et al. 2014)."""
    x = x + -7046029254386353131
    x = (x ^ _logical_shift(x, 30)) * -4658895280553007687
    x = (x ^ _logical_shift(x, 27)) * -7723592293110705685
    return x ^ _logical_shift(x, 31)


def _logical_shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _low_word(x: Tensor) -> Tensor:
    """The low 32 bits as i32."""
    return (((x & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000).to(torch.int32)
