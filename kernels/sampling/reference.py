"""Seeded sampling whose noise is a function of (row seed, position, token id) only.

``argmax(logit / temperature + Gumbel)`` samples from the softmax.  With an exponential variable E
``argmax(softmax(logit / temperature) / E)`` is the same, one logarithm cheaper.

Top-k, top-p and min-p each keep the tokens above some probability, treating equals alike.  If the
winner is not kept, it is excluded together with everything less probable, and the best score among
the more probable tokens is tried next.  Nothing is sorted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

INVALID_TOKEN = -1

_GOLDEN_64 = -7046029254386353131
_GOLDEN_32 = -1640531527
_HASH_BITS = 31
_ARGMAX_TILE = 64
# So many logits are processed at a time, so that temporaries stay in the CPU's cache.
_CPU_TILE_VALUES = 2**16


def exponential_noise(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Exponential variables of mean 1, a pure function of (seed, position, token id).

    Shapes: seeds [N] i64 (the bits of a 64-bit seed), positions [N] i64; returns
    [N, vocab_size] f32.  A value is computed from the uniform (h + 0.5) / 2**31 with a 31-bit hash
    h, which is accurate where it is small (small values win) and strictly between 0 and 1, so that
    every value is positive and finite.
    """
    return _noise(_row_words(seeds, positions), vocab_size)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """Sample one token per row; temperature 0 takes the largest logit, lowest id first.

    Shapes: logits [N, V] f32; temperature, top_p, min_p [N] f32; top_k [N] i64 (0 = all);
    seeds, positions [N] i64; returns [N] i64, ``INVALID_TOKEN`` for a row with NaN or without any
    logit above -inf.  Several +inf logits share the whole probability.
    A token is kept if the more probable ones sum to less than top_p, if they are fewer than top_k,
    and if it has at least min_p times the largest probability; all three refer to
    softmax(logits / temperature), and equally probable tokens are kept or dropped together.
    Batch-invariant: yes.  Source: Gumbel-max, Maddison et al. 2014.
    """
    best = logits.amax(-1)
    is_valid = ~(torch.isnan(best) | (best == -torch.inf))
    is_greedy = temperature == 0
    chosen = torch.full_like(positions, INVALID_TOKEN)
    greedy_rows = (is_valid & is_greedy).nonzero()[:, 0]
    if greedy_rows.numel():
        chosen[greedy_rows] = _first_argmax(_take(logits, greedy_rows))
    rows = (is_valid & ~is_greedy).nonzero()[:, 0]
    if rows.numel():
        filters = _Filters.of(top_p[rows], top_k[rows], min_p[rows])
        words = _row_words(seeds[rows], positions[rows])
        chosen[rows] = _draw(_take(logits, rows), best[rows], temperature[rows], words, filters)
    return chosen


@dataclass(frozen=True, slots=True)
class _Filters:
    """The filters of each row, in the form that is cheapest to check.

    max_mass, max_count [N] f32: the more probable tokens must have less than this mass and be fewer
    than this (inf: no limit); min_share [N] f32 of the largest probability.  A winner with a
    probability p above ``sure`` [N] f32 is kept without further checks, since the more probable
    tokens have at most 1 - p together.
    """

    max_mass: Tensor
    max_count: Tensor
    min_share: Tensor
    sure: Tensor
    is_counted: bool
    is_floored: bool

    @classmethod
    def of(cls, top_p: Tensor, top_k: Tensor, min_p: Tensor) -> _Filters | None:
        """None when no row has a filter."""
        is_counted, is_floored = bool((top_k > 0).any()), bool((min_p > 0).any())
        if not (is_counted or is_floored or bool((top_p < 1).any())):
            return None
        # Above 0 even if top_p underflows in f32: else the most probable token would be dropped.
        max_mass = torch.where(top_p < 1, top_p.clamp(min=torch.finfo(top_p.dtype).tiny), torch.inf)
        sure = torch.where((top_k > 0) | (min_p > 0), torch.inf, 1.0001 - max_mass)
        max_count = torch.where(top_k > 0, top_k, torch.inf)
        return cls(max_mass, max_count, min_p, sure, is_counted, is_floored)

    def dropped(self, probs: Tensor, token: Tensor, rows: Tensor | slice) -> Tensor:
        """Indices [m] i64 of the rows of probs [n, V] whose ``token`` [n] is dropped.

        ``rows`` are the indices of these n rows in the batch.  The most probable token is kept.
        """
        prob = probs.gather(1, token[:, None])
        unsure = (prob[:, 0] <= self.sure[rows]).nonzero()[:, 0]
        if not unsure.numel():
            return unsure
        probs, prob = _take(probs, unsure), prob[unsure]
        # An f32 mask, because comparing into bool is several times slower on a CPU.
        above = probs.clone().gt_(prob)
        count = above.sum(-1) if self.is_counted else None
        is_dropped = _ordered_sum(above.mul_(probs)) >= self.max_mass[rows][unsure]
        if count is not None:
            is_dropped |= count >= self.max_count[rows][unsure]
        if self.is_floored:
            is_dropped |= prob[:, 0] < self.min_share[rows][unsure] * probs.amax(-1)
        return unsure[is_dropped]


def _draw(
    logits: Tensor, best: Tensor, temperature: Tensor, words: Tensor, filters: _Filters | None
) -> Tensor:
    """One token per row at a positive temperature, [N] i64; ``best`` [N] is the rows' maximum."""
    N, V = logits.shape
    is_infinite = best == torch.inf
    if bool(is_infinite.any()):
        at_top = torch.where(logits == torch.inf, 0.0, -torch.inf)
        logits = torch.where(is_infinite[:, None], at_top, logits)
        best = torch.where(is_infinite, 0.0, best)
    is_plain = bool((temperature == 1).all())
    size = max(1, _CPU_TILE_VALUES // V) if logits.device.type == "cpu" else N
    winners: list[Tensor] = []
    dropped: list[tuple[Tensor, Tensor, Tensor]] = []
    for begin in range(0, N, size):
        tile = slice(begin, begin + size)
        scaled = logits[tile]
        if not is_plain:  # at temperature 1 the softmax itself does this, with the same bits
            scaled = (scaled - best[tile, None]).div_(temperature[tile, None])
        probs = scaled.softmax(-1)
        noise = _noise(words[tile], V)
        scores = torch.div(probs, noise, out=noise)
        winners.append(_first_argmax(scores))
        if filters is not None:
            rows = filters.dropped(probs, winners[-1], tile)
            if rows.numel():
                dropped.append((rows + begin, _take(probs, rows), _take(scores, rows)))
    winner = torch.cat(winners)
    if filters is not None and dropped:
        rows, probs, scores = (torch.cat(parts) for parts in zip(*dropped, strict=True))
        _replace(winner, rows, probs, scores, filters)
    return winner


def _replace(
    winner: Tensor, rows: Tensor, probs: Tensor, scores: Tensor, filters: _Filters
) -> None:
    """Replace the dropped winners of ``rows`` [n] by the best kept ones, in place.

    Shapes: winner [N] i64; probs, scores [n, V] f32 of those rows.
    """
    while rows.numel():
        prob = probs.gather(1, winner[rows, None])
        token = _first_argmax(scores.mul_(probs > prob))
        winner[rows] = token
        again = filters.dropped(probs, token, rows)
        rows, probs, scores = rows[again], _take(probs, again), _take(scores, again)


def _ordered_sum(values: Tensor) -> Tensor:
    """Row sums [N] whose bits do not depend on N (torch splits a single long row among threads)."""
    if values.shape[0] == 1:
        return torch.cat((values, values)).sum(-1)[:1]
    return values.sum(-1)


def _first_argmax(x: Tensor) -> Tensor:
    """argmax over the last dimension, lowest index first; by tiles, which is much faster."""
    N, V = x.shape
    if V % _ARGMAX_TILE or not V:
        return x.argmax(-1)
    tiles = x.view(N, V // _ARGMAX_TILE, _ARGMAX_TILE)
    tile = tiles.amax(-1).argmax(-1)
    inside = tiles[torch.arange(N, device=x.device), tile].argmax(-1)
    return tile * _ARGMAX_TILE + inside


def _take(x: Tensor, rows: Tensor) -> Tensor:
    """The given rows of x; x itself if they are all of its rows."""
    return x if rows.shape[0] == x.shape[0] else x.index_select(0, rows)


def _row_words(seeds: Tensor, positions: Tensor) -> Tensor:
    """Output number ``position`` of SplitMix64 started at ``seed`` (Steele et al. 2014), as two
    32-bit words, [N, 2] i32."""
    x = seeds + (positions + 1) * _GOLDEN_64
    x = (x ^ _logical_shift(x, 30)) * -4658895280553007687
    x = (x ^ _logical_shift(x, 27)) * -7723592293110705685
    return (x ^ _logical_shift(x, 31)).view(torch.int32).view(-1, 2)


def _logical_shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _noise(words: Tensor, vocab_size: int) -> Tensor:
    """Exponential variables [N, vocab_size] f32 from the rows' words [N, 2] i32."""
    token_words = torch.arange(vocab_size, dtype=torch.int32, device=words.device) * _GOLDEN_32
    first, second = words[:, :1], words[:, 1:] | 1
    hashed = token_words ^ first
    shifted = torch.empty_like(hashed)
    for factor, shift in ((2146121005, 16), (second, 15)):
        hashed.mul_(factor)
        torch.bitwise_right_shift(hashed, shift, out=shifted)
        hashed.bitwise_xor_(shifted.bitwise_and_((1 << (32 - shift)) - 1))
    # The last multiplication mixes the high bits best, which are the high bits of the uniform.
    hashed.mul_(-2073254261).bitwise_and_((1 << _HASH_BITS) - 1)
    # The factor 1 - 2**-24 keeps the largest uniform below 1 after rounding to f32.
    uniform = shifted.view(torch.float32).copy_(hashed)
    uniform.mul_(-(2.0**-_HASH_BITS) * (1 - 2.0**-24)).sub_(0.5 * 2.0**-_HASH_BITS)
    return uniform.log1p_().neg_()
