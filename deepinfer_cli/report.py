"""The report of a run: what was answered, how fast, with which settings."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import deepinfer
from deepinfer.engine.types import EngineStats

from .settings import Resolved
from .summary import Counts, Summary

SCHEMA = "deepinfer.report/1"
_PACKAGES = ("torch", "triton", "numpy", "deepseek-recipe", "tokenizers", "pyarrow")
_DEFINITIONS = {
    "rows": "input = results + errors; resumed rows were finished by an earlier part of this run",
    "tokens": "of result rows only; cached_tokens are prompt tokens that were not computed again",
    "constraints": "answers held to a form, judged again: valid, invalid, incomplete when cut",
    "throughput": "result rows and their tokens finished in this part, over answer_s",
    "lengths": "tokens of each prompt and each answer; percentiles within 6 % above 64; buckets: "
    "[largest value, how many]",
    "latency_ms": "from a row's arrival in the engine; of result rows",
    "acceptance": "verified drafts that the model would have produced itself",
    "speculation": "accepted_length: tokens per answer and drafting step; calibration_error: mean "
    "distance of expected from real acceptance; verify_lengths: drafts verified per answer, over "
    "equal stretches of all decode steps",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a run knows about itself when it ends.

    status: finished, stopped or failed.  device: where the engine ran, None if no row needed one.
    """

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
    load_s: float
    answer_s: float
    resolved: Resolved
    stats: EngineStats | None
    engine_notes: Mapping[str, str]
    device: str | None


def build_report(facts: Facts) -> dict[str, Any]:
    """The report in JSON's types."""
    total = facts.total
    settings = facts.resolved.settings
    return {
        "schema": SCHEMA,
        "status": facts.status,
        "exit_code": facts.exit_code,
        "message": facts.message,
        "input": {"name": facts.input_name, "format": facts.input_format},
        "output": facts.output,
        "model": settings.model or "embedded",
        "device": facts.device,
        "rows": {
            "input": facts.num_rows,
            "results": total.results,
            "errors": total.num_errors,
            "resumed": facts.num_resumed,
        },
        "kinds": dict(sorted(total.kinds.items())),
        "errors": dict(total.errors.most_common()),
        "finish_reasons": dict(total.finish_reasons.most_common()),
        "constraints": dict(total.constraints.most_common()),
        "warnings": dict(total.warnings.most_common()),
        "notes": dict(total.notes.most_common()),
        "tokens": {
            name: total.tokens[name]
            for name in ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
        },
        "throughput": _throughput(facts),
        "lengths": {
            "prompt": total.prompt_lengths.report(),
            "answer": total.answer_lengths.report(),
        },
        "latency_ms": {
            "queued": total.queued_ms.report(),
            "first_token": total.ttft_ms.report(),
            "finished": total.total_ms.report(),
        },
        "speculation": _speculation(facts),
        "preemptions": total.preemptions,
        "engine": None if facts.stats is None else dataclasses.asdict(facts.stats),
        "engine_notes": dict(facts.engine_notes),
        "seed": settings.seed,
        "settings": facts.resolved.report(),
        "versions": _versions(),
        "definitions": _DEFINITIONS,
    }


def encode_report(report: dict[str, Any]) -> bytes:
    return json.dumps(report, ensure_ascii=False, allow_nan=False, indent=1).encode(
        "utf-8", "replace"
    )


def _throughput(facts: Facts) -> dict[str, float]:
    seconds = max(facts.answer_s, 1e-9)
    session = facts.session
    return {
        "load_s": round(facts.load_s, 3),
        "answer_s": round(facts.answer_s, 3),
        "rows_per_s": round(session.results / seconds, 3),
        "prompt_tokens_per_s": round(session.prompt_tokens / seconds, 3),
        "completion_tokens_per_s": round(session.completion_tokens / seconds, 3),
    }


def _speculation(facts: Facts) -> dict[str, Any]:
    """Drafts of all result rows; the details are of this part of the run."""
    total, stats = facts.total, facts.stats
    report: dict[str, Any] = {
        "drafted_tokens": total.drafts,
        "accepted_tokens": total.accepted,
        "acceptance": total.acceptance,
    }
    if stats is None or not stats.num_draft_blocks:
        return report
    blocks = stats.num_draft_blocks
    pairs = zip(stats.accepted_per_position, stats.verified_per_position, strict=True)
    error = stats.calibration_error
    return report | {
        "proposed_tokens": stats.num_proposed_tokens,
        "verified_tokens": stats.num_draft_tokens,
        "acceptance_per_position": [round(a / v, 4) if v else None for a, v in pairs],
        "accepted_length": round(1 + stats.num_accepted_tokens / blocks, 3),
        "mean_verify_length": round(stats.num_draft_tokens / blocks, 3),
        "calibration_error": None if error is None else round(error, 4),
        "verify_lengths": list(stats.verify_lengths),
    }


def _versions() -> dict[str, str]:
    versions = {"deepinfer": deepinfer.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions | {"platform": platform.platform()}
