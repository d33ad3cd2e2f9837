"""Builds the ``Report`` at the end of a run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from deepinfer.engine.types import EngineStats
from deepinfer.engine_facts import EngineFacts
from deepinfer_cli.host import host, versions
from deepinfer_cli.settings.layers import Resolved
from deepinfer_cli.typed_json import definitions

from .report import (
    SCHEMA,
    Cost,
    InputFacts,
    Latencies,
    Lengths,
    Report,
    RowCounts,
    SettingReport,
    Speculation,
    Throughput,
    TimeSplit,
    TokenCounts,
)
from .summary import Counts, Summary
from .timeline import TimelineReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurements of one part of a run.

    began, ended: seconds since 1970.  digest: of the rows read.  cpu_s, read_s, write_s: see
    ``TimeSplit``.  engine: None if no row needed one.
    """

    began: float
    ended: float
    digest: str
    load_s: float
    answer_s: float
    read_s: float
    write_s: float
    cpu_s: float
    energy_j: float | None
    gpu_energy_j: float | None
    stats: EngineStats | None
    engine_notes: Mapping[str, str]
    engine: EngineFacts | None
    model_fingerprint: str | None
    timeline: TimelineReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything the report of a part is made from.  status: finished, stopped or failed.  total:
    all finished rows, session: those of this part."""

    status: str
    exit_code: int
    message: str | None
    input_name: str
    input_format: str
    output: str
    num_rows: int
    num_resumed: int
    total: Summary
    session: Counts
    constraint_digest: str | None
    resolved: Resolved
    measured: Measured


def build_report(facts: Facts) -> Report:
    """The report of a finished or unfinished run."""
    total, settings, measured = facts.total, facts.resolved.settings, facts.measured
    engine = measured.engine
    return Report(
        schema=SCHEMA,
        status=facts.status,
        exit_code=facts.exit_code,
        message=facts.message,
        started=_iso(measured.began),
        ended=_iso(measured.ended),
        input=InputFacts(name=facts.input_name, format=facts.input_format, digest=measured.digest),
        output=facts.output,
        model=settings.model or "embedded",
        model_fingerprint=measured.model_fingerprint,
        device=None if engine is None else engine.device,
        device_name=None if engine is None else engine.device_name,
        rows=RowCounts(
            input=facts.num_rows,
            results=total.results,
            errors=total.num_errors,
            resumed=facts.num_resumed,
        ),
        kinds=dict(sorted(total.kinds.items())),
        errors=dict(total.errors.most_common()),
        finish_reasons=dict(total.finish_reasons.most_common()),
        constraints=dict(total.constraints.most_common()),
        warnings=dict(total.warnings.most_common()),
        notes=dict(total.notes.most_common()),
        tokens=TokenCounts(
            prompt_tokens=total.tokens["prompt_tokens"],
            cached_tokens=total.tokens["cached_tokens"],
            completion_tokens=total.tokens["completion_tokens"],
            reasoning_tokens=total.tokens["reasoning_tokens"],
        ),
        throughput=_throughput(facts),
        time_s=_time_split(facts),
        timeline=measured.timeline,
        lengths=Lengths(prompt=total.prompt_lengths.report(), answer=total.answer_lengths.report()),
        latency_ms=Latencies(
            queued=total.queued_ms.report(),
            prefill=total.prefill_ms.report(),
            decode=total.decode_ms.report(),
            first_token=total.ttft_ms.report(),
            finished=total.total_ms.report(),
        ),
        answer_tokens_per_s=total.tokens_per_s.report(),
        speculation=speculation(total.drafts, total.accepted, measured.stats),
        preemptions=total.preemptions,
        engine=measured.stats,
        engine_notes=dict(measured.engine_notes),
        memory=None if engine is None else engine.memory,
        machine=host(),
        cost=_cost(facts),
        seed=settings.seed,
        settings={
            name: SettingReport(value=entry["value"], origin=entry["origin"])
            for name, entry in facts.resolved.report().items()
        },
        versions=versions(),
        constraint_digest=facts.constraint_digest,
        definitions=definitions(Report),
    )


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _throughput(facts: Facts) -> Throughput:
    measured = facts.measured
    return Throughput.of(
        load_s=measured.load_s,
        answer_s=measured.answer_s,
        num_loads=int(measured.engine is not None),
        results=facts.session.results,
        prompt_tokens=facts.session.prompt_tokens,
        completion_tokens=facts.session.completion_tokens,
    )


def _time_split(facts: Facts) -> TimeSplit:
    measured = facts.measured
    stats = measured.stats or EngineStats()
    known = {
        "read": measured.read_s,
        "prefill": stats.prefill_s,
        "decode": stats.decode_s,
        "schedule": stats.schedule_s,
        "write": measured.write_s,
    }
    known = {name: round(seconds, 3) for name, seconds in known.items()}
    other = max(0.0, measured.answer_s - sum(known.values()))
    return TimeSplit(**known, other=round(other, 3), cpu=round(measured.cpu_s, 3))


def speculation(drafted: int, accepted: int, stats: EngineStats | None) -> Speculation:
    """Drafts of all result rows, and the engine's counters."""
    drafts = Speculation(
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        acceptance=accepted / drafted if drafted else None,
    )
    if stats is None or not stats.num_draft_blocks:
        return drafts
    blocks = stats.num_draft_blocks
    pairs = zip(stats.accepted_per_position, stats.verified_per_position, strict=True)
    error = stats.calibration_error
    return Speculation(
        drafted_tokens=drafts.drafted_tokens,
        accepted_tokens=drafts.accepted_tokens,
        acceptance=drafts.acceptance,
        proposed_tokens=stats.num_proposed_tokens,
        verified_tokens=stats.num_draft_tokens,
        verified_per_position=tuple(stats.verified_per_position),
        acceptance_per_position=tuple(round(a / v, 4) if v else None for a, v in pairs),
        accepted_length=round(1 + stats.num_accepted_tokens / blocks, 3),
        mean_verify_length=round(stats.num_draft_tokens / blocks, 3),
        calibration_error=None if error is None else round(error, 4),
        verify_lengths=tuple(stats.verify_lengths),
    )


def _cost(facts: Facts) -> Cost:
    measured = facts.measured
    per_hour = facts.resolved.settings.cost_per_hour
    energy = None if measured.energy_j is None else round(measured.energy_j, 1)
    on_gpu = measured.engine is not None and measured.engine.device.startswith("cuda")
    gpu_energy = round(measured.gpu_energy_j, 1) if on_gpu and measured.gpu_energy_j else None
    total = None
    if per_hour is not None:
        total = round(per_hour * (measured.load_s + measured.answer_s) / 3_600, 6)
    return Cost.of(
        num_tokens=facts.session.completion_tokens,
        per_hour=per_hour,
        total=total,
        energy_j=energy,
        gpu_energy_j=gpu_energy,
    )
