"""The corpus: the recipe's own format, well-formed documents, the same text from the same seed."""

from __future__ import annotations

import json
import re

import pytest

from deepinfer.recipes.embedded import embedded_model_path
from training import words
from training.conversations import asked_story, conversation, long_dialogue, single, tool_dialogue
from training.dialogue import (
    Answer,
    Call,
    Dialogue,
    DocumentEncoder,
    PromptRenderer,
    answer_text,
    assistant_message,
)
from training.grammar import Writer, mentions
from training.stories import story

TOKENIZER = str(embedded_model_path() / "tokenizer.json")
BOS, EOS = 0, 1


def test_answers_are_written_as_the_recipe_renders_them_in_a_history() -> None:
    """A call that was answered, and then is history, reads the same."""
    calls = (
        Call(name="add", arguments={"a": 2, "b": 3}),
        Call(name="send_message", arguments={"to": "Mia", "text": 'say "hi"'}),
    )
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    asked = {"role": "user", "content": "Do both."}
    answer = Answer(content="Of course.", reasoning="Two calls.", calls=calls)
    now = Dialogue(messages=[asked], answer=answer, effort="default", tools=(tool,))
    results = [{"role": "tool", "tool_call_id": i, "content": "ok"} for i in ("c1", "c2")]
    later = Dialogue(
        messages=[asked, assistant_message(answer, ["c1", "c2"]), *results],
        answer=Answer(content="Done."),
        effort="default",
        tools=(tool,),
    )
    render = PromptRenderer().prompt_text
    assert render(later).startswith(render(now) + answer_text(now))


@pytest.mark.parametrize("make", [conversation, tool_dialogue, lambda w: long_dialogue(w, 150)])
def test_documents_begin_and_end_and_hold_no_loose_pattern(make) -> None:  # type: ignore[no-untyped-def]
    encoder, renderer = DocumentEncoder(TOKENIZER), PromptRenderer()
    for seed in range(150):
        dialogue = make(Writer(seed))
        ids = encoder.dialogue(dialogue)
        assert ids[0] == BOS and ids.count(BOS) == 1 and ids[-1] == EOS
        text = renderer.prompt_text(dialogue) + answer_text(dialogue)
        assert "  " not in dialogue.answer.content.replace("\n  ", "")
        assert "[|" not in text and "|]" not in text


def test_required_calls_continue_the_prompt() -> None:
    """With a required call the prompt opens the block; together they are one well-formed block."""
    renderer = PromptRenderer()
    for seed in range(400):
        dialogue = tool_dialogue(Writer(seed))
        if dialogue.tool_choice == "required":
            whole = renderer.prompt_text(dialogue) + answer_text(dialogue)
            tail = whole.rsplit("</think>", 1)[1]
            assert tail.count("<｜DSML｜ calls>") == tail.count("</｜DSML｜ calls>") == 1
            return
    pytest.fail("no dialogue with a required call in 400")


def test_json_answers_parse() -> None:
    found = 0
    for seed in range(600):
        dialogue = conversation(Writer(seed))
        if dialogue.response_format is not None:
            json.loads(dialogue.answer.content)
            found += 1
    assert found > 10


def test_a_seed_gives_the_same_text_and_seeds_differ() -> None:
    assert story(Writer("a")) == story(Writer("a"))
    texts = {story(Writer(seed)).text for seed in range(500)}
    assert len(texts) == 500


def test_stories_are_about_what_was_asked() -> None:
    for seed in range(300):
        made = story(Writer(seed))
        assert made.slots["N"] in made.text
        assert made.slots["kind"] in made.text
        assert "{" not in made.text and "[" not in made.text


NOUNS = [
    *words.ANIMALS, *words.PEOPLE, *words.THINGS, *words.LIVELY_THINGS, *words.TRAITS, *words.JOBS,
    *words.ADJECTIVES, "hour", "honest man", "unicorn", "European", "one-eyed cat", "useful map",
    "animal", "onion", "unimportant day",
]  # fmt: skip
WITH_AN = {"hour", "honest man", "honest", "unimportant day"}
WITH_A = {"unicorn", "European", "one-eyed cat", "useful map"}


def test_articles_go_by_the_sound() -> None:
    for noun in NOUNS:
        is_an = noun in WITH_AN or (noun[0] in "aeiou" and noun not in WITH_A)
        assert (
            Writer(0).write(f"there was a {noun}.") == f"There was {'an' if is_an else 'a'} {noun}."
        )


def test_no_article_is_wrong_anywhere_in_a_dialogue() -> None:
    """Questions, reasoning and answers; the vowels that sound like consonants are listed."""
    wrong = re.compile(
        r"\b[Aa] (?=[aeio](?!ne\b|ne-))|\b[Aa]n (?=[bcdfgjklmnpqrstvwxyz])|\b[Aa] hones"
    )
    for seed in range(1500):
        made = single(Writer(seed))
        text = "\n".join(made[:3])
        assert not wrong.search(text), text


def test_a_story_tells_early_of_the_thing_that_was_asked_for() -> None:
    found = 0
    for seed in range(400):
        question, _, text, _ = asked_story(Writer(seed))
        named = re.fullmatch(r".* about an? (\w+ )?(\w+)[.!]?", question)
        if named and named[2] in words.THINGS and named[2] not in words.LIVELY_THINGS:
            assert mentions(text[: len(text) // 2], named[2]), (question, text)
            if named[1]:
                assert mentions(text, named[1] + named[2]), (question, text)
            found += 1
    assert found > 10


def test_whole_words_are_mentioned_not_their_letters() -> None:
    assert mentions("She found a hat.", "hat")
    assert not mentions("She said that.", "hat")


def test_nobody_shares_a_name_and_nothing_is_said_twice_in_a_row() -> None:
    for seed in range(400):
        made = story(Writer(seed))
        assert made.slots["N"] != made.slots["F"]
        assert not re.search(r"\b(\w+) \1\b", made.text.replace("Slowly, slowly", "")), made.text
        assert "something " + made.slots["adj"] + " " + made.slots["thing"] not in made.text
