"""Generates arithmetic: sums, word problems, counting, comparing, sorting, as (question, reasoning, answer)."""

from __future__ import annotations

from training import words
from training.answers import Turn, join
from training.grammar import Writer


def plain_sum(writer: Writer) -> Turn:
    """One operation; operands are mostly small."""
    top = writer.pick((10, 10, 20, 20, 100))
    a, b = writer.random.randint(0, top), writer.random.randint(0, top)
    sign = writer.pick("++--*")
    if sign == "*":
        a, b = writer.random.randint(0, 10), writer.random.randint(0, 10)
    if sign == "-" and a < b:
        a, b = b, a
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    spoken = {"+": "plus", "-": "minus", "*": "times"}[sign]
    shown = {"+": "+", "-": "-", "*": writer.pick("*x")}[sign]
    question = writer.write(
        f"[what is {a} {shown} {b}?|{a} {shown} {b} =|how much is {a} {spoken} {b}?|calculate {a} {shown} {b}.|"
        f"what is {a} {spoken} {b}?|compute {a} {shown} {b}.]"
    )
    answer = writer.write(
        f"[{a} {shown} {b} = {value}.|{value}|{a} {spoken} {b} is {value}.|the answer is {value}.]"
    )
    return question, steps(a, b, sign, value), answer


def steps(a: int, b: int, sign: str, value: int) -> str:
    """The working, by tens and ones."""
    if sign == "*":
        return f"{a} times {b} is {value}."
    tens = b // 10 * 10
    if not tens or tens == b:
        return f"{a} {sign} {b} = {value}."
    middle = a + tens if sign == "+" else a - tens
    return f"{a} {sign} {tens} = {middle}. {middle} {sign} {b - tens} = {value}."


def word_problem(writer: Writer) -> Turn:
    name = writer.pick(words.GIRLS + words.BOYS)
    other = writer.pick([n for n in words.GIRLS + words.BOYS if n != name])
    they = "she" if name in words.GIRLS else "he"
    many = writer.pick(words.COUNTED)
    a, b = writer.random.randint(2, 20), writer.random.randint(1, 12)
    if writer.chance(0.5):
        if writer.chance(0.4):
            text = (
                f"{name} has {a} {many} and [buys|finds|gets] {b} more. how many {many} does "
                f"[{they}|{name}] have[ now|]?"
            )
            return writer.write(text), f"{a} + {b} = {a + b}.", f"{name} has {a + b} {many}."
        text = (
            f"{name} has {a} {many}. [{other} gives {'her' if they == 'she' else 'him'} {b} more.|{they} finds {b} "
            f"more {many}.|{they} buys {b} more.] how many {many} does {name} have now?"
        )
        return writer.write(text), f"{a} + {b} = {a + b}.", f"{name} has {a + b} {many} now."
    a += b
    text = (
        f"{name} has {a} {many}. {they} [gives {b} to {other}|loses {b} of them|sells {b}]. how many {many} "
        f"[are left|does {name} have left]?"
    )
    return writer.write(text), f"{a} - {b} = {a - b}.", f"{name} has {a - b} {many} left."


def comparing(writer: Writer) -> Turn:
    a, b = writer.random.sample(range(101), 2)
    if writer.chance(0.5):
        return (
            writer.write(f"[which is bigger, {a} or {b}?|which number is larger: {a} or {b}?]"),
            f"{max(a, b)} is more than {min(a, b)}.",
            writer.write(f"[{max(a, b)} is bigger than {min(a, b)}.|{max(a, b)}.]"),
        )
    return (
        writer.write(f"[which is smaller, {a} or {b}?|which number is less: {a} or {b}?]"),
        f"{min(a, b)} is less than {max(a, b)}.",
        writer.write(f"[{min(a, b)} is smaller than {max(a, b)}.|{min(a, b)}.]"),
    )


def counting(writer: Writer) -> Turn:
    start = writer.random.randint(1, 20)
    end = start + writer.random.randint(3, 12)
    kind = writer.random.random()
    if kind < 0.4:
        return (
            writer.write(
                f"[count from {start} to {end}.|write the numbers from {start} to {end}.]"
            ),
            f"Start at {start} and stop at {end}.",
            ", ".join(map(str, range(start, end + 1))) + ("." if writer.chance(0.5) else ""),
        )
    if kind < 0.6:
        return (
            writer.write(
                f"[count down from {end} to {start}.|count backwards from {end} to {start}.]"
            ),
            f"Start at {end} and stop at {start}.",
            ", ".join(map(str, range(end, start - 1, -1))),
        )
    if kind < 0.8:
        step = writer.pick((2, 3, 5, 10))
        shown = [start + i * step for i in range(4)]
        following = start + 4 * step
        return (
            writer.write(f"what number comes next: {', '.join(map(str, shown))}?"),
            f"Each number is {step} more. {shown[-1]} + {step} = {following}.",
            writer.write(f"[the next number is {following}.|{following}.]"),
        )
    things = [writer.pick(words.THINGS) for _ in range(writer.random.randint(2, 7))]
    count = len(things)
    return (
        f"How many things are in this list: {', '.join(things)}?",
        ". ".join(f"{i} {thing}" for i, thing in enumerate(things, 1)) + ".",
        f"There are {count} things in the list.",
    )


def sorting(writer: Writer) -> Turn:
    if writer.chance(0.5):
        numbers = writer.random.sample(range(1, 100), writer.random.randint(3, 6))
        shown = ", ".join(map(str, numbers))
        ordered = ", ".join(map(str, sorted(numbers)))
        question = f"[sort these numbers: {shown}.|put these numbers in order: {shown}.|sort {shown} from small to large.]"
    else:
        names = writer.random.sample(words.GIRLS + words.BOYS, writer.random.randint(3, 5))
        shown, ordered = ", ".join(names), ", ".join(sorted(names))
        question = f"[sort these names: {shown}.|put these names in alphabetical order: {shown}.]"
    return writer.write(question), f"First {ordered.replace(', ', ', then ')}.", ordered


def extremes(writer: Writer) -> Turn:
    numbers = writer.random.sample(range(1, 100), writer.random.randint(3, 6))
    biggest = writer.chance(0.5)
    value = max(numbers) if biggest else min(numbers)
    word = "largest" if biggest else "smallest"
    shown = join(list(map(str, numbers)))
    return (
        f"What is the {word} number among {shown}?",
        f"The {word} one is {value}.",
        f"The {word} number is {value}.",
    )


def arithmetic(writer: Writer) -> Turn:
    """One question with its working and its answer."""
    kinds = (plain_sum, word_problem, comparing, counting, sorting, extremes)
    make = writer.random.choices(kinds, (0.30, 0.16, 0.07, 0.22, 0.18, 0.07))[0]
    return make(writer)
