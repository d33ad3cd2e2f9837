"""Dialogues about each tool: the user's question, the tool's result, the assistant's answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from training import words
from training.grammar import Writer

WEATHER = ("sunny", "cloudy", "rainy", "windy", "foggy", "snowy")


class Talk(NamedTuple):
    """``question`` and ``answer`` are patterns for ``Writer``."""

    question: str
    arguments: dict[str, Any]
    result: str
    answer: str


class Drawn(NamedTuple):
    """Random values, drawn before the tool is chosen."""

    city: str
    person: str
    a: int
    b: int


def talk_about(tool: str, writer: Writer) -> Talk:
    """One question that needs ``tool``."""
    city, person = writer.pick(words.CITIES), writer.pick(words.GIRLS + words.BOYS)
    a, b = writer.random.randint(2, 99), writer.random.randint(2, 99)
    return _TALKS[tool](writer, Drawn(city, person, a, b))


def _weather(writer: Writer, drawn: Drawn) -> Talk:
    city, sky, degrees = drawn.city, writer.pick(WEATHER), writer.random.randint(-5, 35)
    return Talk(
        f"[what is the weather in {city}?|how is the weather in {city} today?|weather in {city}|do i need an umbrella in {city}?]",
        {"city": city},
        json.dumps({"weather": sky, "degrees": degrees}),
        f"it is {sky} in {city}, with {degrees} degrees.",
    )


def _time(writer: Writer, drawn: Drawn) -> Talk:
    city = drawn.city
    clock = f"{writer.random.randint(0, 23)}:{writer.random.randint(0, 59):02d}"
    return Talk(
        f"[what time is it in {city}?|tell me the time in {city}.]",
        {"city": city},
        clock,
        f"it is {clock} in {city}.",
    )


def _sum(writer: Writer, drawn: Drawn) -> Talk:
    return _calculation(drawn, "plus", drawn.a + drawn.b)


def _product(writer: Writer, drawn: Drawn) -> Talk:
    return _calculation(drawn, "times", drawn.a * drawn.b)


def _calculation(drawn: Drawn, sign: str, value: int) -> Talk:
    a, b = drawn.a, drawn.b
    return Talk(
        f"[what is|how much is|calculate] {a} {sign} {b}[?|]",
        {"a": a, "b": b},
        str(value),
        f"{a} {sign} {b} is {value}.",
    )


def _timer(writer: Writer, drawn: Drawn) -> Talk:
    a = drawn.a
    return Talk(
        f"[set a timer for {a} minutes.|wake me in {a} minutes.|start a {a} minute timer.]",
        {"minutes": a},
        "ok",
        f"[the timer is set for {a} minutes.|done! the timer runs for {a} minutes.]",
    )


def _message(writer: Writer, drawn: Drawn) -> Talk:
    person = drawn.person
    text = writer.write(
        "[i will be late|dinner is ready|see you tomorrow|happy birthday|please call me|the train is here]"
    )
    return Talk(
        f"[tell {person}: {text}.|send {person} this message: {text}.]",
        {"to": person, "text": text},
        "sent",
        f"[i sent the message to {person}.|done, {person} has the message.]",
    )


def _search(writer: Writer, drawn: Drawn) -> Talk:
    topic = writer.pick((*words.ANIMALS, *sorted(words.USES), *sorted(words.JOBS)))
    count = writer.random.randint(2, 90)
    return Talk(
        f"[search for {topic}.|look up {topic}.|find something about {topic}.]",
        {"query": topic},
        f"{count} pages found",
        f"i found {count} pages about {topic}.",
    )


def _price(writer: Writer, drawn: Drawn) -> Talk:
    thing, price = writer.pick(words.THINGS), writer.random.randint(1, 90)
    return Talk(
        f"[how much is the {thing}?|what does the {thing} cost?|price of a {thing}]",
        {"item": thing},
        f"{price} dollars",
        f"the {thing} costs {price} dollars.",
    )


def _song(writer: Writer, drawn: Drawn) -> Talk:
    title = writer.write(
        f"[the {writer.pick(words.ADJECTIVES)} {writer.pick(words.THINGS)}|{drawn.person}'s song|{writer.pick(words.DAYS)} morning]"
    )
    return Talk(
        f'[play|please play|i want to hear] "{title}".',
        {"title": title},
        "playing",
        f'[now playing "{title}".|here is "{title}".]',
    )


def _device(writer: Writer, drawn: Drawn) -> Talk:
    device = writer.pick(("lamp", "heater", "radio", "fan", "television", "oven"))
    room = writer.pick(("kitchen", "bedroom", "bathroom", "hall", "office", "garage"))
    return Talk(
        f"[turn|switch] on the {device} in the {room}.",
        {"device": device, "room": room},
        "on",
        f"the {device} in the {room} is on.",
    )


def _table(writer: Writer, drawn: Drawn) -> Talk:
    count, person = writer.random.randint(2, 9), drawn.person
    return Talk(
        f"[book a table for {count} people. my name is {person}.|a table for {count}, please, for {person}.]",
        {"name": person, "people": count},
        "booked",
        f"the table for {count} people is booked for {person}.",
    )


def _book(writer: Writer, drawn: Drawn) -> Talk:
    topic, shelf = writer.pick((*words.ANIMALS, *words.PLACES)), writer.random.randint(1, 40)
    return Talk(
        f"[find a book about the {topic}.|is there a book about the {topic}?]",
        {"topic": topic},
        f"shelf {shelf}",
        f"there is a book about the {topic} on shelf {shelf}.",
    )


def _translation(writer: Writer, drawn: Drawn) -> Talk:
    word = writer.pick((*words.ANIMALS, *words.FOODS))
    language = writer.pick(("French", "German", "Spanish", "Italian", "Japanese"))
    return Talk(
        f"[translate {word} to {language}.|what is {word} in {language}?]",
        {"word": word, "language": language},
        "done",
        "the translation is done.",
    )


def _shopping(writer: Writer, drawn: Drawn) -> Talk:
    item = writer.pick(words.FOODS)
    return Talk(
        f"[put {item} on the shopping list.|add {item} to my list.|i need {item}.]",
        {"item": item},
        "ok",
        f"[i put {item} on the list.|done, {item} is on the list.]",
    )


_TALKS: dict[str, Callable[[Writer, Drawn], Talk]] = {
    "get_weather": _weather,
    "get_time": _time,
    "add": _sum,
    "multiply": _product,
    "set_timer": _timer,
    "send_message": _message,
    "search": _search,
    "get_price": _price,
    "play_song": _song,
    "turn_on": _device,
    "book_table": _table,
    "find_book": _book,
    "translate": _translation,
    "add_to_list": _shopping,
}
