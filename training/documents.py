"""Generates long documents with questions about distant passages, so that the compressed cache matters."""

from __future__ import annotations

from training import words
from training.grammar import Writer
from training.stories import story

Reading = tuple[str, list[tuple[str, str, str]]]


def inventory(writer: Writer, num_entries: int) -> Reading:
    """Who keeps what where; asked by any of the three."""
    pairs = [(adjective, thing) for adjective in words.ADJECTIVES for thing in words.THINGS]
    chosen = writer.random.sample(pairs, num_entries)
    places = sorted(words.PLACES)
    lines, questions = [], []
    for adjective, thing in chosen:
        place, person = writer.pick(places), writer.pick(words.GIRLS + words.BOYS)
        where = f"{words.PLACES[place]} the {place}"
        lines.append(writer.write(
            f"[the {adjective} {thing} is {where}, and it belongs to {person}.|{person} keeps the {adjective} {thing} "
            f"{where}.|{where} lies the {adjective} {thing} of {person}.]"
        ))  # fmt: skip
        questions.append((
            f"Where is the {adjective} {thing}?",
            lines[-1],
            writer.write(f"[the {adjective} {thing} is {where}.|it is {where}.]"),
        ))  # fmt: skip
        questions.append(
            (
                f"Who owns the {adjective} {thing}?",
                lines[-1],
                f"The {adjective} {thing} belongs to {person}.",
            )
        )
    separator = writer.pick((" ", "\n", "\n- "))
    return separator.join(lines), questions


def numbers(writer: Writer, num_entries: int) -> Reading:
    """A list of codes or ages, asked by name."""
    names = [f"{first} {last}" for first in words.GIRLS + words.BOYS for last in words.SURNAMES]
    chosen = writer.random.sample(names, num_entries)
    kind = writer.pick(("code", "phone number", "room", "score"))
    values = [str(writer.random.randint(10, 9999)) for _ in chosen]
    form = writer.pick(
        ("{name}: {value}", "The {kind} of {name} is {value}.", "{name} has the {kind} {value}.")
    )
    lines = [form.format(name=n, value=v, kind=kind) for n, v in zip(chosen, values, strict=True)]
    questions = [
        (f"What is the {kind} of {n}?", f"{n}: {v}.", f"The {kind} of {n} is {v}.")
        for n, v in zip(chosen, values, strict=True)
    ]
    return "\n".join(lines) if form.startswith("{name}:") else writer.pick((" ", "\n")).join(
        lines
    ), questions


def diary(writer: Writer, num_entries: int) -> Reading:
    """Days with a meal, a visitor and a find."""
    lines, questions = [], []
    for number in range(1, num_entries + 1):
        person, food = writer.pick(words.GIRLS + words.BOYS), writer.pick(words.FOODS)
        thing, place = writer.pick(words.THINGS), writer.pick(sorted(words.PLACES))
        where = f"{words.PLACES[place]} the {place}"
        lines.append(f"Day {number}. " + writer.write(
            f"[{person} came to visit.|i met {person} {where}.|{person} wrote a letter to me.] [we ate {food}.|for "
            f"dinner there was {food}.] [i found a {thing}.|i lost my {thing}.|i bought a {thing}.]"
        ))  # fmt: skip
        questions += [
            (f"What was eaten on day {number}?", lines[-1], f"On day {number} it was {food}."),
            (f"Who is mentioned on day {number}?", lines[-1], f"On day {number} it was {person}."),
        ]
    return "\n".join(lines), questions


def tales(writer: Writer, num_stories: int) -> Reading:
    """Several stories in a row; questions about who is who."""
    made = [story(writer) for _ in range(num_stories)]
    parts = [f"Story {i}: {s.title}\n\n{s.text}" for i, s in enumerate(made, 1)]
    questions = [
        (
            f"Who is the main character of story {i}?",
            f"Story {i} is {s.title}.",
            f"The main character is {s.slots['N']}.",
        )
        for i, s in enumerate(made, 1)
    ]
    return "\n\n".join(parts), questions


def reading(writer: Writer, num_tokens: int) -> Reading:
    """A document of roughly ``num_tokens`` tokens and its questions in document order."""
    kind = writer.random.random()
    if kind < 0.4:
        return inventory(writer, max(2, num_tokens // 16))
    if kind < 0.65:
        return numbers(writer, max(2, min(800, num_tokens // 13)))
    if kind < 0.85:
        return diary(writer, max(2, num_tokens // 26))
    return tales(writer, max(1, num_tokens // 210))
