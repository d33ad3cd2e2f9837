"""Conversations with tools: what is offered, what is asked, the call, its result and the final answer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from training.answers import fact
from training.grammar import Writer, tidy
from training.tool_talk import talk_about


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCase:
    """``arguments`` is empty if the question needs no tool."""

    tools: tuple[str, ...]
    question: str
    reasoning: str
    name: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    result: str = ""
    answer: str = ""


def _schema(tool: str, description: str, /, **properties: tuple[str, str]) -> dict[str, Any]:
    described = {
        key: {"type": kind, "description": text} for key, (kind, text) in properties.items()
    }
    parameters = {"type": "object", "properties": described, "required": list(described)}
    return {
        "type": "function",
        "function": {"name": tool, "description": description, "parameters": parameters},
    }


SCHEMAS = {
    schema["function"]["name"]: schema
    for schema in (
        _schema("get_weather", "Get the weather of a city.", city=("string", "Name of the city")),
        _schema("get_time", "Get the current time in a city.", city=("string", "Name of the city")),
        _schema(
            "add", "Add two numbers.", a=("integer", "First number"), b=("integer", "Second number")
        ),
        _schema(
            "multiply",
            "Multiply two numbers.",
            a=("integer", "First number"),
            b=("integer", "Second number"),
        ),
        _schema("set_timer", "Start a timer.", minutes=("integer", "How many minutes")),
        _schema(
            "send_message",
            "Send a message to somebody.",
            to=("string", "Receiver"),
            text=("string", "The message"),
        ),
        _schema("search", "Search for a topic.", query=("string", "What to search for")),
        _schema("get_price", "Price of an item in the shop.", item=("string", "The item")),
        _schema("play_song", "Play a song.", title=("string", "Title of the song")),
        _schema(
            "turn_on",
            "Turn on a device in a room.",
            device=("string", "The device"),
            room=("string", "The room"),
        ),
        _schema(
            "book_table",
            "Book a table in a restaurant.",
            name=("string", "Name of the guest"),
            people=("integer", "Number of guests"),
        ),
        _schema(
            "find_book", "Find a book in the library.", topic=("string", "What the book is about")
        ),
        _schema(
            "translate",
            "Translate a word.",
            word=("string", "The word"),
            language=("string", "Target language"),
        ),
        _schema("add_to_list", "Put an item on the shopping list.", item=("string", "The item")),
    )
}
REWORDED = (
    ("Get the", ""),
    ("Get the", "Tells the"),
    (" of a city", " in a place"),
    ("the current", "current"),
)


def offered_schema(writer: Writer, name: str) -> dict[str, Any]:
    """A variant of the schema, as users write them: other words, number for integer, fewer descriptions."""
    text = json.dumps(SCHEMAS[name])
    for old, new in REWORDED:
        text = text.replace(old, new) if writer.chance(0.15) else text
    text = text.replace('"integer"', '"number"') if writer.chance(0.3) else text
    schema: dict[str, Any] = json.loads(text)
    function = schema["function"]
    function["description"] = tidy(function["description"])
    if writer.chance(0.25):
        for described in function["parameters"]["properties"].values():
            del described["description"]
    return schema


def tool_case(writer: Writer) -> ToolCase:
    """A random case; about one in eight needs no tool."""
    name = writer.pick(sorted(SCHEMAS))
    others = writer.random.sample([n for n in SCHEMAS if n != name], writer.random.randint(0, 2))
    offered = [name, *others]
    writer.random.shuffle(offered)
    if writer.chance(0.12):
        question, reasoning, answer = fact(writer)
        return ToolCase(
            tools=tuple(offered),
            question=question,
            reasoning=f"No tool is needed. {reasoning}",
            answer=answer,
        )
    talk = talk_about(name, writer)
    given = ", ".join(f"{k} {v}" for k, v in talk.arguments.items())
    return ToolCase(
        tools=tuple(offered),
        question=writer.write(talk.question),
        reasoning=f"I need the tool {name} with {given}.",
        name=name,
        arguments=talk.arguments,
        result=talk.result,
        answer=writer.write(talk.answer),
    )
