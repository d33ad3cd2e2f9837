"""A measured row beside its limit."""

from __future__ import annotations

from collections.abc import Mapping

from .plan import BenchPlan
from .results import LimitRow, Measurement


def measured_row(
    name: str,
    limit: LimitRow,
    seconds: tuple[float, ...],
    plan: BenchPlan,
    exchanges: int,
    parts: Mapping[str, float],
) -> Measurement:
    """The link is modelled: bytes, and a latency for each exchange there and back."""
    link_s = limit.link_s
    if limit.ranks > 1:
        link_s += 2 * exchanges * plan.exchange().latency_s
    return Measurement(
        phase=limit.phase,
        name=name,
        size=limit.size,
        context=limit.context,
        ranks=limit.ranks,
        num_drafts=limit.num_drafts,
        num_tokens=limit.num_tokens,
        step_s=seconds,
        link_s=link_s,
        limit_overlap_s=limit.overlap_s,
        limit_serial_s=limit.serial_s,
        parts_s=parts,
        accepted_length=limit.num_tokens / limit.size if limit.phase == "decode" else None,
    )
