"""Rows with constraints around a scripted engine: what it is given, verdicts, errors, waiting."""

from __future__ import annotations

import threading

import llguidance
import numpy as np
import pytest

from deepinfer.engine.types import SamplingParams
from deepinfer.errors import ConfigError, EngineError
from deepinfer.recipes.constraints.masks import is_allowed
from deepinfer.recipes.constraints.spec import json_schema, regex
from deepinfer.rows.prompts import run_constraint

PARAMS = SamplingParams()
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"x": {"type": "integer"}},
            "required": ["x"],
            "additionalProperties": False,
        },
    },
}
CALL = (
    '<｜DSML｜ invoke name="f">\n'
    '<｜DSML｜ parameter name="x" string="false">%s</｜DSML｜ parameter>\n'
    "</｜DSML｜ invoke>\n</｜DSML｜ calls>"
)


def outputs_of(stream, rows, **defaults):
    numbered = [(number, row, PARAMS) for number, row in enumerate(rows)]
    return {output.row: output for output in stream.run(numbered, **defaults)}


@pytest.mark.parametrize(
    "row, script, verdict",
    [
        ({"regex": "[ab]+"}, "abba", "valid"),
        ({"regex": "[ab]+"}, "abc", "invalid"),
        ({"regex": "[ab]+", "raw": True}, "abba", "valid"),
        ({"regex": "[ab]+", "max_tokens": 1}, "abbabbabab", "incomplete"),
        ({"regex": "[ab]+", "stop": ["bb"]}, "abbabbabab", "incomplete"),
        ({"regex": "a(bb)?", "stop": ["bb"]}, "abb", "incomplete"),
        ({"regex": "[ab]+", "stop": ["c"]}, "ab", "valid"),
        ({"regex": "[ab]+", "thinking": "default"}, "hm</think>ab", "valid"),
        ({"regex": "[ab]+", "thinking": "default"}, "hm", "incomplete"),
        ({"grammar": 'root ::= "a" | "b"'}, "b", "valid"),
        ({"grammar": "start: /[0-9]+/"}, "b", "invalid"),
        ({"response_format": {"type": "json_object"}, "prompt": "json"}, '{"a": 1}', "valid"),
        ({"response_format": {"type": "json_object"}, "prompt": "json"}, "[1]", "invalid"),
        ({"tools": [TOOL], "tool_choice": "required"}, CALL % "7", "valid"),
        ({"tools": [TOOL], "tool_choice": "required"}, CALL % '"7"', "invalid"),
        ({"tools": [TOOL], "tool_choice": "required"}, CALL[:20], "incomplete"),
        ({}, "anything", None),
    ],
)
def test_finished_answers_are_judged(make_stream, row, script, verdict):
    stream, _ = make_stream(script)
    output = outputs_of(stream, [{"prompt": "x", **row}])[0]
    assert output.error is None
    assert [sample.constraint for sample in output.samples] == [verdict]


def test_free_rows_go_on_while_the_vocabulary_is_built(make_stream, monkeypatch):
    stream, _ = make_stream("a")
    is_answered = threading.Event()
    was_answered = []
    build = llguidance.LLTokenizer

    def wait_and_build(*arguments, **fields):
        was_answered.append(is_answered.wait(timeout=120))
        return build(*arguments, **fields)

    monkeypatch.setattr(llguidance, "LLTokenizer", wait_and_build)
    rows = [{"prompt": "x", "regex": "a"}, {"prompt": "x"}]
    order = []
    for output in stream.run((number, row, PARAMS) for number, row in enumerate(rows)):
        order.append(output.row)
        is_answered.set()
    assert order == [1, 0] and was_answered == [True]


def test_each_answer_gets_a_matcher_of_its_own(make_stream, tokenizer):
    stream, engine = make_stream("a")
    outputs_of(stream, [{"prompt": "x", "regex": "ab", "n": 2}, {"prompt": "x"}])
    free, *held = sorted(engine.requests, key=lambda request: request.constraint is not None)
    assert free.constraint is None and len(held) == 2
    held[0].constraint.push(tokenizer.encode_plain("a")[0])
    assert [request.constraint.num_tokens for request in held] == [1, 0]


def test_a_constraint_begins_after_the_reasoning(make_stream, tokenizer):
    stream, engine = make_stream("a")
    row = {"prompt": "x", "regex": "5"}
    outputs_of(stream, [{**row, "thinking": "off"}, {**row, "thinking": "max"}])
    letter = tokenizer.encode_plain("a")[0]
    masks = [_mask(request.constraint, tokenizer) for request in engine.requests]
    assert [is_allowed(mask, letter) for mask in masks] == [False, True]


def test_bad_constraints_are_error_rows_and_the_others_go_on(make_stream):
    stream, engine = make_stream("ok")
    bad = {
        1: ({"regex": "("}, "invalid_regex", "unclosed"),
        2: ({"grammar": 'root ::= "a" | b'}, "invalid_grammar", "b"),
        3: ({"grammar": 'root ::= root "a"'}, "invalid_grammar", "root"),
        4: (
            {"response_format": _schema({"type": "text"}), "raw": True},
            "invalid_schema",
            "#/type",
        ),
        5: ({"response_format": _schema({"not": {}})}, "unsupported_keyword", "not"),
        6: ({"regex": "((a{1,999}){1,999}){1,999}"}, "constraint_too_complex", "regex"),
        7: ({"regex": "a", "min_tokens": 3}, "invalid_value", "min_tokens"),
    }
    rows = [{"prompt": "x", **bad[i][0]} if i in bad else {"prompt": "x"} for i in range(9)]
    found = outputs_of(stream, rows)
    assert set(found) == set(range(9))
    assert {i: found[i].error_kind for i in found} == {
        i: bad[i][1] if i in bad else None for i in range(9)
    }
    for i, (_, _, words) in bad.items():
        assert words in found[i].error
    assert len(engine.requests) == 2


def test_rows_that_wait_count_as_running(make_stream):
    stream, engine = make_stream("a", max_in_flight=3)
    pulled = []

    def source():
        for number in range(12):
            pulled.append(number)
            yield number, {"prompt": "x", "regex": f"a{{{number % 4 + 1}}}"}, PARAMS

    finished = 0
    for _ in stream.run(source()):
        finished += 1
        assert len(pulled) - finished <= 3
    assert finished == 12 and engine.most_running <= 3


def test_the_runs_constraint(make_stream):
    stream, _ = make_stream("abc")
    form = {"response_format": {"type": "text"}}
    rows = [{"prompt": "x"}, {"prompt": "x", "regex": "b"}, {"prompt": "x", **form}]
    found = outputs_of(stream, rows, constraint=regex("abc"))
    assert [found[i].samples[0].constraint for i in range(3)] == ["valid", "invalid", None]
    with pytest.raises(ConfigError, match="invalid_regex"):
        outputs_of(stream, rows, constraint=regex("("))


@pytest.mark.parametrize(
    "fields", [{"regex": 5}, {"regexp": "a"}, {"regex": "a", "grammar": "start: A"}, ["regex"]]
)
def test_faulty_run_constraints(fields):
    with pytest.raises(ConfigError, match="constraint"):
        run_constraint(fields)


def test_run_constraints_are_what_a_row_would_say():
    assert run_constraint(None) is None
    assert run_constraint({"response_format": _schema({"type": "null"})}) == json_schema(
        {"type": "null"}
    )


def test_closing_while_rows_wait(make_stream):
    stream, engine = make_stream("a")
    run = stream.run((n, {"prompt": "x", "regex": f"a{{{n + 1}}}"}, PARAMS) for n in range(5))
    next(run)
    stream.close()
    with pytest.raises(EngineError, match="closed"):
        next(run)
    assert not engine.running


def _schema(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def _mask(constraint, tokenizer):
    out = np.zeros((1, -(-tokenizer.size // 32)), np.uint32)
    assert constraint.fill_masks([constraint], [()], out) == [None]
    return out[0]
