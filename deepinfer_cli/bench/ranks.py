"""Sentences on whether more ranks give more tokens per device, and if not, why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from deepinfer.bench.results import Measurement


def compared_ranks(rows: Sequence[Measurement]) -> Iterator[str]:
    """One sentence per measurement that was made with several numbers of ranks."""
    by_name: dict[tuple[str, str], list[Measurement]] = {}
    for row in rows:
        by_name.setdefault((row.phase, row.name), []).append(row)
    for (phase, name), found in by_name.items():
        for few, many in pairwise(sorted(found, key=lambda row: row.ranks)):
            yield f"{phase}, {name}: {_sentence(few, many)}"


def _sentence(few: Measurement, many: Measurement) -> str:
    ratio = many.tokens_per_s / few.tokens_per_s
    text = (
        f"a device of EP{many.ranks} gives {ratio:.2f} times the tokens of one of EP{few.ranks} "
        f"with its exchange hidden, {many.serial_tokens_per_s / few.serial_tokens_per_s:.2f} times "
        "with nothing hidden"
    )
    if ratio >= 1:
        return text
    if many.link_s > many.local_s:
        return (
            f"{text}; its exchange takes {many.link_s * 1e3:,.1f} ms, longer than the "
            f"{many.local_s * 1e3:,.1f} ms of its own work: the link is the limit"
        )
    return (
        f"{text}; its own work takes {many.local_s * 1e3:,.1f} ms against "
        f"{few.local_s * 1e3:,.1f}: fewer weights are read, and that saves less than the tokens "
        "of more ranks cost"
    )
