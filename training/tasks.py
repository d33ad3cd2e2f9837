"""Generates small writing and reading tasks, and JSON answers.

Each function returns ``(question, reasoning, answer, response_format)``; the last is None for plain text.
"""

from __future__ import annotations

import json
from typing import Any

from training import words
from training.answers import join, plural_of
from training.grammar import Writer, mentions
from training.stories import story

Task = tuple[str, str, str, dict[str, Any] | None]


def person(writer: Writer) -> tuple[str, dict[str, Any]]:
    """A sentence about a person, and the same facts as fields."""
    name = writer.pick(words.GIRLS + words.BOYS)
    they = "she" if name in words.GIRLS else "he"
    fields: dict[str, Any] = {"name": name}
    clauses = []
    if writer.chance(0.8):
        fields["age"] = writer.random.randint(4, 90)
        clauses.append(f"is {fields['age']} years old")
    if writer.chance(0.6):
        fields["city"] = writer.pick(words.CITIES)
        clauses.append(f"lives in {fields['city']}")
    if writer.chance(0.4):
        fields["job"] = writer.pick(sorted(words.JOBS))
        clauses.append(f"works as a {fields['job']}")
    if writer.chance(0.3) or not clauses:
        fields["pet"] = writer.pick(("cat", "dog", "rabbit", "parrot", "hamster", "fish"))
        clauses.append(f"has a {fields['pet']}")
    text = f"{name} {clauses[0]}."
    if len(clauses) > 1:
        text += f" {they} {join(clauses[1:])}."
    return writer.write(text), fields


def shown(writer: Writer, value: Any) -> str:
    return json.dumps(value, indent=2) if writer.chance(0.25) else json.dumps(value)


def schema_of(fields: dict[str, Any]) -> dict[str, Any]:
    kinds = {str: "string", int: "integer", bool: "boolean", list: "array"}
    properties: dict[str, Any] = {}
    for key, value in fields.items():
        properties[key] = {"type": kinds[type(value)]}
        if isinstance(value, list):
            properties[key]["items"] = {"type": "string"}
    return {"type": "object", "properties": properties, "required": list(fields)}


def response_format(writer: Writer, fields: dict[str, Any]) -> dict[str, Any] | None:
    """None, any JSON object, or the schema of these fields."""
    kind = writer.random.random()
    if kind < 0.4:
        return None
    if kind < 0.7:
        return {"type": "json_object"}
    schema = {"name": "answer", "schema": schema_of(fields)}
    return {"type": "json_schema", "json_schema": schema}


def extract_json(writer: Writer) -> Task:
    text, fields = person(writer)
    keys = join([f'"{key}"' if writer.chance(0.3) else key for key in fields])
    question = writer.write(
        f"[extract the {keys} as JSON:|write this as JSON:|make JSON from this:|put this into JSON:|return a JSON object with {keys}.|turn this into JSON with the keys {keys}:|"
        f"give me {keys} as JSON.] "
    )
    return (
        f"{question} {text}",
        "The answer is one JSON object.",
        shown(writer, fields),
        response_format(writer, fields),
    )


def describe_json(writer: Writer) -> Task:
    """An object made up from a description."""
    kind = writer.pick(("animal", "list", "list", "city", "book", "shopping"))
    fields: dict[str, Any]
    if kind == "animal":
        name, (legs, sound, food, *_) = writer.pick(sorted(words.ANIMAL_FACTS.items()))
        fields = {"animal": name, "legs": legs, "food": food}
        question = f"[write|make|give me] a JSON object [about|describing] a {name} with the keys animal, legs and food."
    elif kind == "list":
        name, members = writer.pick(sorted(words.CATEGORIES.items()))
        count, many = writer.random.randint(2, 5), plural_of(name)
        key = many.split()[-1]
        fields = {key: writer.random.sample(members, count)}
        question = f"[give me|list|return|name] {words.NUMBER_WORDS[count]} {many} [as a JSON object with the key {key}|as JSON|in JSON]."
    elif kind == "city":
        country, city = writer.pick(sorted(words.CAPITALS.items()))
        fields = {"country": country, "capital": city}
        question = f"[return|write] JSON with the country and the capital of {country}."
    elif kind == "book":
        made = story(writer)
        fields = {"title": made.title, "hero": made.slots["N"]}
        question = f"[invent a book|make up a story title] about a {made.slots['kind']} named {made.slots['N']}. answer in JSON with title and hero."
    else:
        items = writer.random.sample(words.FOODS, writer.random.randint(2, 5))
        fields = {"items": items, "count": len(items)}
        question = f"[i need to buy|my shopping list:|put on a list:] {join(items)}. [return JSON with items and count.|answer as JSON with the keys items and count.]"
    return (
        writer.write(question),
        "I answer with JSON only.",
        shown(writer, fields),
        response_format(writer, fields),
    )


def summarize(writer: Writer) -> Task:
    made = story(writer)
    question = (
        writer.write(
            "[summarize this story in one sentence|what is this story about|sum up this story]"
        )
        + ":\n\n"
    )
    return question + made.text, f"The story is about {made.slots['N']}.", made.summary, None


def give_title(writer: Writer) -> Task:
    made = story(writer)
    question = (
        writer.write(
            "[give this story a title|find a title for this story|what would be a good title]"
        )
        + ":\n\n"
    )
    return question + made.text, "A short title fits.", made.title, None


def story_question(writer: Writer) -> Task:
    """A question about a story that was just read."""
    made = story(writer)
    slots = made.slots
    question, answer = writer.pick((
        ("[what is the name of the {kind}?|who is the main character?]", "[the {kind} is called {N}.|{N}, the {kind}.]"),
        ("what is the name of the {friend}?", "[the {friend} is called {F}.|{F}.]"),
        ("who is {F}?", "{F} is a {friend}."),
        ("who is {N}?", "{N} is a {trait} {kind}."),
    ))  # fmt: skip
    if not (mentions(made.text, slots["F"]) and mentions(made.text, slots["friend"])):
        question, answer = "who is the story about?", "the story is about {N}."
    asked = writer.write(question, slots)
    text = f"{made.text}\n\n{asked}" if writer.chance(0.7) else f"{asked}\n\n{made.text}"
    return (
        text,
        writer.write("the story says so: {N}, {kind}.", slots),
        writer.write(answer, slots),
        None,
    )


def sentence(writer: Writer) -> Task:
    """A sentence with a given word; a short description; a rewrite."""
    thing, adjective, place = (
        writer.pick(words.THINGS),
        writer.pick(words.ADJECTIVES),
        writer.pick(sorted(words.PLACES)),
    )
    name = writer.pick(words.GIRLS + words.BOYS)
    where = f"{words.PLACES[place]} the {place}"
    kind = writer.random.random()
    if kind < 0.45:
        question = writer.write(
            f'[write a sentence with the word|use this word in a sentence:|make a sentence with] "{thing}".'
        )
        answer = writer.write(
            f"[{name} found a {adjective} {thing} {where}.|the {adjective} {thing} was lying {where}.|{name} keeps a "
            f"{thing} next to the bed.|yesterday {name} bought a {adjective} {thing} at the market.|there is a {thing} {where}.]"
        )
        return question, f"The word is {thing}.", answer, None
    if kind < 0.7:
        text = writer.write(f"{name} saw a {adjective} {thing} {where}.")
        upper = writer.chance(0.5)
        question = f"Write this in {'capital' if upper else 'small'} letters: {text}"
        return question, "I copy the text.", text.upper() if upper else text.lower(), None
    animal = writer.pick(words.ANIMALS)
    question = writer.write(
        f"[describe a {animal} {where} in two sentences.|write two sentences about a {animal} {where}.]"
    )
    answer = (
        writer.write(
            f"a {adjective} {animal} is sitting {where}. [it looks around and listens to the wind.|it is looking for some "
            f"{writer.pick(words.FOODS)}.|it has found a {thing} and plays with it.|it is waiting for its friends.]"
        )
        .replace("wooden", "small")
        .replace("silver", "little")
        .replace("golden", "lovely")
    )
    return question, f"Two sentences about a {animal}.", answer, None


TASKS = (
    (0.18, extract_json), (0.14, describe_json), (0.24, summarize), (0.1, give_title), (0.18, story_question), (0.16, sentence),
)  # fmt: skip


def task(writer: Writer) -> Task:
    _, make = writer.random.choices(TASKS, [weight for weight, _ in TASKS])[0]
    return make(writer)
