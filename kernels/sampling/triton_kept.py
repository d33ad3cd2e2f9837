"""The tokens that filters keep, in Triton: those whose weight reaches a threshold, found by search.

Nothing is sorted.  Each pass over a row sums the weights above eight thresholds at once, which
narrows the range of the least kept weight to an eighth.  Once few weights are in the range, they
are compacted, and the search ends among them without another pass.  All sums have a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Capacity of the list of candidates for the least kept weight, per lane of a tile.
DEPTH = 8

_ROOM = tl.constexpr(DEPTH)
_THRESHOLDS = tl.constexpr(8)
_AT_ONCE = tl.constexpr(4)  # tiles, for more loads in flight
_LARGEST = tl.constexpr(3.4028234663852886e38)


@triton.jit
def kept_weights(
    logits, temperature, top_p, top_k, min_p, room, vocab_size, TILE: tl.constexpr
):  # fmt: skip
    """The largest logit of a row, the least weight that is kept, and the sum of those kept.

    If a logit is NaN or none is above -inf, no weight reaches the least, and the sum is 1.
    ``room`` is a workspace of DEPTH * TILE f32.
    """
    best = _best(logits, vocab_size, TILE)
    # The bits of weights from 0 to 1, as integers, have the same order.
    low = tl.minimum(tl.maximum(min_p, 0.0), 1.0).to(tl.int32, bitcast=True)
    mass = 1.0
    if best > float("-inf"):
        mass = -1.0
        for number in range(2):
            is_mass = number == 1
            limit = tl.where(is_mass, top_p, top_k.to(tl.float32))
            if tl.where(is_mass, top_p < 1.0, top_k > 0):
                # The weights not above the least kept one sum to more than 1 - top_p, so it is
                # above (1 - top_p) / vocab_size.  An eighth of that allows for rounded sums.
                sure = tl.where(is_mass & (top_p < 0.9999), (1.0 - top_p) / (8.0 * vocab_size), 0.0)
                low = tl.maximum(low, sure.to(tl.int32, bitcast=True))
                low, mass = _search(
                    logits, best, temperature, low, limit, is_mass, room, vocab_size, TILE
                )
    least = low.to(tl.float32, bitcast=True)
    if mass < 0.0:
        sums = tl.zeros([TILE], tl.float32)
        for first in range(0, vocab_size, TILE * _AT_ONCE):
            for tile in tl.static_range(_AT_ONCE):
                token = first + tile * TILE + tl.arange(0, TILE)
                weights = drawn_weights(logits, token, best, temperature, vocab_size)
                sums = tl.where(weights >= least, sums + weights, sums)
        mass = tl.sum(sums, 0)
    return best, least, mass


@triton.jit
def drawn_weights(logits, token, best, temperature, vocab_size):
    """Unnormalized probabilities, 1 at the best; all infinite logits have 1.

    Multiplies where ``token_weights`` divides, so they differ by a few ulps.
    """
    return _weights(_load(logits, token, vocab_size), best, temperature)


@triton.jit
def _weights(x, best, temperature):
    factor = 1.4426950408889634 / temperature
    top = tl.where(best == float("inf"), _LARGEST, best)
    return tl.exp2((tl.minimum(x, _LARGEST) - top) * factor)


@triton.jit
def _load(logits, token, vocab_size):
    return tl.load(logits + token, mask=token < vocab_size, other=float("-inf"))


@triton.jit
def _load_four(logits, token, vocab_size, TILE: tl.constexpr):
    return (
        _load(logits, token, vocab_size), _load(logits, token + TILE, vocab_size),
        _load(logits, token + 2 * TILE, vocab_size), _load(logits, token + 3 * TILE, vocab_size),
    )  # fmt: skip


@triton.jit
def _add(sums, weights, threshold, is_mass):
    value = tl.where(is_mass, weights, 1.0)
    return tl.where(weights[None, :] > threshold, sums + value[None, :], sums)


@triton.jit
def _best(logits, vocab_size, TILE: tl.constexpr):
    """The largest logit, or NaN if any is NaN."""
    most = tl.full([TILE], float("-inf"), tl.float32)
    num_nan = tl.zeros([TILE], tl.int32)
    for first in range(0, vocab_size, TILE * _AT_ONCE):
        for tile in tl.static_range(_AT_ONCE):
            token = first + tile * TILE + tl.arange(0, TILE)
            x = _load(logits, token, vocab_size)
            most = tl.maximum(most, x)
            num_nan += (x != x).to(tl.int32)
    return tl.where(tl.max(num_nan, 0) == 0, tl.max(most, 0), float("nan"))


@triton.jit
def _search(
    logits, best, temperature, low, limit, is_mass, room, vocab_size, TILE: tl.constexpr
):  # fmt: skip
    """The least weight, as bits and not below ``low``, such that those above it have less than the
    fraction ``limit`` of the total mass, or are fewer than ``limit``; also the mass of those not
    below it, or -1 if unknown.
    """
    number = tl.arange(0, _THRESHOLDS)
    high, above, mass = 0x3F800000, 0.0, -1.0  # 1 is always kept
    while low < high:
        step = tl.maximum((high - low) // _THRESHOLDS, 1)
        bits = tl.where(number == 0, 0, tl.minimum(low + number * step, high) - 1)
        sums = _sums_above(logits, best, temperature, bits, is_mass, vocab_size, TILE)
        total = tl.max(sums, 0)
        bound = tl.where(is_mass, limit * total, limit)
        is_dropped = sums >= bound
        low = tl.maximum(low, tl.max(tl.where(is_dropped, bits + 1, 0), 0))
        high = tl.minimum(high, tl.min(tl.where(is_dropped, high, bits), 0))
        # Mass or number of the weights above ``high``, and of those from ``low`` on.
        above = tl.maximum(above, tl.max(tl.where(is_dropped, 0.0, sums), 0))
        reached = tl.min(tl.where(is_dropped, sums, total), 0)
        least = tl.where(is_mass, low.to(tl.float32, bitcast=True), 1.0)
        if (low < high) & (reached - above <= TILE * least):
            low, high, mass = _search_few(
                logits, best, temperature, low, high, above, bound, is_mass, room, vocab_size, TILE
            )
    return low, mass


@triton.jit
def _sums_above(
    logits, best, temperature, bits, is_mass, vocab_size, TILE: tl.constexpr
):  # fmt: skip
    """Sums or numbers [T] of the weights above thresholds, given as bits [T]."""
    threshold = bits.to(tl.float32, bitcast=True)[:, None]
    sums = tl.zeros([_THRESHOLDS, TILE], tl.float32)
    lane = tl.arange(0, TILE)
    x = tl.full([TILE], float("-inf"), tl.float32)
    y, z, u = x, x, x
    for first in range(0, vocab_size + 4 * TILE, 4 * TILE):
        one, two = _weights(x, best, temperature), _weights(y, best, temperature)
        three, four = _weights(z, best, temperature), _weights(u, best, temperature)
        # Software prefetch: the next tiles are loaded while these are added.
        x, y, z, u = _load_four(logits, first + lane, vocab_size, TILE)
        sums = _add(sums, one, threshold, is_mass)
        sums = _add(sums, two, threshold, is_mass)
        sums = _add(sums, three, threshold, is_mass)
        sums = _add(sums, four, threshold, is_mass)
    return tl.sum(sums, 1)


@triton.jit
def _search_few(
    logits, best, temperature, low, high, above, bound, is_mass, room, vocab_size,
    TILE: tl.constexpr,
):  # fmt: skip
    """The rest of a search, if the weights from ``low`` to ``high`` fit into the list.

    Returns low and high, equal if the search has finished, and the mass as ``_search`` does.
    """
    lane = tl.arange(0, TILE)
    count = tl.zeros([TILE], tl.int32)
    x = tl.full([TILE], float("-inf"), tl.float32)
    y, z, u = x, x, x
    for first in range(0, vocab_size + 4 * TILE, 4 * TILE):
        one, two = _weights(x, best, temperature), _weights(y, best, temperature)
        three, four = _weights(z, best, temperature), _weights(u, best, temperature)
        x, y, z, u = _load_four(logits, first + lane, vocab_size, TILE)
        count = _put(room, count, lane, one, low, high, TILE)
        count = _put(room, count, lane, two, low, high, TILE)
        count = _put(room, count, lane, three, low, high, TILE)
        count = _put(room, count, lane, four, low, high, TILE)
    mass = -1.0
    if tl.max(count, 0) <= _ROOM:
        # Other threads wrote the weights that are read next.
        tl.debug_barrier()
        depth = tl.arange(0, _ROOM)[:, None]
        place = room + depth * TILE + lane[None, :]
        weights = tl.load(place, mask=depth < count[None, :], other=0.0)
        value = tl.where(is_mass, weights, 1.0)
        while low < high:
            middle = (low + high) // 2
            is_above = weights > middle.to(tl.float32, bitcast=True)
            sums = tl.sum(tl.where(is_above, value, 0.0), 0)
            is_dropped = above + tl.sum(sums, 0) >= bound
            low = tl.where(is_dropped, middle + 1, low)
            high = tl.where(is_dropped, high, middle)
        if is_mass:
            is_kept = weights >= low.to(tl.float32, bitcast=True)
            mass = above + tl.sum(tl.sum(tl.where(is_kept, weights, 0.0), 0), 0)
    return low, high, mass


@triton.jit
def _put(room, count, lane, weights, low, high, TILE: tl.constexpr):
    """Append the weights from ``low`` to ``high`` to the lists of their lanes; returns the
    counts."""
    bits = weights.to(tl.int32, bitcast=True)
    is_inside = (bits >= low) & (bits <= high)
    tl.store(room + count * TILE + lane, weights, mask=is_inside & (count < _ROOM))
    return count + is_inside.to(tl.int32)
