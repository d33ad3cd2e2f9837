"""Rows through a scripted engine: order, bounds, errors, seeds, stop strings, tool calls."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepinfer.engine.types import SamplingParams
from deepinfer.errors import EngineError
from deepinfer.rows.seeds import sample_seed

PARAMS = SamplingParams()
USER = [{"role": "user", "content": "x"}]
TOOL = {"type": "function", "function": {"name": "f"}}
CALL = (
    "Sure.\n\n<｜DSML｜ calls>\n"
    '<｜DSML｜ invoke name="f">\n'
    '<｜DSML｜ parameter name="x" string="true">y</｜DSML｜ parameter>\n'
    "</｜DSML｜ invoke>\n</｜DSML｜ calls>"
)


def rows(*prompts, params=PARAMS):
    whole = (prompt if isinstance(prompt, dict) else {"prompt": prompt} for prompt in prompts)
    return [(number, row, params) for number, row in enumerate(whole)]


def answer(stream, row, params=PARAMS):
    (output,) = stream.run([(0, row, params)])
    return output


def test_an_answer(make_stream, tokenizer):
    stream, _ = make_stream("Hello there")
    output = answer(stream, {"prompt": "Hi", "id": "greeting"})
    assert (output.row, output.request_id, output.kind) == (0, "greeting", "prompt")
    assert (output.text, output.finish_reason, output.reasoning) == ("Hello there", "stop", None)
    assert output.token_ids[-1] == tokenizer.eos_id
    assert output.usage.prompt_tokens == len(output.prompt_token_ids)
    assert output.usage.completion_tokens == len(output.token_ids)
    both = [*output.prompt_token_ids, *output.token_ids]
    assert output.usage.total_tokens == len(both)
    assert output.error_kind is None


def test_bad_rows_become_errors_and_the_others_go_on(make_stream):
    stream, _ = make_stream()
    bad = [{"x": 1}, {"prompt": ""}, {"prompt": "a", "temperature": -1, "id": "t"}, [1], None]
    outputs = {
        o.row: o
        for o in stream.run(rows("a", "b") + [(5 + i, r, PARAMS) for i, r in enumerate(bad)])
    }
    assert [outputs[i].text for i in (0, 1)] == ["ok", "ok"]
    kinds = [outputs[5 + i].error_kind for i in range(5)]
    assert kinds == [
        "unknown_kind",
        "empty_prompt",
        "invalid_value",
        "invalid_type",
        "invalid_type",
    ]
    assert outputs[7].request_id == "t"
    assert "temperature=-1" in outputs[7].error
    assert outputs[7].finish_reason == "error" and outputs[7].text == ""


def test_an_engine_error_is_the_rows_error(make_stream):
    stream, _ = make_stream(lambda request: [-1])
    output = answer(stream, {"prompt": "a", "n": 2})
    assert (output.error_kind, output.error) == ("engine_error", "not a number in the logits")


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 9), max_size=30),
    samples=st.lists(st.integers(1, 4), min_size=30, max_size=30),
    bound=st.integers(1, 6),
)
def test_every_row_comes_back_once_and_few_are_in_flight(make_stream, lengths, samples, bound):
    stream, engine = make_stream(
        lambda r: [5] * lengths[r.prompt_token_ids[-1]], max_in_flight=bound
    )
    pulled = []

    def source():
        for number in range(len(lengths)):
            pulled.append(number)
            yield number, {"prompt_token_ids": [0, number], "n": samples[number]}, PARAMS

    seen = []
    for output in stream.run(source()):
        seen.append(output.row)
        assert len(output.samples) == samples[output.row]
        assert len(pulled) - len(seen) <= bound
    assert sorted(seen) == list(range(len(lengths)))
    assert engine.most_running <= bound + 3
    assert engine.running == {}


def test_closing_aborts_what_runs_and_frees_the_engine(make_stream):
    stream, engine = make_stream("long " * 20)
    outputs = stream.run(rows({"prompt": "x"}, {"prompt": "a", "max_tokens": 1}, "y"))
    assert next(outputs).row == 1
    outputs.close()
    assert len(engine.aborted) == 2
    assert engine.running == {}
    assert answer(stream, {"prompt": "again", "max_tokens": 1}).finish_reason == "length"


def test_a_failing_source_of_rows_aborts_too(make_stream):
    stream, engine = make_stream()

    def source():
        yield 0, {"prompt": "a"}, PARAMS
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        list(stream.run(source()))
    assert engine.running == {}


def test_one_run_at_a_time(make_stream):
    stream, _ = make_stream()
    first = stream.run(rows("a", {"prompt": "b", "max_tokens": 1}))
    next(first)
    with pytest.raises(EngineError, match="another stream"):
        next(stream.run(rows("c")))
    assert [output.row for output in first] == [0]
    assert answer(stream, {"prompt": "c"}).text == "ok"


def test_an_open_run_learns_that_the_engine_was_closed(make_stream):
    stream, engine = make_stream()
    outputs = stream.run(rows("a", {"prompt": "b", "max_tokens": 1}))
    next(outputs)
    stream.close()
    assert engine.running == {}
    with pytest.raises(EngineError, match="closed"):
        next(outputs)


def test_seeds_depend_on_run_row_and_sample_only(make_stream):
    stream, engine = make_stream(seed=7)
    list(
        stream.run([(4, {"prompt": "a", "n": 2}, PARAMS), (9, {"prompt": "b", "seed": 5}, PARAMS)])
    )
    assert [request.seed for request in engine.requests] == [
        sample_seed(None, run_seed=7, row=4, sample=0),
        sample_seed(None, run_seed=7, row=4, sample=1),
        5,
    ]


def test_stop_strings_cut_the_text(make_stream, tokenizer):
    stream, _ = make_stream("one two three four")
    output = answer(stream, {"prompt": "a", "stop": ["three", "zzz"]})
    assert (output.text, output.finish_reason) == ("one two ", "stop")
    assert output.samples[0].stop_reason == "three"
    ids = tokenizer.encode_with_control("one two three four")
    assert output.token_ids == tuple(ids[: len(output.token_ids)])


def test_stop_strings_do_not_look_into_reasoning(make_stream):
    stream, _ = make_stream("one two</think>one two three")
    output = answer(stream, {"prompt": "a", "thinking": "low", "stop": "two"})
    assert (output.reasoning, output.text) == ("one two", "one ")


def test_samples_have_stop_checkers_of_their_own(make_stream):
    stream, engine = make_stream("ab stop cd")
    output = answer(stream, {"prompt": "a", "stop": "stop", "n": 3})
    assert [sample.text for sample in output.samples] == ["ab "] * 3
    assert len({id(request.stop_checker) for request in engine.requests}) == 3


def test_a_stop_token_is_not_text(make_stream, tokenizer):
    stream, _ = make_stream("one two")
    last = tokenizer.encode_plain("one two")[-1]
    output = answer(stream, {"prompt": "a", "raw": True, "stop_token_ids": [last]})
    assert output.samples[0].stop_reason == last
    assert output.text == tokenizer.decode(output.token_ids[:-1])


def test_a_length_cut_keeps_the_last_token(make_stream, tokenizer):
    stream, _ = make_stream("one two three")
    output = answer(stream, {"prompt": "a", "max_tokens": 2})
    assert output.finish_reason == "length"
    assert output.text == tokenizer.decode(output.token_ids)


def test_tool_calls(make_stream):
    stream, _ = make_stream(CALL)
    output = answer(stream, {"prompt": "a", "tools": [TOOL], "id": "r", "n": 2})
    assert output.finish_reason == "tool_calls"
    assert [s.tool_calls[0].id for s in output.samples] == ["call_r_0_0", "call_r_1_0"]
    assert (output.text, output.samples[0].tool_calls[0].name) == ("Sure.", "f")


def test_cut_parts_are_flagged(make_stream):
    stream, _ = make_stream("thinking and thinking")
    output = answer(stream, {"prompt": "a", "thinking": "default", "max_tokens": 3})
    assert output.samples[0].warnings == ("unfinished_reasoning",)
    assert output.text == "" and output.reasoning
    assert output.usage.reasoning_tokens == 3
    stream, _ = make_stream(CALL)
    output = answer(stream, {"prompt": "a", "tools": [TOOL], "max_tokens": 20})
    assert output.samples[0].warnings == ("unfinished_tool_call",)
    assert output.finish_reason == "length"


def test_thinking_says_which_sampling_it_forced(make_stream):
    stream, engine = make_stream("a</think>b")
    output = answer(stream, {"prompt": "a", "thinking": "max", "temperature": 0.2, "top_p": 0.5})
    assert output.sampling.temperature == engine.requests[0].sampling.temperature == 1.0
    assert output.sampling.top_p == 0.95
    assert set(output.notes) == {"temperature", "top_p"}
    greedy = SamplingParams(temperature=0)
    assert answer(stream, {"prompt": "a"}, greedy).sampling.temperature == 0
    assert answer(stream, {"prompt": "a"}, greedy).notes == {}


def test_max_tokens_is_what_the_context_leaves(make_stream):
    stream, _ = make_stream("x", max_model_len=30)
    output = answer(stream, {"prompt": "a", "max_tokens": 500})
    room = 30 - len(output.prompt_token_ids)
    assert output.sampling.max_tokens == room
    assert str(room) in output.notes["max_tokens"]
    unasked = answer(stream, {"prompt": "a"})
    assert unasked.sampling.max_tokens == room and unasked.notes == {}


def test_unknown_fields_are_noted(make_stream):
    stream, _ = make_stream("x")
    assert answer(stream, {"prompt": "a", "temprature": 1}).notes == {
        "ignored_fields": "temprature"
    }


def test_default_sampling_is_checked_against_the_vocabulary(make_stream):
    stream, _ = make_stream("x")
    output = answer(stream, {"prompt": "a"}, SamplingParams(logit_bias={10**7: 1.0}))
    assert output.error_kind == "invalid_value"
    output = answer(stream, {"prompt": "a"}, SamplingParams(stop_token_ids=(10**7,), min_tokens=1))
    assert output.error_kind == "invalid_value" and "stop_token_ids" in output.error


def test_plain_text_shows_control_tokens_and_chat_parses_them(make_stream):
    stream, _ = make_stream("a</think>b")
    assert answer(stream, {"prompt": "q", "raw": True}).text == "a</think>b"
    assert answer(stream, {"prompt": "q", "thinking": True}).text == "b"


def test_more_tokens_at_least_than_at_most(make_stream):
    stream, _ = make_stream("x")
    output = answer(stream, {"prompt": "a", "min_tokens": 9, "max_tokens": 3})
    assert output.error_kind == "invalid_value" and "min_tokens=9" in output.error


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=4,
)
SMALL = st.integers(-2, 40) | st.floats(-3, 3) | st.sampled_from([True, "x", ["a", "b"], {"5": 2}])
FIELDS = [field.name for field in fields(SamplingParams)]


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    base=st.sampled_from(
        [{"prompt": "a"}, {"prompt": "a", "raw": True}, {"prompt_token_ids": [5]}]
    ),
    extra=st.dictionaries(st.sampled_from([*FIELDS, "thinking"]), SMALL | JSON, max_size=4),
)
def test_any_sampling_fields_give_one_output(make_stream, base, extra):
    stream, engine = make_stream("some words")
    output = answer(stream, {**base, **extra})
    assert (output.error_kind is None) == bool(output.samples)
    assert output.error_kind or len(output.samples) == output.sampling.n
    assert engine.running == {}
