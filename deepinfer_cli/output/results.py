"""Converts an engine's output to a result row, and to the data that the report sums up."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from deepinfer.engine.types import SamplingParams, TokenLogprobs
from deepinfer.outputs import RequestOutput, Sample, Usage
from deepinfer_cli.input.rows import InputRow

_ALWAYS_SHOWN = {"temperature", "top_p"}
_DEFAULTS = {f.name: getattr(SamplingParams(), f.name) for f in dataclasses.fields(SamplingParams)}


def result_row(
    output: RequestOutput,
    row: InputRow,
    *,
    carry: Sequence[str] = (),
    keep_token_ids: bool = False,
    timing: bool = False,
) -> dict[str, Any]:
    """The result row, in JSON's types.  With n > 1 the answers are in ``samples``.

    Equal answers give equal bytes: without ``timing``, nothing depends on time or chance.
    """
    assert output.usage is not None and output.sampling is not None
    answers = [_answer(s, keep_token_ids=keep_token_ids, timing=timing) for s in output.samples]
    result: dict[str, Any] = {"id": row.row_id}
    if len(answers) == 1:
        result |= answers[0]
    else:
        result["samples"] = answers
    if keep_token_ids:
        result["prompt_token_ids"] = list(output.prompt_token_ids)
    result["usage"] = _usage(output.usage)
    if timing:
        result["usage"]["cached_tokens"] = output.usage.cached_tokens
    result["sampling"] = _sampling(output)
    if output.notes:
        result["notes"] = dict(output.notes)
    if carry and row.fields is not None:
        names = row.fields if "*" in carry else [name for name in carry if name in row.fields]
        result["input"] = _finite({name: row.fields[name] for name in names})
    return result


def without_carried(notes: Mapping[str, str], carry: Sequence[str]) -> dict[str, str]:
    """``notes`` without ignored fields that are copied to the result explicitly."""
    ignored = notes.get("ignored_fields", "").split(", ")
    left = ", ".join(name for name in ignored if name and name not in carry)
    others = {name: note for name, note in notes.items() if name != "ignored_fields"}
    return others | ({"ignored_fields": left} if left else {})


def result_facts(output: RequestOutput) -> dict[str, Any]:
    """The data of a result row for the report; it is kept in the journal, so it is small."""
    assert output.usage is not None
    facts: dict[str, Any] = {
        "kind": output.kind,
        "tokens": _usage(output.usage) | {"cached_tokens": output.usage.cached_tokens},
        "finish": [str(sample.finish_reason) for sample in output.samples],
        "lengths": [len(sample.token_ids) for sample in output.samples],
        "constraints": [s.constraint for s in output.samples if s.constraint is not None],
        "warnings": [word for sample in output.samples for word in sample.warnings],
        "notes": sorted(output.notes),
        "preemptions": sum(sample.num_preemptions for sample in output.samples),
        "drafts": [
            sum(sample.num_draft_tokens for sample in output.samples),
            sum(sample.num_accepted_tokens for sample in output.samples),
        ],
    }
    seconds = [_timing(sample) for sample in output.samples if sample.timing is not None]
    return facts | {"timing": seconds} if seconds else facts


def facts_of_row(result: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The data of an earlier run's result row, as far as the row itself has it.

    Cache hits, drafts, preemptions, times and answer lengths are in the report of that run
    (``Summary.add_untold``).
    """
    answers = result.get("samples", [result])
    return {
        "kind": kind,
        "retold": True,
        "tokens": result["usage"] | {"cached_tokens": 0},
        "finish": [str(answer.get("finish_reason")) for answer in answers],
        "lengths": [],
        "constraints": [a["constraint"] for a in answers if a.get("constraint") is not None],
        "warnings": [word for answer in answers for word in answer.get("warnings", ())],
        "notes": sorted(result.get("notes", ())),
        "preemptions": 0,
        "drafts": [0, 0],
    }


def _answer(sample: Sample, *, keep_token_ids: bool, timing: bool) -> dict[str, Any]:
    answer: dict[str, Any] = {"content": sample.text, "reasoning": sample.reasoning}
    if sample.tool_calls:
        answer["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in sample.tool_calls
        ]
    answer["finish_reason"] = sample.finish_reason
    if sample.stop_reason is not None:
        answer["stop_reason"] = sample.stop_reason
    if sample.constraint is not None:
        answer["constraint"] = sample.constraint
    if sample.warnings:
        answer["warnings"] = list(sample.warnings)
    if sample.logprobs is not None:
        answer["logprobs"] = [_logprobs(entry) for entry in sample.logprobs]
    if keep_token_ids:
        answer["token_ids"] = list(sample.token_ids)
    answer["seed"] = sample.seed
    if timing and sample.timing is not None:
        answer["timing"] = _timing(sample)
    return answer


def _usage(usage: Usage) -> dict[str, int]:
    """Only reproducible counts: cache hits depend on what ran before."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }


def _sampling(output: RequestOutput) -> dict[str, Any]:
    """The sampling that was used: temperature, top_p and all values that are not defaults."""
    shown = {}
    for name, default in _DEFAULTS.items():
        value = getattr(output.sampling, name)
        if name != "seed" and (name in _ALWAYS_SHOWN or value != default):
            shown[name] = _finite(value)
    return shown


def _timing(sample: Sample) -> dict[str, float]:
    """Seconds from the row's arrival in the engine."""
    timing = sample.timing
    assert timing is not None
    return {
        "queued_s": round(timing.scheduled_s - timing.arrived_s, 6),
        "ttft_s": round(timing.first_token_s - timing.arrived_s, 6),
        "total_s": round(timing.finished_s - timing.arrived_s, 6),
    }


def _logprobs(entry: TokenLogprobs) -> dict[str, Any]:
    shown: dict[str, Any] = {"token_id": entry.token_id, "logprob": _finite(entry.logprob)}
    if entry.top:
        shown["top_logprobs"] = [
            {"token_id": token_id, "logprob": _finite(logprob)} for token_id, logprob in entry.top
        ]
    return shown


def _finite(value: Any) -> Any:
    """``value`` with non-finite numbers, which JSON lacks, replaced by null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
