"""``bench.md``: the tables of a record as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from deepinfer.bench.results import LimitRow, Measurement

from .ranks import compared_ranks
from .record import BenchRecord

_MILLION = 1e6
_LEAST_IDLE = 1e-6  # share of a step; on a CPU the parts add up to the step, except for rounding


def page(record: BenchRecord) -> str:
    """The whole page."""
    parts = [_head(record)]
    if record.measurements:
        parts.append(f"## Measured on {_device(record)}\n")
        kinds = dict.fromkeys((row.phase, row.ranks) for row in record.measurements)
        parts += [
            _measured(record, [r for r in record.measurements if (r.phase, r.ranks) == kind])
            for kind in kinds
        ]
        parts.append(_ceilings(record))
        if compared := list(compared_ranks(record.measurements)):
            parts.append("### More ranks\n\n" + "\n".join(f"* {line}" for line in compared) + "\n")
        parts += [_split(row) for row in record.measurements if row.parts_s]
    if record.limits:
        parts.append(_limits(record))
    if notes := [*record.notes, *_table_notes(record.measurements)]:
        parts.append("## Notes\n\n" + "\n".join(f"* {note}" for note in notes) + "\n")
    return "\n".join(parts)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, numbers right-aligned, padded to be readable as plain text."""
    body = [list(row) for row in rows]
    widths = [max(len(line[i]) for line in [list(head), *body]) for i in range(len(head))]
    lines = [_line(head, widths), _line(["-" * (w - 1) + ":" for w in widths], widths)]
    return "\n".join(lines + [_line(row, widths) for row in body]) + "\n"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    return "| " + " | ".join(padded) + " |"


def _device(record: BenchRecord) -> str:
    return record.device.replace(" 1 threads", " 1 thread")


def _head(record: BenchRecord) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    status = "" if record.is_complete else "\n\n**Stopped early: rows are missing.**"
    return (
        f"# deepinfer bench\n\n`{record.command}`\n\n{record.created}, {record.host.cpu}, "
        f"{record.host.cores} cores; device {_device(record)}"
        f"{f', driver {record.driver}' if record.driver else ''}; seed {record.plan.seed}\n\n"
        f"{versions}{status}\n"
    )


def _measured(record: BenchRecord, rows: list[Measurement]) -> str:
    first = rows[0]
    is_decode, has_link = first.phase == "decode", first.ranks > 1
    has_forms = any(row.experts_as_fp8 for row in rows)
    head = ["measurement", *(["experts"] if has_forms else []), "steps", "step ms"]
    head += ["link ms"] if has_link else []
    head += ["drafts", "tokens/step"] if is_decode else []
    head += ["tokens/s", "serial tokens/s"] if has_link else ["tokens/s"]
    head += ["tokens/s/user"] if is_decode else []
    head += ["of local limit"] if has_link else []
    head += ["of overlap limit", "of serial limit"]
    has_energy = any(row.energy_j is not None for row in rows)
    head += ["J/token"] if has_energy else []
    # The price is for the profile's device, not for a CPU.
    price = record.price_per_hour if record.is_on_gpu else None
    head += ["cost/M tokens"] if price is not None else []
    body = []
    for row in rows:
        cells = [row.name, *(["fp8" if row.experts_as_fp8 else "fp4"] if has_forms else [])]
        cells += [str(len(row.step_s)), _ms(row.local_s)]
        if has_link:
            real = row.present == row.ranks
            cells.append("in the step" if real else f"{_ms(row.link_s)} (modeled)")
        cells += [f"{row.num_drafts:.2f}", f"{row.num_tokens:,.1f}"] if is_decode else []
        cells.append(_rate(row.tokens_per_s))
        cells += [_rate(row.serial_tokens_per_s)] if has_link else []
        cells += [_rate(row.tokens_per_s_user)] if is_decode else []
        cells += [_percent(row.share_of_local_limit)] if has_link else []
        cells += [_percent(row.share_of_overlap_limit), _percent(row.share_of_serial_limit)]
        if has_energy:
            joules = row.energy_per_token_j
            cells.append("" if joules is None else f"{joules:,.3f}")
        if price is not None:
            cells.append(f"{cost_per_million(price, row.tokens_per_s):,.2f}")
        body.append(cells)
    deployment = f", {first.present} of {first.ranks} ranks" if has_link else ""
    title = f"### {first.phase.capitalize()}, {record.measured_model}{deployment}\n\n"
    return title + table(head, body)


def _table_notes(rows: Sequence[Measurement]) -> Iterator[str]:
    for ranks, num_bytes in dict.fromkeys((row.ranks, row.host_table_bytes) for row in rows):
        if num_bytes:
            yield (
                f"EP{ranks}: a rank's Engram tables do not fit the device beside the rest, so rows "
                f"are read from pinned host memory; tables of {num_bytes / 1e9:,.1f} GB stand for "
                "the rank's own"
            )


def _ceilings(record: BenchRecord) -> str:
    if not record.ceilings:
        return ""
    found = "; ".join(f"{c.name} {unit(c.value, c.unit)}" for c in record.ceilings)
    return f"Ceilings in the same run: {found}.\n"


def _split(row: Measurement) -> str:
    # The profiled step is not one of the timed steps.
    idle_s = max(0.0, row.local_s - sum(row.parts_s.values()))
    parts = dict(row.parts_s)
    if idle_s > _LEAST_IDLE * row.local_s:
        parts["nothing (gaps, the host)"] = idle_s
    total = sum(parts.values())
    body = [
        [name, _ms(seconds), _percent(seconds / total)]
        for name, seconds in sorted(parts.items(), key=lambda item: -item[1])
    ]
    deployment = f", {row.present} of {row.ranks} ranks" if row.ranks > 1 else ""
    return f"#### Where the step goes: {row.name}{deployment}\n\n" + table(
        ["part", "ms", "share"], body
    )


def _limits(record: BenchRecord) -> str:
    plan = record.plan
    groups: dict[tuple[str, int, int], list[LimitRow]] = {}
    for row in record.limits:
        groups.setdefault((row.phase, row.ranks, row.num_drafts), []).append(row)
    rows = "".join(_limit_table(record, group) for group in groups.values())
    return (
        f"## Limits of {plan.device_profile} ({plan.profile().source})\n\n"
        f"DeepSeek-V4.1-Flash at the device's peak rates, exchange of {record.links}: what no "
        f"program can exceed, not a measurement.\n{rows}"
    )


def _limit_table(record: BenchRecord, rows: list[LimitRow]) -> str:
    first = rows[0]
    is_decode = first.phase == "decode"
    head = ["requests" if is_decode else "tokens", "GB", "local ms", "link ms", "overlap ms"]
    head += ["tokens/s", "serial tokens/s"] + (["tokens/s/user"] if is_decode else [])
    head += ["cost/M tokens"] if record.price_per_hour is not None else []
    body = []
    for row in rows:
        gigabytes = (row.weight_bytes + row.cache_bytes) / 1e9
        cells = [f"{row.size:,}", f"{gigabytes:,.0f}" + ("" if row.fits else " (too much)")]
        limit = row.limit
        cells += [_ms(limit.local_s), _ms(limit.link_s), _ms(limit.overlap_s)]
        cells += [_rate(limit.tokens_per_s), _rate(limit.serial_tokens_per_s)]
        cells += [_rate(row.tokens_per_s_user)] if is_decode else []
        if record.price_per_hour is not None:
            cells.append(f"{cost_per_million(record.price_per_hour, limit.tokens_per_s):,.2f}")
        body.append(cells)
    drafts = f", {first.num_drafts} drafts verified, {record.plan.acceptance:.0%} accepted each"
    title = f"\n### {first.phase.capitalize()}, EP{first.ranks}"
    title += ", experts as FP8" if first.experts_as_fp8 else ""
    decode = f", context {first.context:,}{drafts}"
    return title + (decode if is_decode else "") + "\n\n" + table(head, body)


def cost_per_million(price_per_hour: float, tokens_per_s: float) -> float:
    """Cost on one rank's device, in the currency of the price."""
    return price_per_hour / 3600 / tokens_per_s * _MILLION


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f}"


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def unit(value: float, name: str) -> str:
    """A rate with a suitable prefix: ``4.2 TB/s``."""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= scale:
            return f"{value / scale:,.1f} {prefix}{name}"
    return f"{value:,.0f} {name}"
