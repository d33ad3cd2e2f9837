"""Real engines hold every answer to its form, with drafts on or off, whatever runs beside it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from deepinfer import OfflineEngine, SamplingParams
from deepinfer.outputs import RequestOutput

_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "size": {"enum": ["small", "large", None]},
        "tags": {"type": "array", "items": {"const": "x"}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
_NESTED = {
    "$defs": {
        "pair": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}
    },
    "anyOf": [{"$ref": "#/$defs/pair"}, {"type": "string", "pattern": "^[a-f]{2,6}$"}],
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "maxLength": 6}, "n": {"type": "integer"}},
            "required": ["word", "n"],
            "additionalProperties": False,
        },
    },
}
_WORDS = r"(yes|no)( [a-z]{1,6}){0,3}[.!]"
_LIST = 'root ::= item ("," item){0,3}\nitem ::= [a-z]{1,4} | "(" [0-9]+ ")" | "é"'
_LIST_AS_REGEX = r"([a-z]{1,4}|\([0-9]+\)|é)(,([a-z]{1,4}|\([0-9]+\)|é)){0,3}"
_CODE = 'start: LETTERS "-" DIGITS\nLETTERS: /[A-Z]{3}/\nDIGITS: /[0-9]{2,4}/'


def _schema(schema: dict[str, Any]) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {"response_format": form}


_FORMS: list[dict[str, Any]] = [
    _schema(_PERSON),
    {"regex": _WORDS},
    {"max_tokens": 12},
    {"grammar": _LIST},
    {"tools": [_TOOL], "tool_choice": "required"},
    {"grammar": _CODE, "raw": True},
    _schema(_NESTED),
    {"regex": "("},
]


def _rows(count: int) -> list[dict[str, Any]]:
    return [
        {"prompt": f"Say something about {number}.", "seed": number, **_FORMS[number % len(_FORMS)]}
        for number in range(count)
    ]


def _check(row: dict[str, Any], output: RequestOutput) -> None:
    """What the row asked, checked without the code that enforces it."""
    assert output.error is None, output.error
    (sample,) = output.samples
    text = sample.text
    if "regex" in row:
        assert re.fullmatch(row["regex"], text)
    elif "response_format" in row:
        schema = row["response_format"]["json_schema"]["schema"]
        jsonschema.validate(json.loads(text), schema)
    elif "tools" in row:
        assert sample.finish_reason == "tool_calls" and sample.tool_calls
        for call in sample.tool_calls:
            assert call.name == "look_up"
            jsonschema.validate(
                json.loads(call.arguments), row["tools"][0]["function"]["parameters"]
            )
    elif "grammar" in row:
        wanted = _LIST_AS_REGEX if row["grammar"] == _LIST else "[A-Z]{3}-[0-9]{2,4}"
        assert re.fullmatch(wanted, text)
    else:
        assert sample.constraint is None
        return
    assert sample.constraint == "valid"


def _answers(
    model: Path | None, rows: list[dict[str, Any]], *, drafts: bool, seqs: int = 16
) -> list[RequestOutput]:
    params = SamplingParams(temperature=1.5, max_tokens=400)
    with OfflineEngine(
        model,
        enable_speculative_dspark=drafts,
        num_speculative_tokens=3,
        max_num_seqs=seqs,
        batch_invariant=True,
    ) as engine:
        return engine.generate(rows, params)


@pytest.fixture(params=["golden", pytest.param("embedded", marks=pytest.mark.slow)])
def model(request: pytest.FixtureRequest, golden_model: Path) -> Path | None:
    return golden_model if request.param == "golden" else None


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("count", [8, pytest.param(1336, marks=pytest.mark.slow)])
def test_every_answer_matches_and_drafts_change_no_token(model: Path | None, count: int) -> None:
    """Every eighth row is bad and every eighth is free: 6, or 1,002, are held to six forms."""
    rows = _rows(count)
    with_drafts = _answers(model, rows, drafts=True)
    assert len(with_drafts) == count
    for row, output in zip(rows, with_drafts, strict=True):
        if row.get("regex") == "(":
            assert output.error_kind == "invalid_regex"
        else:
            _check(row, output)
    shuffled = list(range(count))
    random.Random(0).shuffle(shuffled)
    without = _answers(model, [rows[place] for place in shuffled], drafts=False, seqs=5)
    for place, output in zip(shuffled, without, strict=True):
        assert output.token_ids == with_drafts[place].token_ids
    samples = (sample for output in with_drafts for sample in output.samples)
    assert sum(sample.num_accepted_tokens for sample in samples) > count


def test_cut_answers_and_endless_thoughts_are_incomplete(model: Path | None) -> None:
    rows = [
        {"prompt": "a", "regex": "[ab]{30,}", "max_tokens": 3},
        {"prompt": "a", "regex": "a", "thinking": "default", "max_tokens": 6},
        {"prompt": "a", "regex": "[a-z]{4}", "n": 3},
    ]
    first, second, third = _answers(model, rows, drafts=True)
    assert [first.samples[0].constraint, second.samples[0].constraint] == ["incomplete"] * 2
    assert first.finish_reason == second.finish_reason == "length"
    assert [sample.constraint for sample in third.samples] == ["valid"] * 3
    assert len({sample.text for sample in third.samples}) > 1


def test_streams_go_on_while_a_hostile_constraint_is_tried(golden_model: Path) -> None:
    hostile = {"prompt": "a", "regex": "(a{1000}){1000}"}
    rows = [hostile, *({"prompt": "a", "regex": "[ab]{3}"} for _ in range(6))]

    def numbered() -> Iterator[tuple[int, dict[str, Any]]]:
        yield from enumerate(rows)

    with OfflineEngine(golden_model) as engine:
        outputs = {o.row: o for o in engine.stream(numbered(), SamplingParams(temperature=1.5))}
    assert outputs[0].error_kind == "constraint_too_complex"
    assert all(re.fullmatch("[ab]{3}", outputs[place].text) for place in range(1, 7))
