"""Conversations with tools: what is offered, what is asked, the call, its result and the final answer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from training import words
from training.answers import fact
from training.grammar import Writer, tidy


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
WEATHER = ("sunny", "cloudy", "rainy", "windy", "foggy", "snowy")


def offered_schema(writer: Writer, name: str) -> dict[str, Any]:
    """The schema as some user would write it: other words, number for integer, fewer descriptions."""
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
    if name == "get_price":
        thing, price = writer.pick(words.THINGS), writer.random.randint(1, 90)
        ask = f"[how much is the {thing}?|what does the {thing} cost?|price of a {thing}]"
        return ask, {"item": thing}, f"{price} dollars", f"the {thing} costs {price} dollars."
    if name == "play_song":
        title = writer.write(
            f"[the {writer.pick(words.ADJECTIVES)} {writer.pick(words.THINGS)}|{person}'s song|{writer.pick(words.DAYS)} morning]"
        )
        ask = f'[play|please play|i want to hear] "{title}".'
        return ask, {"title": title}, "playing", f'[now playing "{title}".|here is "{title}".]'
    if name == "turn_on":
        device = writer.pick(("lamp", "heater", "radio", "fan", "television", "oven"))
        room = writer.pick(("kitchen", "bedroom", "bathroom", "hall", "office", "garage"))
        ask = f"[turn|switch] on the {device} in the {room}."
        return ask, {"device": device, "room": room}, "on", f"the {device} in the {room} is on."
    if name == "book_table":
        count = writer.random.randint(2, 9)
        ask = f"[book a table for {count} people. my name is {person}.|a table for {count}, please, for {person}.]"
        answer = f"the table for {count} people is booked for {person}."
        return ask, {"name": person, "people": count}, "booked", answer
    if name == "find_book":
        topic, shelf = writer.pick((*words.ANIMALS, *words.PLACES)), writer.random.randint(1, 40)
        ask = f"[find a book about the {topic}.|is there a book about the {topic}?]"
        return (
            ask,
            {"topic": topic},
            f"shelf {shelf}",
            f"there is a book about the {topic} on shelf {shelf}.",
        )
    if name == "translate":
        word = writer.pick((*words.ANIMALS, *words.FOODS))
        language = writer.pick(("French", "German", "Spanish", "Italian", "Japanese"))
        ask = f"[translate {word} to {language}.|what is {word} in {language}?]"
        return ask, {"word": word, "language": language}, "done", "the translation is done."
    item = writer.pick(words.FOODS)
    return (
        f"[put {item} on the shopping list.|add {item} to my list.|i need {item}.]",
        {"item": item},
        "ok",
        f"[i put {item} on the list.|done, {item} is on the list.]",
    )
