"""Random dialogues over all kinds of questions, with and without thinking, system prompts and tools."""

from __future__ import annotations

from typing import Any

from training.answers import fact
from training.dialogue import Answer, Call, Dialogue, assistant_message
from training.documents import reading
from training.grammar import Writer
from training.poems import poem, short_story
from training.stories import story
from training.sums import arithmetic
from training.tasks import Task, task
from training.tools import SCHEMAS, tool_case

SYSTEM_PROMPTS = (
    "You are a helpful assistant.", "You are a friendly assistant.", "Answer the question.", "Be brief.",
    "You tell stories for children.", "You are a teacher.", "Answer in simple words.", "Be kind and helpful.",
)  # fmt: skip
EFFORTS = ("low", "default", "default", "default", "max")
THINKING_SHARE = 0.25
SYSTEM_SHARE = 0.15


def asked_story(writer: Writer) -> Task:
    """A request for a story, open or with given parts."""
    made = story(writer)
    slots = made.slots
    request = writer.pick((
        made.request, made.request, "a {kind}", "a {trait} {kind}", "a {kind} named {N}", "a {kind} and a {friend}",
        "a {kind} and a {thing}", "a {kind} {inplace}", "{N} the {kind}", "a {friend} and a {kind} named {N}",
        "a {trait} {kind} and a {adj} {thing}", "a {thing}",
    ))  # fmt: skip
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
    if writer.chance(0.08):
        question = writer.write(
            "write a story with the words {thing}, {place} and {friend}.", slots
        )
    text = f"{made.title}\n\n{made.text}" if writer.chance(0.1) else made.text
    reasoning = writer.write(
        "[the user wants a story|i should write a story] about {N} the {kind}. [{F} the {friend} can help.|there should "
        "be a {thing} and a {friend} named {F}.|the other one is {F} the {friend}.] [it should end well.|i keep it short.|]",
        slots,
    )
    return question, reasoning, text, None


def single(writer: Writer) -> Task:
    """One question of any kind."""
    kind = writer.random.random()
    if kind < 0.30:
        return asked_story(writer)
    if kind < 0.55:
        return (*fact(writer), None)
    if kind < 0.74:
        return (*arithmetic(writer), None)
    if kind < 0.80:
        return (*(poem if writer.chance(0.4) else short_story)(writer), None)
    return task(writer)


def conversation(writer: Writer) -> Dialogue:
    """One to four turns; earlier reasoning is left out, as the recipe does."""
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


def system(writer: Writer) -> list[dict[str, Any]]:
    if not writer.chance(SYSTEM_SHARE):
        return []
    return [{"role": "system", "content": writer.pick(SYSTEM_PROMPTS)}]


def tool_dialogue(writer: Writer) -> Dialogue:
    """A call, or the answer after its result, or an answer that needs no call."""
    case = tool_case(writer)
    effort = writer.pick(EFFORTS) if writer.chance(THINKING_SHARE) else None
    tools = tuple(SCHEMAS[name] for name in case.tools)
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
