"""Result rows: strict JSON, nothing that depends on time or chance."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from deepinfer.engine.types import RequestTiming, SamplingParams, TokenLogprobs
from deepinfer.outputs import RequestOutput, Sample, ToolCall, Usage
from deepinfer_cli.input.rows import InputRow, encode_json
from deepinfer_cli.output.journal import Record
from deepinfer_cli.output.results import result_facts, result_row, without_carried
from deepinfer_cli.report.summary import Histogram, Summary

_ROW = InputRow(4, 5, b'{"prompt": "a", "x": 1}', {"prompt": "a", "x": 1})


def _output(cached: int = 0, arrived: float = 1.0, preemptions: int = 0) -> RequestOutput:
    logprobs = (
        TokenLogprobs(token_id=7, logprob=-math.inf, top=((7, math.nan), (8, -0.5))),
        TokenLogprobs(token_id=8, logprob=-0.25),
    )
    sample = Sample(
        text="é",
        reasoning="why",
        tool_calls=(ToolCall(id="call_5_0", name="f", arguments='{"a": 1'),),
        token_ids=(7, 8),
        finish_reason="tool_calls",
        stop_reason=1,
        seed=2**64 - 1,
        logprobs=logprobs,
        warnings=("unfinished_tool_call",),
        timing=RequestTiming(
            arrived_s=arrived,
            scheduled_s=arrived + 1,
            first_token_s=arrived + 2,
            finished_s=arrived + 4,
        ),
        num_preemptions=preemptions,
        num_draft_tokens=10,
        num_accepted_tokens=6,
    )
    return RequestOutput(
        row=4,
        request_id="5",
        kind="chat",
        prompt_token_ids=(1, 2, 3),
        samples=(sample,),
        usage=Usage(prompt_tokens=3, cached_tokens=cached, completion_tokens=2, reasoning_tokens=1),
        sampling=SamplingParams(top_k=3, logit_bias={5: -2.5}),
        notes={"temperature": "forced to 1.0 by thinking"},
    )


def test_the_whole_row() -> None:
    row = result_row(_output(), _ROW, carry=["x", "nope"], keep_token_ids=True)
    assert json.loads(encode_json(row)) == {
        "id": "5",
        "content": "é",
        "reasoning": "why",
        "tool_calls": [
            {
                "id": "call_5_0",
                "type": "function",
                "function": {"name": "f", "arguments": '{"a": 1'},
            }
        ],
        "finish_reason": "tool_calls",
        "stop_reason": 1,
        "warnings": ["unfinished_tool_call"],
        "logprobs": [
            {
                "token_id": 7,
                "logprob": None,
                "top_logprobs": [
                    {"token_id": 7, "logprob": None},
                    {"token_id": 8, "logprob": -0.5},
                ],
            },
            {"token_id": 8, "logprob": -0.25},
        ],
        "token_ids": [7, 8],
        "seed": 2**64 - 1,
        "prompt_token_ids": [1, 2, 3],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "reasoning_tokens": 1},
        "sampling": {"temperature": 1.0, "top_p": 1.0, "top_k": 3, "logit_bias": {"5": -2.5}},
        "notes": {"temperature": "forced to 1.0 by thinking"},
        "input": {"x": 1},
    }


def test_a_column_that_was_carried_by_name_is_not_called_ignored() -> None:
    notes = {"ignored_fields": "answer, temprature, topic", "temperature": "forced"}
    left = {"temperature": "forced", "ignored_fields": "temprature"}
    assert without_carried(notes, ["topic", "answer"]) == left
    assert without_carried(notes, ["*"]) == notes  # a misspelt field must still show
    assert without_carried({"ignored_fields": "topic"}, ["topic"]) == {}
    assert without_carried({}, ["topic"]) == {}


def test_what_another_schedule_changes_is_not_in_the_row() -> None:
    one, other = _output(), _output(cached=2, arrived=9.0, preemptions=3)
    assert result_row(one, _ROW) == result_row(other, _ROW)
    timed = result_row(other, _ROW, timing=True)
    assert timed["timing"] == {"queued_s": 1.0, "ttft_s": 2.0, "total_s": 4.0}
    assert timed["usage"]["cached_tokens"] == 2
    facts = result_facts(other)
    assert (facts["tokens"]["cached_tokens"], facts["preemptions"], facts["drafts"]) == (
        2,
        3,
        [10, 6],
    )


def test_facts_add_up() -> None:
    summary = Summary()
    facts: dict[str, Any] = json.loads(json.dumps(result_facts(_output(cached=1))))
    for index in range(4):
        summary.add(Record(index, b"", False, facts, b""))
    summary.add(Record(9, b"", True, {"error": "too_long"}, b""))
    assert (summary.results, summary.num_errors, summary.num_rows) == (4, 1, 5)
    assert summary.tokens == {
        "prompt_tokens": 12, "completion_tokens": 8, "reasoning_tokens": 4, "cached_tokens": 4,
    }  # fmt: skip
    assert summary.acceptance == 0.6 and summary.finish_reasons == {"tool_calls": 4}
    assert summary.total_ms.report().max == 4_000


@given(st.lists(st.integers(0, 2_000_000), min_size=1, max_size=200), st.floats(0.1, 100))
def test_percentiles_are_near_the_true_ones(values: list[int], percent: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    true = sorted(values)[math.ceil(max(1.0, len(values) * percent / 100)) - 1]
    assert true <= histogram.percentile(percent) <= max(true, int(true * 1.0626))
    report = histogram.report()
    assert (report.min, report.max, report.num) == (min(values), max(values), len(values))
    assert sum(count for _, count in report.buckets) == len(values)
    assert len(histogram.counts) <= 64 + 16 * 16
