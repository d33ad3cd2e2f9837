"""Compares two records: ratios of the rows that both have, and what else differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from deepinfer.bench.results import Measurement

from .page import table
from .record import BenchRecord


def comparison(new: BenchRecord, old: BenchRecord) -> str:
    """A Markdown section; ratios above 1 mean that ``new`` is faster."""
    before = {(row.phase, row.name, row.ranks, row.context): row for row in old.measurements}
    both = [
        (row, was)
        for row in new.measurements
        if (was := before.get((row.phase, row.name, row.ranks, row.context))) is not None
    ]
    text = f"## Against {old.created} (`{old.command}`)\n\n"
    changes = [
        *_changes(_circumstances(old), _circumstances(new)),
        *(change for row, was in both for change in _changes(_forms(was), _forms(row))),
    ]
    if changes:
        text += "Not the same in both:\n\n" + "".join(f"* {change}\n" for change in changes) + "\n"
    if not both:
        return text + "No row is in both.\n"
    body = [
        [
            f"{row.phase}: {row.name}",
            f"{was.tokens_per_s:,.1f}",
            f"{row.tokens_per_s:,.1f}",
            f"{row.tokens_per_s / was.tokens_per_s:.3f}",
        ]
        for row, was in both
    ]
    return text + table(["measurement", "old tokens/s", "new tokens/s", "new / old"], body)


def _circumstances(record: BenchRecord) -> dict[str, str]:
    """What the rows of a record depend on besides their names."""
    plan = record.plan
    return {
        "device": record.device,
        "driver": str(record.driver),
        "model": record.measured_model,
        "link": record.links,
        "acceptance": f"{plan.acceptance:.0%}",
        "form of experts": plan.expert_weights,
        "inputs of the output projection": plan.output_projection,
        "tokens replayed": str(plan.replay_tokens or "one window"),
    }


def _forms(row: Measurement) -> dict[str, str]:
    name = f"{row.phase}: {row.name}"
    return {
        f"experts of {name}": "fp8" if row.experts_as_fp8 else "fp4",
        f"ranks present of {name}": str(row.present),
    }


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for name, was in old.items():
        if new[name] != was:
            yield f"{name}: {was}, now {new[name]}"
