"""``Report``: the definition of every number in the report of a run.

JSON, its schema (docs/schemas/report.schema.json), the pages, the comparison and the Prometheus
file are all made from ``Report``, which only ``build_report`` creates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deepinfer.engine.types import EngineStats, MemoryPlan
from deepinfer_cli.host import Host
from deepinfer_cli.typed_json import to_json

from .timeline import TimelineReport

SCHEMA = "deepinfer.report/1"


def says(help: str, **default: Any) -> Any:
    """A dataclass field with its description."""
    return field(metadata={"help": help}, **default)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFacts:
    name: str
    format: str
    digest: str | None = says("of the rows read, in order; equal inputs have equal digests")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """In a finished run, input = results + errors."""

    input: int = says("rows read, by any part of the run")
    results: int
    errors: int
    resumed: int = says("rows finished before the latest part of this run")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """Tokens of result rows only."""

    prompt_tokens: int
    cached_tokens: int = says("prompt tokens that were not computed again")
    completion_tokens: int
    reasoning_tokens: int = says("completion tokens that were thinking")


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Result rows and their tokens over answer_s, summed over the parts of the run.  A part that
    was killed counts up to its last saved measurement."""

    load_s: float = says("until the engine was ready; of all parts together")
    answer_s: float = says("from then until the last row of the part was finished; likewise")
    rows_per_s: float
    prompt_tokens_per_s: float
    completion_tokens_per_s: float
    num_loads: int = says("parts that had rows to answer and loaded an engine", default=1)
    results: int = says("result rows that these parts answered", default=0)
    prompt_tokens: int = says("tokens of their prompts", default=0)
    completion_tokens: int = says("tokens of their answers", default=0)

    @classmethod
    def of(
        cls,
        *,
        load_s: float,
        answer_s: float,
        num_loads: int,
        results: int,
        prompt_tokens: int,
        completion_tokens: int,
    ) -> Throughput:
        """Compute the rates from counts and times."""
        seconds = max(answer_s, 1e-9)
        return cls(
            load_s=round(load_s, 3),
            answer_s=round(answer_s, 3),
            rows_per_s=round(results / seconds, 3),
            prompt_tokens_per_s=round(prompt_tokens / seconds, 3),
            completion_tokens_per_s=round(completion_tokens / seconds, 3),
            num_loads=num_loads,
            results=results,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSplit:
    """The split of answer_s, in seconds.  other: encoding prompts, parsing, constraints."""

    read: float
    prefill: float
    decode: float
    schedule: float
    write: float
    other: float
    cpu: float = says("processor time of this process, all threads; not a part of the sum")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Percentiles above 64 are accurate to 6 %; buckets: [largest value, count]."""

    num: int
    mean: float | None = None
    min: int | None = None
    p50: int | None = None
    p90: int | None = None
    p99: int | None = None
    max: int | None = None
    buckets: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Lengths in tokens."""

    prompt: Distribution
    answer: Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Milliseconds, per answer of result rows."""

    queued: Distribution = says("from arrival in the engine to the first chunk of its prompt")
    prefill: Distribution = says("from then to the first token")
    decode: Distribution = says("from the first token to the last")
    first_token: Distribution = says("from arrival to the first token")
    finished: Distribution = says("from arrival to the last token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Drafts of all result rows; fields from proposed_tokens on cover parts with saved reports."""

    drafted_tokens: int = says("drafts that were verified")
    accepted_tokens: int
    acceptance: float | None = says("verified drafts that the model would have produced itself")
    proposed_tokens: int | None = says("drafts made, verified or not", default=None)
    verified_tokens: int | None = None
    verified_per_position: tuple[int, ...] = ()
    acceptance_per_position: tuple[float | None, ...] = ()
    accepted_length: float | None = says("tokens per answer and drafting step", default=None)
    mean_verify_length: float | None = None
    calibration_error: float | None = says(
        "mean distance of expected from real acceptance", default=None
    )
    verify_lengths: tuple[float, ...] = says(
        "drafts verified per answer, over equal stretches of all decode steps", default=()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """None if unknown: the price is from --cost-per-hour, energy from processor and GPU
    counters."""

    per_hour: float | None = None
    total: float | None = says("of load_s and answer_s", default=None)
    per_million_tokens: float | None = says("answer tokens that were measured", default=None)
    energy_j: float | None = says("joules of the whole processor meanwhile", default=None)
    gpu_energy_j: float | None = says(
        "joules of the GPUs that this process may use, if it used one", default=None
    )
    energy_per_token_j: float | None = says("energy_j by answer token", default=None)
    gpu_energy_per_token_j: float | None = says("gpu_energy_j by answer token", default=None)

    @classmethod
    def of(
        cls,
        *,
        num_tokens: int,
        per_hour: float | None = None,
        total: float | None = None,
        energy_j: float | None = None,
        gpu_energy_j: float | None = None,
    ) -> Cost:
        """Totals, and values per ``num_tokens`` answer tokens."""

        def each(amount: float | None, count: float = 1) -> float | None:
            return (
                None if amount is None or not num_tokens else round(amount * count / num_tokens, 6)
            )

        return cls(
            per_hour=per_hour,
            total=total,
            per_million_tokens=each(total, 1e6),
            energy_j=energy_j,
            gpu_energy_j=gpu_energy_j,
            energy_per_token_j=each(energy_j),
            gpu_energy_per_token_j=each(gpu_energy_j),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingReport:
    value: object
    origin: str = says("default, FILE:LINE, the environment variable or the flag")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A run, with the measurements of all its parts so far."""

    schema: str
    status: str = says("finished, stopped or failed")
    exit_code: int
    message: str | None = says("why it was stopped or failed")
    started: str = says("when the first part began: ISO 8601, UTC")
    ended: str
    input: InputFacts
    output: str
    model: str
    model_fingerprint: str | None = says(
        "of the model's files: all of the small ones; names, sizes, both ends of the large ones"
    )
    device: str | None = says("where the engine ran; null if no row needed one")
    device_name: str | None
    rows: RowCounts
    kinds: Mapping[str, int] = says("result rows by the kind of their prompt")
    errors: Mapping[str, int] = says("error rows by kind of error")
    finish_reasons: Mapping[str, int] = says("answers by why they ended")
    constraints: Mapping[str, int] = says(
        "answers held to a form, judged again: valid, invalid, incomplete when cut"
    )
    warnings: Mapping[str, int]
    notes: Mapping[str, int] = says("rows where something differs from what they asked, by what")
    tokens: TokenCounts
    throughput: Throughput
    time_s: TimeSplit
    timeline: TimelineReport = says(
        "of all parts, from when their engines were ready; a row counts whole when it finishes"
    )
    lengths: Lengths
    latency_ms: Latencies
    answer_tokens_per_s: Distribution = says("of each answer, from its first token on")
    speculation: Speculation
    preemptions: int = says("times an answer gave up its caches and was computed again")
    engine: EngineStats | None
    engine_notes: Mapping[str, str] = says("settings that could not be followed, and why")
    memory: MemoryPlan | None
    machine: Host
    cost: Cost
    seed: int
    settings: Mapping[str, SettingReport]
    versions: Mapping[str, str]
    constraint_digest: str | None = says(
        "of what --regex, --grammar or --json-schema hold answers to, files included", default=None
    )
    definitions: Mapping[str, str] = says("what the numbers mean, by their place")


def encode_report(report: Report) -> bytes:
    """Strict JSON in UTF-8, indented."""
    text = json.dumps(to_json(report), ensure_ascii=False, allow_nan=False, indent=1)
    return text.encode("utf-8", "replace")
