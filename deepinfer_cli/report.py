"""The report of a run: every number in it, defined once.

JSON, its schema (docs/report.schema.json), the pages, the comparison and the Prometheus file are
all made from ``Report``.  ``build_report`` is the one place where a run becomes a report.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deepinfer.engine.types import EngineStats, MemoryPlan

from .host import Host
from .timeline import TimelineReport
from .typed_json import to_json

SCHEMA = "deepinfer.report/1"


def _says(help: str, **default: Any) -> Any:
    return field(metadata={"help": help}, **default)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFacts:
    name: str
    format: str
    digest: str | None = _says("of the rows read, in order; equal inputs have equal digests")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """input = results + errors once a run is finished."""

    input: int = _says("rows read")
    results: int
    errors: int
    resumed: int = _says("rows finished by an earlier part of this run")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """Of result rows only."""

    prompt_tokens: int
    cached_tokens: int = _says("prompt tokens that were not computed again")
    completion_tokens: int
    reasoning_tokens: int = _says("completion tokens that were thinking")


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Of this part of the run: result rows and their tokens, over answer_s."""

    load_s: float = _says("until the engine was ready")
    answer_s: float = _says("from then until the last row was finished")
    rows_per_s: float
    prompt_tokens_per_s: float
    completion_tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSplit:
    """Where answer_s went, in seconds.  other: encoding prompts, parsing answers, constraints."""

    read: float
    prefill: float
    decode: float
    schedule: float
    write: float
    other: float
    cpu: float = _says("processor time of this process, all threads; not a part of the sum")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Percentiles are within 6 % above 64; buckets: [largest value, how many]."""

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
    """Tokens."""

    prompt: Distribution
    answer: Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Milliseconds of each answer of a result row."""

    queued: Distribution = _says("from arrival in the engine to the first chunk of its prompt")
    prefill: Distribution = _says("from then to the first token")
    decode: Distribution = _says("from the first token to the last")
    first_token: Distribution = _says("from arrival to the first token")
    finished: Distribution = _says("from arrival to the last token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Drafts of all result rows; from proposed_tokens on, of this part of the run."""

    drafted_tokens: int = _says("drafts that were verified")
    accepted_tokens: int
    acceptance: float | None = _says("verified drafts that the model would have produced itself")
    proposed_tokens: int | None = _says("drafts made, verified or not", default=None)
    verified_tokens: int | None = None
    verified_per_position: tuple[int, ...] = ()
    acceptance_per_position: tuple[float | None, ...] = ()
    accepted_length: float | None = _says("tokens per answer and drafting step", default=None)
    mean_verify_length: float | None = None
    calibration_error: float | None = _says(
        "mean distance of expected from real acceptance", default=None
    )
    verify_lengths: tuple[float, ...] = _says(
        "drafts verified per answer, over equal stretches of all decode steps", default=()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """None where nobody knows: --cost-per-hour says the price, the processor counts energy."""

    per_hour: float | None = None
    total: float | None = _says("of load_s and answer_s", default=None)
    per_million_tokens: float | None = _says("answer tokens of this part", default=None)
    energy_j: float | None = _says("joules of the whole processor meanwhile", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingReport:
    value: object
    origin: str = _says("default, FILE:LINE, the environment variable or the flag")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A run, or the latest part of it."""

    schema: str
    status: str = _says("finished, stopped or failed")
    exit_code: int
    message: str | None = _says("why it was stopped or failed")
    started: str = _says("when this part began: ISO 8601, UTC")
    ended: str
    input: InputFacts
    output: str
    model: str
    model_fingerprint: str | None = _says(
        "of the model's files: all of the small ones; names, sizes, both ends of the large ones"
    )
    device: str | None = _says("where the engine ran; null if no row needed one")
    device_name: str | None
    rows: RowCounts
    kinds: Mapping[str, int] = _says("result rows by the kind of their prompt")
    errors: Mapping[str, int] = _says("error rows by kind of error")
    finish_reasons: Mapping[str, int] = _says("answers by why they ended")
    constraints: Mapping[str, int] = _says(
        "answers held to a form, judged again: valid, invalid, incomplete when cut"
    )
    warnings: Mapping[str, int]
    notes: Mapping[str, int] = _says("rows where something differs from what they asked, by what")
    tokens: TokenCounts
    throughput: Throughput
    time_s: TimeSplit
    timeline: TimelineReport = _says(
        "of this part, from when the engine was ready; a row counts whole when it finishes"
    )
    lengths: Lengths
    latency_ms: Latencies
    answer_tokens_per_s: Distribution = _says("of each answer, from its first token on")
    speculation: Speculation
    preemptions: int = _says("times an answer gave up its caches and was computed again")
    engine: EngineStats | None
    engine_notes: Mapping[str, str] = _says("settings that could not be followed, and why")
    memory: MemoryPlan | None
    machine: Host
    cost: Cost
    seed: int
    settings: Mapping[str, SettingReport]
    versions: Mapping[str, str]
    definitions: Mapping[str, str] = _says("what the numbers mean, by their place")


def encode_report(report: Report) -> bytes:
    """Strict JSON in UTF-8, indented."""
    text = json.dumps(to_json(report), ensure_ascii=False, allow_nan=False, indent=1)
    return text.encode("utf-8", "replace")
