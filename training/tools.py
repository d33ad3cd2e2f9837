"""Conversations with tools: what is offered, what is asked, the call, its result and the final answer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from training import words
from training.answers import fact
from training.grammar import Writer


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCase:
    """``arguments`` is empty when the question needs no tool."""

    tools: tuple[str, ...]
    question: str
    reasoning: str
    name: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    result: str = ""
    answer: str = ""


def _schema(name: str, description: str, **properties: tuple[str, str]) -> dict[str, Any]:
    described = {
        key: {"type": kind, "description": text} for key, (kind, text) in properties.items()
    }
    parameters = {"type": "object", "properties": described, "required": list(described)}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
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
        _schema("add_to_list", "Put an item on the shopping list.", item=("string", "The item")),
    )
}
WEATHER = ("sunny", "cloudy", "rainy", "windy", "foggy", "snowy")


def tool_case(writer: Writer) -> ToolCase:
    """One case; in about one of eight the tools are not needed."""
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
    question, arguments, result, answer = _details(writer, name)
    return ToolCase(
        tools=tuple(offered), question=writer.write(question),
        reasoning=f"I need the tool {name} with {', '.join(f'{k} {v}' for k, v in arguments.items())}.",
        name=name, arguments=arguments, result=result, answer=writer.write(answer),
    )  # fmt: skip


def _details(writer: Writer, name: str) -> tuple[str, dict[str, Any], str, str]:
    """(question pattern, arguments, result, answer pattern) for one tool."""
    city, person = writer.pick(words.CITIES), writer.pick(words.GIRLS + words.BOYS)
    a, b = writer.random.randint(2, 99), writer.random.randint(2, 99)
    if name == "get_weather":
        sky, degrees = writer.pick(WEATHER), writer.random.randint(-5, 35)
        result = json.dumps({"weather": sky, "degrees": degrees})
        ask = f"[what is the weather in {city}?|how is the weather in {city} today?|weather in {city}|do i need an umbrella in {city}?]"
        return ask, {"city": city}, result, f"it is {sky} in {city}, with {degrees} degrees."
    if name == "get_time":
        clock = f"{writer.random.randint(0, 23)}:{writer.random.randint(0, 59):02d}"
        return (
            f"[what time is it in {city}?|tell me the time in {city}.]",
            {"city": city},
            clock,
            f"it is {clock} in {city}.",
        )
    if name in ("add", "multiply"):
        sign, value = ("plus", a + b) if name == "add" else ("times", a * b)
        return (
            f"[what is|how much is|calculate] {a} {sign} {b}[?|]",
            {"a": a, "b": b},
            str(value),
            f"{a} {sign} {b} is {value}.",
        )
    if name == "set_timer":
        return (
            f"[set a timer for {a} minutes.|wake me in {a} minutes.|start a {a} minute timer.]",
            {"minutes": a},
            "ok",
            f"[the timer is set for {a} minutes.|done! the timer runs for {a} minutes.]",
        )
    if name == "send_message":
        text = writer.write(
            "[i will be late|dinner is ready|see you tomorrow|happy birthday|please call me|the train is here]"
        )
        return (
            f"[tell {person}: {text}.|send {person} this message: {text}.]",
            {"to": person, "text": text},
            "sent",
            f"[i sent the message to {person}.|done, {person} has the message.]",
        )
    if name == "search":
        topic = writer.pick((*words.ANIMALS, *sorted(words.USES), *sorted(words.JOBS)))
        result = f"{writer.random.randint(2, 90)} pages found"
        return (
            f"[search for {topic}.|look up {topic}.|find something about {topic}.]",
            {"query": topic},
            result,
            f"i found {result.split()[0]} pages about {topic}.",
        )
    item = writer.pick(words.FOODS)
    return (
        f"[put {item} on the shopping list.|add {item} to my list.|i need {item}.]",
        {"item": item},
        "ok",
        f"[i put {item} on the list.|done, {item} is on the list.]",
    )
