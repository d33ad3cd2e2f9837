"""Stop strings: equal to a naive search, and to the official parser, whatever the token borders."""

from __future__ import annotations

import json

import deepseek_recipe as official
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.recipes.chat import parsing_options
from deepinfer.recipes.parsing import AnswerParser
from deepinfer.recipes.stopping import StopChecker
from deepinfer.recipes.types import AnswerFormat

PLAIN = AnswerFormat()
CHAT = AnswerFormat(is_chat=True)
THINKING = AnswerFormat(is_chat=True, thinking_stage="reasoning_start")
TOOLS = AnswerFormat(is_chat=True, has_tools=True)
STOPS = st.lists(st.text(alphabet="ab\né🙂", min_size=1, max_size=4), min_size=1, max_size=3)


def run(tokenizer, token_ids, stops, form):
    """Feed tokens until one completes a stop; returns (stop, tokens used, answer)."""
    checker = StopChecker(tokenizer, stops, form)
    for count, token_id in enumerate(token_ids, start=1):
        stop = checker.push(token_id)
        if stop is not None:
            answer = AnswerParser(tokenizer).parse(
                token_ids[:count], form, num_cut_chars=checker.num_cut_chars
            )
            return stop, count, answer
    return None, len(token_ids), AnswerParser(tokenizer).parse(token_ids, form)


def naive(text, stops):
    """Grow the text by one character at a time; the longest stop that ends here, if any."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return None


@given(text=st.text(alphabet="ab\né🙂 ", max_size=30), stops=STOPS, data=st.data())
def test_equals_a_naive_search(tiny, text, stops, data):
    whole = tiny.encode_plain(text)
    by_character = [token_id for character in text for token_id in tiny.encode_plain(character)]
    for token_ids in (whole, by_character):
        stop, _, answer = run(tiny, token_ids, stops, PLAIN)
        expected = naive(text, stops)
        assert (answer.content, stop) == (expected or (text, None))


@given(text=st.text(alphabet="ab ", max_size=20), stops=STOPS)
def test_stops_at_the_first_token_that_completes_one(tiny, text, stops):
    token_ids = tiny.encode_plain(text)
    _, count, _ = run(tiny, token_ids, stops, PLAIN)
    before = tiny.decode(token_ids[: count - 1])
    found_before_last_token = any(stop in before for stop in stops)
    assert not found_before_last_token


def official_cut(tokenizer, token_ids, stops, form):
    """The same by the wheel's own stop sequences, which say what was kept and how far it read."""
    options = parsing_options(form)
    options.stop_sequences = stops
    request = official.ConversationRequest(
        official.Conversation([official.UserMessage("")]), official.ModelVersion.DeepseekV41Flash
    )
    generator = official.ChatCompletionRequest.chunk_generator(request, "", "")
    processor = official.StreamProcessor(generator, options, tokenizer.wheel)
    chunks, count = [], 0
    while count < len(token_ids) and not processor.finished:
        chunks += processor.push(official.InferenceChunk.tokens([token_ids[count]]))
        count += 1
    if not processor.finished:
        chunks += processor.push(
            official.InferenceChunk.finish(official.InferenceFinishReason.Length)
        )
        chunks += processor.finish()
    response = official.ChatCompletionResponse("", "", 0, 0, 0)
    for chunk in chunks:
        response.accumulate(chunk)
    message = json.loads(response.to_json())["choices"][0]["message"]
    return message.get("content") or "", message.get("reasoning_content"), count


PIECES = st.lists(
    st.sampled_from(
        ["a", "b", "ab", "\n", "\n\n", "é", "🙂", " ", "</think>", "<think>", "<｜User｜>"]
    ),
    max_size=14,
)


def is_comparable(stops):
    """Where the official parser does not have quirks: it forgets leading newlines of the answer
    while a longer stop is half matched, and among stops that end together takes any."""
    return not any(
        (stop.startswith("\n") and stop[1:])
        or any(stop != other and stop.endswith(other) for other in stops)
        for stop in stops
    )


OFFICIAL_STOPS = STOPS.filter(is_comparable)


@settings(max_examples=300)
@given(pieces=PIECES, stops=OFFICIAL_STOPS, form=st.sampled_from([CHAT, THINKING]))
def test_equals_the_official_parser(tiny, pieces, stops, form):
    token_ids = tiny.encode_with_control("".join(pieces))
    stop, count, answer = run(tiny, token_ids, stops, form)
    content, reasoning, official_count = official_cut(tiny, token_ids, stops, form)
    assert answer.content == content
    assert (answer.reasoning or None) == (reasoning or None)
    if stop is not None:
        assert count <= official_count


@settings(max_examples=300)
@given(data=st.data(), form=st.sampled_from([CHAT, THINKING, TOOLS]))
def test_any_ids_give_the_official_text(tiny, data, form):
    """Only a tail that ends inside a character differs: the official parser drops its token."""
    special = [tiny.think_end_id, tiny.tool_marker_id, tiny.bos_id]
    token = st.integers(0, tiny.size - 1) | st.sampled_from(special)
    token_ids = data.draw(st.lists(token, max_size=20))
    answer = AnswerParser(tiny).parse(token_ids, form)
    content, reasoning, _ = official_cut(tiny, token_ids, [], form)
    for ours, theirs in ((answer.content, content), (answer.reasoning or "", reasoning or "")):
        assert ours.startswith(theirs)
        if (
            not tiny.decode([*token_ids, tiny.bos_id])
            .removesuffix("<｜begin▁of▁sentence｜>")
            .endswith("\ufffd")
        ):
            assert ours == theirs


CALL = (
    '\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">\n'
    '<｜DSML｜ parameter name="x" string="true">stop here</｜DSML｜ parameter>\n'
    "</｜DSML｜ invoke>\n</｜DSML｜ calls>"
)


@pytest.mark.parametrize(
    "text, form, stops, stop, content",
    [
        ("I stop</think>We stop now", THINKING, ["stop"], "stop", "We "),
        ("I stop and think", THINKING, ["stop"], None, ""),
        ("Call" + CALL + " stop", TOOLS, ["stop"], None, "Call"),
        ("stop" + CALL, TOOLS, ["stop"], "stop", ""),
        ("\n\nHello\nx", CHAT, ["\n"], "\n", ""),
        ("abc", PLAIN, ["abc", "bc"], "abc", ""),
        ("<｜User｜>", PLAIN, ["User"], "User", "<｜"),
    ],
)
def test_only_the_answer_part_counts(tokenizer, text, form, stops, stop, content):
    found, _, answer = run(tokenizer, tokenizer.encode_with_control(text), stops, form)
    assert (found, answer.content) == (stop, content)


def test_goes_on_after_a_match_that_the_engine_does_not_take(tiny):
    """With min_tokens the engine may go on; only the match it ends with is cut."""
    checker = StopChecker(tiny, ["ab"], PLAIN)
    token_ids = [i for character in "ab-xaby" for i in tiny.encode_plain(character)]
    found = [place for place, token_id in enumerate(token_ids) if checker.push(token_id)]
    assert found == [1, 5]
    assert checker.num_cut_chars == 2
