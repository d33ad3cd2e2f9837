"""Formats numbers for people."""

from __future__ import annotations

_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def count(value: float | None) -> str:
    """All digits, in groups: ``1,234,567``."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.2f}"


def counted(num: float, thing: str) -> str:
    """``1 row``, ``1,234 rows``."""
    return f"{count(num)} {thing}{'' if num == 1 else 's'}"


def short(value: float) -> str:
    """About three digits: ``950``, ``1.23 M``, ``0.4``."""
    for size, unit in _UNITS:
        if abs(value) >= size * 0.9995:
            return f"{_three_digits(value / size)} {unit}"
    return _three_digits(value)


def milliseconds(value: float | None) -> str:
    """``12 ms``, ``1.3 s``, ``4m 05s``."""
    return "–" if value is None else seconds(value / 1_000)


def seconds(value: float) -> str:
    """``420 ms``, ``12.3 s``, ``2h 10m``."""
    if value < 0.9995:
        return f"{1_000 * value:.0f} ms" if value >= 0.0005 else "0 s"
    if value < 60:
        return f"{_three_digits(value)} s"
    whole = round(value)
    if whole < 3_600:
        return f"{whole // 60}m {whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3_600}h {whole % 3_600 // 60:02}m"
    return f"{whole // 86_400}d {whole % 86_400 // 3_600:02}h"


def size(num_bytes: float) -> str:
    """``512 B``, ``19.1 MiB``, ``158 GiB``."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if num_bytes >= 1024**power:
            return f"{_three_digits(num_bytes / 1024**power)} {unit}"
    return f"{num_bytes:.0f} B"


def percent(share: float | None) -> str:
    """``97 %``; small shares keep a digit, so that they are not shown as zero."""
    if share is None:
        return "–"
    value = 100 * share
    if 0 < value < 0.05:
        return "< 0.1 %"
    if 99.95 <= value < 100:
        return "> 99.9 %"
    return f"{value:.0f} %" if value in (0, 100) or 10 <= value < 99 else f"{value:.1f} %"


def _three_digits(value: float) -> str:
    if value == int(value) and abs(value) < 1_000:
        return f"{value:.0f}"
    decimals = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{decimals}f}"
