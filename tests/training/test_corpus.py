"""The corpus: the recipe's own format, well-formed documents, the same text from the same seed."""

from __future__ import annotations

import json

import pytest

from deepinfer.recipes.embedded import embedded_model_path
from training.conversations import conversation, long_dialogue, tool_dialogue
from training.dialogue import (
    Answer,
    Call,
    Dialogue,
    DocumentEncoder,
    PromptRenderer,
    answer_text,
    assistant_message,
)
from training.grammar import Writer
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
