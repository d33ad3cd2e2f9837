"""Generates dialogues over all kinds of questions, with and without thinking, system prompts and tools."""

from __future__ import annotations

import json
from typing import Any

from training import words
from training.answers import fact, plural_of
from training.dialogue import Answer, Call, Dialogue, assistant_message
from training.documents import reading
from training.grammar import Writer, agree, mentions
from training.poems import poem, short_story
from training.stories import Story, story
from training.sums import arithmetic
from training.tasks import Task, task
from training.tools import offered_schema, tool_case

SYSTEM_PROMPTS = (
    "You are a helpful assistant.", "You are a friendly assistant.", "Answer the question.", "Be brief.",
    "You tell stories for children.", "You are a teacher.", "You are a friendly helper. Keep your answers short.", "You are a pirate.", "Answer in simple words.", "Be kind and helpful.",
)  # fmt: skip
JSON_PROMPTS = (
    "Answer in JSON only.",
    "Answer in JSON.",
    "Reply with JSON only.",
    "You only write JSON.",
)
GREETINGS = (
    "that is nice to know.",
    "thank you for telling me.",
    "how nice!",
    "i see.",
    "that is nice!",
)
# values, what the user says, what the user asks later, the answer
MEMORIES = {
    "name": (words.GIRLS + words.BOYS, "[my name is {x}.|i am {x}.|hi, i'm {x}.|call me {x}.]",
             "[what is my name?|who am i?|do you remember my name?]", "[your name is {x}.|you are {x}.]"),
    "color": (words.CATEGORIES["color"], "[my favorite color is {x}.|i love the color {x}.]",
              "what is my favorite color?", "your favorite color is {x}."),
    "city": (words.CITIES, "[i live in {x}.|my home is in {x}.]", "where do i live?", "you live in {x}."),
    "age": ([str(n) for n in range(5, 91)], "[i am {x} years old.|my age is {x}.]",
            "[how old am i?|what is my age?]", "you are {x} years old."),
    "food": (words.FOODS, "[my favorite food is {x}.|i like {x} best of all.]",
             "what is my favorite food?", "your favorite food is {x}."),
    "pet": (words.ANIMALS, "[i have a {x}.|my pet is a {x}.]", "[what pet do i have?|what is my pet?]", "you have a {x}."),
}  # fmt: skip
EFFORTS = ("low", "default", "default", "default", "max")
EARLY = 0.4  # of the text: what a story is about comes before
THINKING_SHARE = 0.25
SYSTEM_SHARE = 0.15


def asked_story(writer: Writer) -> Task:
    """A request for a story, open or with given parts."""
    made = story(writer)
    slots = made.slots
    patterns = (
        made.request, made.request, "a {kind}", "a {trait} {kind}", "a {kind} named {N}", "a {kind} and a {friend}",
        "a {kind} and a {thing}", "a {kind} {inplace}", "{N} the {kind}", "a {friend} and a {kind} named {N}",
        "a {trait} {kind} and a {adj} {thing}", "a {thing}", "a {adj} {thing}", "a {trait} {kind} [who makes a friend|and a friend]",
    )  # fmt: skip
    told = [pattern for pattern in patterns if is_told(made, pattern)]
    request = writer.pick(told)
    about = writer.write(request, slots)
    about = (
        about[0].lower() + about[1:]
        if about.split()[0] in ("A", "An", "One", "Two", "Sharing")
        else about
    )
    question = writer.write(
        f"[tell me a story|write a story|write a short story|tell me a short story|tell a story|please write a story|can "
        f"you tell me a story|i want a story|make up a story|write a little story|tell a bedtime story] about {about}[.||!]"
    )
    if writer.chance(0.08):
        question = writer.write(
            "[tell me a story|write a short story|tell me a bedtime story|i want to hear a story][.|!|]"
        )
    if writer.chance(0.1) and is_told(made, "{thing} {place} {friend}"):
        question = writer.write(
            "[write|tell me] a [short |]story with the words {thing}, {place} and {friend}.", slots
        )
    text = f"{made.title}\n\n{made.text}" if writer.chance(0.1) else made.text
    reasoning = writer.write(
        "[the user wants a story|i should write a story] about {N} the {kind}. [{F} the {friend} can help.|there should "
        "be a {thing} and a {friend} named {F}.|the other one is {F} the {friend}.] [it should end well.|i keep it short.|]",
        slots,
    )
    return question, reasoning, text, None


def is_told(made: Story, request: str) -> bool:
    """Whether what a request names is in the story: things from early on, and as they are called."""
    slots = made.slots
    early = made.text[: int(len(made.text) * EARLY)]
    if "{adj} {thing}" in request and not mentions(early, f"{slots['adj']} {slots['thing']}"):
        return False
    if "{thing}" in request and not mentions(early, slots["thing"]):
        return False
    named = [name for name in ("adj", "trait", "F", "friend", "place") if f"{{{name}}}" in request]
    return all(mentions(made.text, slots[name]) for name in named)


def single(writer: Writer) -> Task:
    """One question of any kind."""
    question, reasoning, answer, response_format = _any_kind(writer)
    return question, agree(reasoning), answer, response_format


def _any_kind(writer: Writer) -> Task:
    kind = writer.random.random()
    if kind < 0.34:
        return asked_story(writer)
    if kind < 0.57:
        return (*fact(writer), None)
    if kind < 0.74:
        return (*arithmetic(writer), None)
    if kind < 0.79:
        return (*(poem if writer.chance(0.4) else short_story)(writer), None)
    return task(writer)


def conversation(writer: Writer) -> Dialogue:
    """One to four turns; earlier reasoning is left out, as the recipe does."""
    kind = writer.random.random()
    if kind < 0.06:
        return remembered(writer) if kind < 0.04 else json_only(writer)
    messages = system(writer)
    effort = writer.pick(EFFORTS) if writer.chance(THINKING_SHARE) else None
    num_turns = writer.random.choices((1, 2, 3, 4), (0.74, 0.14, 0.08, 0.04))[0]
    for _ in range(num_turns - 1):
        question, _, answer, _ = single(writer)
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
    question, reasoning, answer, response_format = single(writer)
    messages.append({"role": "user", "content": question})
    return Dialogue(
        messages=messages, effort=effort, response_format=response_format,
        answer=Answer(content=answer, reasoning=reasoning),
    )  # fmt: skip


def remembered(writer: Writer) -> Dialogue:
    """Something the user said earlier, asked for later."""
    kind = writer.pick(sorted(MEMORIES))
    values, said, asked, reply = MEMORIES[kind]
    slots = {"x": writer.pick(values)}
    greeting = "hello, {x}! how can i help you?" if kind == "name" else writer.pick(GREETINGS)
    messages = [
        *system(writer),
        {"role": "user", "content": writer.write(said, slots)},
        {"role": "assistant", "content": writer.write(greeting, slots)},
    ]
    if writer.chance(0.4):
        question, _, content = fact(writer)
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": content},
        ]
    messages.append({"role": "user", "content": writer.write(asked)})
    answer = Answer(
        content=writer.write(reply, slots), reasoning=writer.write("the user said: {x}.", slots)
    )
    effort = writer.pick(EFFORTS) if writer.chance(THINKING_SHARE) else None
    return Dialogue(messages=messages, effort=effort, answer=answer)


def json_only(writer: Writer) -> Dialogue:
    """JSON because the system prompt asks for it."""
    name, members = writer.pick(sorted(words.CATEGORIES.items()))
    count, many = writer.random.randint(2, 5), plural_of(name)
    question = writer.write(f"[name|list|give me] {words.NUMBER_WORDS[count]} {many}.")
    content = json.dumps({many.split()[-1]: writer.random.sample(members, count)})
    prompt = writer.pick(JSON_PROMPTS)
    messages = [{"role": "system", "content": prompt}, {"role": "user", "content": question}]
    answer = Answer(content=content, reasoning="JSON is asked for.")
    return Dialogue(messages=messages, answer=answer, effort=writer.pick((None, None, None, "low")))


def system(writer: Writer) -> list[dict[str, Any]]:
    if not writer.chance(SYSTEM_SHARE):
        return []
    return [{"role": "system", "content": writer.pick(SYSTEM_PROMPTS)}]


def tool_dialogue(writer: Writer) -> Dialogue:
    """A call, or the answer after its result, or an answer that needs no call."""
    case = tool_case(writer)
    effort = writer.pick(EFFORTS) if writer.chance(THINKING_SHARE) else None
    tools = tuple(offered_schema(writer, name) for name in case.tools)
    messages = [*system(writer), {"role": "user", "content": case.question}]
    if not case.name:
        answer = Answer(content=case.answer, reasoning=case.reasoning)
        return Dialogue(messages=messages, answer=answer, effort=effort, tools=tools)
    call = Answer(
        content="",
        reasoning=case.reasoning,
        calls=(Call(name=case.name, arguments=case.arguments),),
    )
    if writer.chance(0.5):
        required = "required" if effort is None and writer.chance(0.2) else None
        return Dialogue(
            messages=messages, answer=call, effort=effort, tools=tools, tool_choice=required
        )
    call_id = "call_1"
    messages += [
        assistant_message(call, [call_id]),
        {"role": "tool", "tool_call_id": call_id, "content": case.result},
    ]
    answer = Answer(content=case.answer, reasoning="The tool has answered.")
    return Dialogue(messages=messages, answer=answer, effort=effort, tools=tools)


def long_dialogue(writer: Writer, num_tokens: int) -> Dialogue:
    """A document of about ``num_tokens`` tokens and up to six questions about it."""
    text, questions = reading(writer, num_tokens)
    effort = writer.pick(EFFORTS) if writer.chance(THINKING_SHARE) else None
    asked = [writer.pick(questions) for _ in range(writer.random.randint(1, 6))]
    first = (
        f"{text}\n\n{asked[0][0]}"
        if writer.chance(0.8)
        else f"Read this:\n\n{text}\n\n{asked[0][0]}"
    )
    messages: list[dict[str, Any]] = [*system(writer), {"role": "user", "content": first}]
    for (_, _, answer), (following, _, _) in zip(asked, asked[1:], strict=False):
        messages += [
            {"role": "assistant", "content": answer},
            {"role": "user", "content": following},
        ]
    _, reasoning, answer = asked[-1]
    return Dialogue(
        messages=messages, answer=Answer(content=answer, reasoning=reasoning), effort=effort
    )
