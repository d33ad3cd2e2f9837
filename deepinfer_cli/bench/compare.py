"""Two records beside each other: ratios of the rows that both have."""

from __future__ import annotations

from .page import table
from .record import BenchRecord


def comparison(new: BenchRecord, old: BenchRecord) -> str:
    """A Markdown section; ratios above 1 mean that ``new`` is faster."""
    before = {(row.phase, row.name, row.ranks, row.context): row for row in old.measurements}
    body = []
    for row in new.measurements:
        was = before.get((row.phase, row.name, row.ranks, row.context))
        if was is not None:
            ratio = row.tokens_per_s / was.tokens_per_s
            cells = [f"{was.tokens_per_s:,.1f}", f"{row.tokens_per_s:,.1f}", f"{ratio:.3f}"]
            body.append([f"{row.phase}: {row.name}", *cells])
    head = ["measurement", "old tokens/s", "new tokens/s", "new / old"]
    text = f"## Against {old.created} (`{old.command}`)\n\n"
    if old.device != new.device:
        text += f"The old run was on {old.device}, this one on {new.device}.\n\n"
    if not body:
        return text + "No row is in both.\n"
    return text + table(head, body)
