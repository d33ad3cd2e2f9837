"""Plots of a record: rate per user against rate per device, and where a step's time goes.

Marks differ in shape and hatching as well as in color, so that they can be told apart in
black-and-white print.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deepinfer.errors import ConfigError

from .record import BenchRecord

_MARKS = "os^Dvx"
_HATCHES = ("", "//", "..", "xx", "\\\\", "++", "--", "oo")


def save_plots(record: BenchRecord, folder: Path) -> list[Path]:
    """Save plots as PNG and SVG, if there are rows.  Raises: ConfigError without matplotlib."""
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError(
            "plots need matplotlib: pip install 'deepinfer-cli[plots]', or leave out --plots"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    saved = []
    for name, draw in (("pareto", _draw_pareto), ("step", _draw_steps)):
        figure, axes = pyplot.subplots(figsize=(9, 5.4), layout="constrained")
        if draw(record, axes):
            for kind in ("png", "svg"):
                path = folder / f"{name}.{kind}"
                figure.savefig(path, dpi=150)
                saved.append(path)
        pyplot.close(figure)
    return saved


def _draw_pareto(record: BenchRecord, axes: Any) -> bool:
    from matplotlib import ticker

    series: dict[str, list[tuple[float, float, int]]] = {}
    for row in record.measurements:
        if row.phase == "decode" and row.tokens_per_s_user is not None:
            kind = row.name.partition(", ")[2] or "measured"
            kind += f", EP{row.ranks}" if row.ranks > 1 else ""
            point = (row.tokens_per_s_user, row.tokens_per_s, row.size)
            series.setdefault(f"measured: {kind}", []).append(point)
    if not series:
        for limit in record.limits:
            if limit.phase == "decode" and limit.tokens_per_s_user is not None:
                point = (limit.tokens_per_s_user, limit.limit.tokens_per_s, limit.size)
                label = f"limit of {record.plan.device_profile}, EP{limit.ranks}"
                series.setdefault(label, []).append(point)
    for number, (label, points) in enumerate(series.items()):
        points.sort()
        users, devices, sizes = zip(*points, strict=True)
        axes.plot(users, devices, marker=_MARKS[number % len(_MARKS)], markersize=9, label=label)
        for user, device, size in points:
            axes.annotate(f"{size}", (user, device), xytext=(7, 7), textcoords="offset points")
    axes.set(xlabel="tokens/s of one user", ylabel="tokens/s of one device")
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
        axis.set_minor_formatter(ticker.NullFormatter())
    axes.set_title("Decode; the number at a mark is requests at once")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    return bool(series)


def _draw_steps(record: BenchRecord, axes: Any) -> bool:
    """The split of the time of GPU steps; the black line is the limit by peak rates."""
    rows = [row for row in record.measurements if row.parts_s or row.link_s]
    names = [f"{row.phase}: {row.name}, EP{row.ranks}" for row in rows]
    left = [0.0] * len(rows)

    def bar(label: str, seconds: list[float], **look: Any) -> None:
        if any(seconds):
            widths = [value * 1e3 for value in seconds]
            axes.barh(names, widths, left=left, label=label, **look)
            left[:] = [a + b for a, b in zip(left, widths, strict=True)]

    for number, part in enumerate(sorted({part for row in rows for part in row.parts_s})):
        hatch = _HATCHES[number % len(_HATCHES)]
        widths = [row.parts_s.get(part, 0.0) for row in rows]
        bar(part.replace("_", " "), widths, hatch=hatch, edgecolor="white")
    rest = [max(0.0, row.local_s - sum(row.parts_s.values())) for row in rows]
    split = [value if row.parts_s else 0.0 for row, value in zip(rows, rest, strict=True)]
    whole = [0.0 if row.parts_s else value for row, value in zip(rows, rest, strict=True)]
    bar("gaps, the host", split, color="0.85")
    bar("this rank, not split", whole, color="0.6")
    bar("link, modelled", [row.link_s for row in rows], color="white", edgecolor="black")
    for place, row in enumerate(rows):
        if row.limit is not None:
            axes.vlines(row.limit.overlap_s * 1e3, place - 0.45, place + 0.45, color="black", lw=3)
    axes.invert_yaxis()
    axes.set(xlabel="ms of a step, parts one after the other; black line: overlap limit")
    axes.legend(fontsize="small")
    return bool(rows)
