"""Combines a measured row with its limit."""

from __future__ import annotations

from collections.abc import Mapping

from .plan import BenchPlan
from .results import LimitRow, Measurement
from .timed import TimedSteps


def measured_row(
    name: str,
    row: LimitRow,
    timed: TimedSteps,
    plan: BenchPlan,
    exchanges: int,
    parts: Mapping[str, float],
    present: int = 1,
) -> Measurement:
    """The link to absent ranks is modeled by bytes, and two latencies per exchange.  The exchange
    between ``present`` ranks is part of the measured step."""
    link, link_s = plan.exchange(row.ranks), 0.0
    if row.ranks > present:
        absent = link.num_receivers(row.ranks) - max(1, present // link.ranks_per_node)
        share = absent / max(1, link.num_receivers(row.ranks) - 1)
        link_s = share * row.limit.link_s + 2 * exchanges * link.latency_s
    return Measurement(
        phase=row.phase,
        name=name,
        size=row.size,
        context=row.context,
        ranks=row.ranks,
        present=present,
        num_drafts=row.num_drafts,
        num_tokens=row.limit.num_tokens,
        step_s=timed.step_s,
        energy_j=timed.energy_j,
        link_s=link_s,
        limit=row.limit,
        parts_s=parts,
        experts_as_fp8=row.experts_as_fp8,
        accepted_length=row.limit.num_tokens / row.size if row.phase == "decode" else None,
    )
