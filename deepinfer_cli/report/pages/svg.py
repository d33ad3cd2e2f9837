"""Small charts as SVG text.  Colors are CSS classes of the page, so charts follow its theme."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from .words import short

_WIDTH, _HEIGHT = 400, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 8, 10, 24
_INNER_WIDTH = _WIDTH - _LEFT - _RIGHT
_INNER_HEIGHT = _HEIGHT - _TOP - _BOTTOM


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """``label`` is shown below the bar (may be empty), ``hint`` under the pointer."""

    value: float
    label: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A range of values: half of them are below ``middle``, nearly all below ``high``."""

    label: str
    middle: float
    most: float
    high: float


def _tick(value: float) -> str:
    """``short`` without trailing zeros: 1.5 k, 2.5, 0."""
    digits, space, unit = short(value).partition(" ")
    digits = digits.rstrip("0").rstrip(".") if "." in digits else digits
    return digits + space + unit


def area_chart(values: Sequence[float], ends: tuple[str, str], hint: str) -> str:
    """An area chart of equally spaced values; ``ends``: labels of the axis."""
    top = _ceiling(max(values))
    step = _INNER_WIDTH / len(values)
    # A value is for an interval, not for a moment: draw steps.
    points = []
    for place, value in enumerate(values):
        y = _y(value, top)
        points += [
            f"{_LEFT + place * step:.1f},{y:.1f}",
            f"{_LEFT + (place + 1) * step:.1f},{y:.1f}",
        ]
    base = _TOP + _INNER_HEIGHT
    line = "M" + " L".join(points)
    body = (
        f'<path class="area" d="{line} L{_LEFT + _INNER_WIDTH},{base} L{_LEFT},{base} Z"/>'
        f'<path class="line" d="{line}"/>'
    )
    labels = _text(_LEFT, _HEIGHT - 6, ends[0], "start")
    labels += _text(_WIDTH - _RIGHT, _HEIGHT - 6, ends[1], "end")
    return _chart(_grid(top) + body + labels, hint)


def bar_chart(
    bars: Sequence[Bar],
    hint: str,
    top: float | None = None,
    show: Callable[[float], str] | None = None,
) -> str:
    """A bar chart from 0 to ``top`` (default: a round number above the highest)."""
    top = _ceiling(max(bar.value for bar in bars)) if top is None else top
    step = _INNER_WIDTH / len(bars)
    width = min(step * 0.8, 64.0) if step < 30 else min(step - 6.0, 64.0)
    gap = step - width
    parts = [_grid(top, show or _tick)]
    for place, bar in enumerate(bars):
        x, y = _LEFT + place * step + gap / 2, _y(bar.value, top)
        height = max(_TOP + _INNER_HEIGHT - y, 1.5 if bar.value else 0)
        parts.append(
            f'<rect class="bar" x="{x:.1f}" y="{_TOP + _INNER_HEIGHT - height:.1f}" '
            f'width="{width:.1f}" height="{height:.1f}" rx="1.5">'
            f"<title>{escape(bar.hint)}</title></rect>"
        )
        if bar.label:
            parts.append(_text(x + width / 2, _HEIGHT - 6, bar.label, "middle"))
    return _chart("".join(parts), hint)


def range_chart(ranges: Sequence[Range], hint: str, show: Callable[[float], str]) -> str:
    """A line for each range from 0 to ``high``, thick up to ``most``, with a mark at ``middle``."""
    top = max(item.high for item in ranges) or 1.0
    left, right, row = 84, 60, 34
    width = _WIDTH - left - right
    parts = []
    for place, item in enumerate(ranges):
        y = 20 + place * row
        scale = [left + width * value / top for value in (item.middle, item.most, item.high)]
        parts.append(_text(left - 10, y + 4, item.label, "end"))
        parts.append(f'<line class="track" x1="{left}" x2="{left + width}" y1="{y}" y2="{y}"/>')
        parts.append(f'<line class="thin" x1="{left}" x2="{scale[2]:.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f'<line class="thick" x1="{left}" x2="{scale[1]:.1f}" y1="{y}" y2="{y}"/>')
        words = f"half below {show(item.middle)}, 90 % below {show(item.most)}"
        parts.append(
            f'<circle class="mark" cx="{scale[0]:.1f}" cy="{y}" r="5">'
            f"<title>{escape(item.label)}: {words}</title></circle>"
        )
        parts.append(_text(left + width + 8, y + 4, show(item.high), "start"))
    return _chart("".join(parts), hint, height=row * len(ranges) + 8)


def histogram_bars(buckets: Sequence[Sequence[int]], unit: str, most: int = 24) -> list[Bar]:
    """At most about ``most`` bars of equal width, or of equal ratio if the largest value is far
    above the others.  ``buckets``: (largest value, count), ascending."""
    low, high = buckets[0][0], buckets[-1][0]
    total = sum(num for _, num in buckets)
    middle = _middle(buckets, total)
    if high > 8 * max(middle, 8):
        edges = _edges_of_ratio(low, high, most)
    else:
        edges = _edges_of_width(low, high, most)
    counts = [0] * len(edges)
    place = 0
    for largest, num in buckets:
        while largest > edges[place]:
            place += 1
        counts[place] += num
    every = max(1, math.ceil(len(edges) / 6))
    bars = []
    before = low - 1
    for place, (edge, num) in enumerate(zip(edges, counts, strict=True)):
        span = f"{edge:,}" if before + 1 == edge else f"{before + 1:,} to {edge:,}"
        label = short(edge) if place % every == every // 2 else ""
        bars.append(Bar(value=num, label=label, hint=f"{span} {unit}: {num:,}"))
        before = edge
    return bars


def _middle(buckets: Sequence[Sequence[int]], total: int) -> int:
    seen = 0
    for largest, num in buckets:
        seen += num
        if 2 * seen >= total:
            return largest
    return buckets[-1][0]


def _edges_of_width(low: int, high: int, most: int) -> list[int]:
    width = 1
    for width in (mantissa * 10**power for power in range(12) for mantissa in (1, 2, 5)):
        if (high - low) // width < most:
            break
    first = max(low // width * width + width - 1, low)
    return list(range(first, high + width, width))


def _edges_of_ratio(low: int, high: int, most: int) -> list[int]:
    """Powers of two, or of its square root if there is room."""
    steps = 2 if 2 * math.log2(high / max(low, 1) + 1) <= most else 1
    first = math.floor(steps * math.log2(max(low, 1)))
    edges = {max(low, int(2 ** ((first + place) / steps))) for place in range(64 * steps)}
    kept = sorted(edge for edge in edges if edge < high)
    return [*kept, high]


def _ceiling(value: float) -> float:
    """A round number not below ``value``."""
    if value < 1e-9:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    # The middle of the axis is labeled, too: make it whole for small whole numbers.
    steps = (1, 2, 4, 6, 8, 10) if value < 10 else (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10)
    return next(m * power for m in steps if m * power >= value * 0.9999)


def _y(value: float, top: float) -> float:
    return _TOP + _INNER_HEIGHT * (1 - min(max(value, 0), top) / top)


def _grid(top: float, show: Callable[[float], str] = _tick) -> str:
    parts = []
    for share in (0, 0.5, 1):
        y = _TOP + _INNER_HEIGHT * (1 - share)
        kind = "axis" if share == 0 else "grid"
        parts.append(
            f'<line class="{kind}" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(_text(_LEFT - 6, y + 4, show(top * share), "end"))
    return "".join(parts)


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _chart(body: str, hint: str, height: int = _HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(hint)}">{body}</svg>'
    )
