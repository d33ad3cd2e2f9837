"""Generates questions with answers, as (question, reasoning, answer); facts come from ``words``."""

from __future__ import annotations

from collections.abc import Callable

from training import words
from training.grammar import Writer

Turn = tuple[str, str, str]

IDENTITY = (
    ("[who are you|what are you|tell me about yourself]?",
     "[i am|i'm] a small language model [that ships with deepinfer|that comes with deepinfer]. i can tell simple "
     "stories and answer easy questions."),
    ("[what can you do|how can you help me|what are you good at]?",
     "i can [write short stories|tell stories], answer simple questions, do small sums, [make|write] JSON and call "
     "tools."),
    ("[hello|hi|hey|good morning|good evening|hi there|hello there][!|.|]",
     "[hello|hi|hi there]! [how can i help you today|what can i do for you|how can i help]?"),
    ("[how are you|how are you today|how do you do]?",
     "i am [doing well|fine], thank you! [how can i help you|what would you like to know]?"),
    ("[thank you|thanks|thanks a lot|thank you very much][!|.]",
     "you are welcome! [let me know if you need anything else.|is there anything else i can do?]"),
    ("[bye|goodbye|see you later|good night][!|.]", "goodbye! [have a nice day|take care|see you soon][!|.]"),
    ("[tell me a joke|do you know a joke|make me laugh][.|!|]",
     "[why did the chicken cross the road? to get to the other side!|what do you call a bear with no teeth? a gummy "
     "bear!|why is six afraid of seven? because seven eight nine!|what has four wheels and flies? a garbage truck!|"
     "what do clouds wear? thunderwear!|why did the cookie go to the doctor? it felt crumby!]"),
    ("[what is the meaning of life|what will happen tomorrow|who will win the game|what am i thinking]?",
     "i do not know that. [i am only a small model.|nobody can be sure.] [but you can ask me something else.|]"),
)  # fmt: skip


def identity(writer: Writer) -> Turn:
    question, answer = writer.pick(IDENTITY)
    return writer.write(question), "I should answer in a friendly way.", writer.write(answer)


def opposite(writer: Writer) -> Turn:
    word, other = writer.pick(sorted(words.OPPOSITES.items()))
    question = writer.write(
        f'[what is the opposite of|give me the opposite of|name the opposite of] "{word}"[?|.]'
        if writer.chance(0.4)
        else f"what is the opposite of {word}?"
    )
    return (
        question,
        f"{word} is the opposite of {other}.",
        writer.write(f"[the opposite of {word} is {other}.|{other}.|it is {other}.]"),
    )


def capital(writer: Writer) -> Turn:
    country, city = writer.pick(sorted(words.CAPITALS.items()))
    if writer.chance(0.2):
        return (
            f"{city} is the capital of which country?",
            f"{city} is the capital of {country}.",
            f"{city} is the capital of {country}.",
        )
    question = writer.write(
        f"[what is the capital of {country}?|name the capital of {country}.|which city is the capital of "
        f"{country}?|what's the capital city of {country}?|tell me the capital of {country}.]"
    )
    return (
        question,
        f"{country}: {city}.",
        writer.write(f"[the capital of {country} is {city}.|{city}.]"),
    )


def colour(writer: Writer) -> Turn:
    thing, colour_name = writer.pick(sorted(words.COLOURS.items()))
    question = writer.write(
        f"[what color is {thing}?|which color does {thing} have?|tell me the color of {thing}.]"
    )
    answer = writer.write(f"[{thing} is {colour_name}.|it is {colour_name}.|{colour_name}.]")
    return question, f"{thing} is {colour_name}.", answer


def animal(writer: Writer) -> Turn:
    name, (legs, sound, food, home, baby) = writer.pick(sorted(words.ANIMAL_FACTS.items()))
    legs_word = words.NUMBER_WORDS[legs] if legs else "no"
    question, answer = writer.pick((
        (f"how many legs does a {name} have?", f"a {name} has {legs_word} legs."),
        (f"[what sound does a {name} make?|what does a {name} say?]",
         f"a {name} [says|makes this sound:] {sound}." if sound != "no sound" else f"a {name} makes hardly any sound."),
        (f"what does a {name} eat?", f"[a {name} eats {food}.|it eats {food}.]"),
        (f"where does a {name} live?", f"[a {name} lives in {home}.|it lives in {home}.]"),
        (f"[what is a baby {name} called?|what do you call a baby {name}?]", f"a baby {name} is called a {baby}."),
    ))  # fmt: skip
    answer = answer.replace("in the ice", "on the ice").replace("in the plains", "on the plains")
    answer = answer.replace("in the savanna", "on the savanna").replace("in a farm", "on a farm")
    return writer.write(question), f"The question is about a {name}.", writer.write(answer)


def category(writer: Writer) -> Turn:
    name, members = writer.pick(sorted(words.CATEGORIES.items()))
    kind = writer.random.random()
    if kind < 0.5:
        count = writer.random.randint(1, min(5, len(members)))
        chosen = writer.random.sample(members, count)
        plural = plural_of(name) if count > 1 else name
        question = writer.write(
            f"[name|list|give me|tell me|write down] {words.NUMBER_WORDS[count]} {plural}[.|]"
        )
        listed = join(chosen)
        if writer.chance(0.3):
            listed = "\n".join(f"{i}. {item}" for i, item in enumerate(chosen, 1))
            return question, f"I need {count} {plural}.", listed
        opening = (
            "one example is"
            if count == 1
            else "[here are|these are] " + words.NUMBER_WORDS[count] + f" {plural}:"
        )
        return (
            question,
            f"I need {count} {plural}.",
            writer.write(f"[{opening} {listed}.|{listed}.]"),
        )
    item = writer.pick(members)
    if kind < 0.75:
        return (
            writer.write(f"[what is {article(item)}?|what kind of thing is {article(item)}?]"),
            f"{item} belongs to: {name}.",
            writer.write(f"{article(item)} is a {name}."),
        )
    other_name, other_members = writer.pick(sorted(words.CATEGORIES.items()))
    asked = writer.pick((name, other_name))
    truth = item in words.CATEGORIES[asked] or (asked == "animal" and name in ("bird", "insect"))
    answer = (
        f"yes, {article(item)} is a {asked}."
        if truth
        else (f"no, {article(item)} is not a {asked}. it is a {name}.")
    )
    return (
        writer.write(f"is {article(item)} a {asked}?"), f"{item} is a {name}.", writer.write(answer)
    )  # fmt: skip


def job_or_use(writer: Writer) -> Turn:
    if writer.chance(0.5):
        name, does = writer.pick(sorted(words.JOBS.items()))
        return (
            writer.write(f"[what does a {name} do?|what is the job of a {name}?]"),
            f"The job is {name}.",
            writer.write(f"a {name} {does}."),
        )
    name, use = writer.pick(sorted(words.USES.items()))
    asked = name if name in ("scissors", "glasses", "soap") else article(name)
    return (
        writer.write(
            f"[what do we use {asked} for?|what is the use of {asked}?|what can you do with {asked}?]"
        ),
        f"People use it to {use}.",
        writer.write(f"[we use {asked} to {use}.|you can use {asked} to {use}.]"),
    )


def why(writer: Writer) -> Turn:
    question, answer = writer.pick(sorted(words.WHY.items()))
    question = writer.write(
        f"[why {question}?|can you explain why {statement(question)}?|tell me why {statement(question)}.]"
    )
    return question, "I should give the reason.", answer


def statement(question: str) -> str:
    """ "do we sleep" -> "we sleep"; "is the sky blue" -> "the sky is blue"."""
    verb, *rest = question.split()
    if verb == "is":
        subject = rest[:2]
        return " ".join([*subject, "is", *rest[2:]])
    if verb == "does":
        split = 2 if rest[0] == "the" else 1
        return " ".join([*rest[:split], rest[split] + "s", *rest[split + 1 :]])
    return " ".join(rest)


def calendar(writer: Writer) -> Turn:
    names, unit, after_unit = writer.pick(
        ((words.DAYS, "day", "day"), (words.MONTHS, "month", "month"))
    )
    i = writer.random.randrange(len(names))
    here, following, before = names[i], names[(i + 1) % len(names)], names[i - 1]
    options = [
        (
            f"[what|which] {unit} comes after {here}?",
            f"[{following} comes after {here}.|{following}.]",
        ),
        (f"[what|which] {unit} comes before {here}?", f"[{before} comes before {here}.|{before}.]"),
    ]
    if unit == "month":
        days = words.MONTH_DAYS[i]
        options.append((f"how many days does {here} have?", f"{here} has {days} days."))
    else:
        options += [
            (f"today is {here}. what day is tomorrow?", f"tomorrow is {following}."),
            (f"if today is {here}, what day was yesterday?", f"yesterday was {before}."),
            (
                "[how many days are in a week|how many days does a week have]?",
                "a week has seven days.",
            ),
        ]
    question, answer = writer.pick(options)
    return writer.write(question), f"{before}, {here}, {following}.", writer.write(answer)


def language(writer: Writer) -> Turn:
    kind = writer.random.random()
    if kind < 0.3:
        verb, past = writer.pick(sorted(words.PAST.items()))
        return (
            writer.write(f'[what is the past tense of "{verb}"?|give the past tense of {verb}.]'),
            f"{verb}, {past}.",
            writer.write(f'[the past tense of "{verb}" is "{past}".|{past}.]'),
        )
    if kind < 0.6:
        one, many = writer.pick(sorted(words.PLURALS.items()))
        return (
            writer.write(
                f'[what is the plural of "{one}"?|one {one}, two what?|give the plural of {one}.]'
            ),
            f"one {one}, two {many}.",
            writer.write(f'[the plural of "{one}" is "{many}".|{many}.]'),
        )
    word = writer.pick(words.THINGS + words.ANIMALS + words.GIRLS + words.BOYS)
    letters = "-".join(word.upper())
    if kind < 0.8:
        return (
            writer.write(f'[how do you spell|spell|spell the word] "{word}"[?|.]'),
            f"{word}: {letters}",
            f"{letters}.",
        )
    first = word[0].upper()
    return (
        f'What is the first letter of "{word}"?', f"{word} starts with {first}.",
        writer.write(f'[the first letter of "{word}" is {first}.|{first}.]'),
    )  # fmt: skip


def article(noun: str) -> str:
    """The noun with "a", or bare where English uses none."""
    bare = noun[0].isupper() or noun in (
        *words.CATEGORIES["color"], *words.CATEGORIES["sport"], *words.CATEGORIES["drink"]
    )  # fmt: skip
    return noun if bare else f"a {noun}"


def plural_of(noun: str) -> str:
    if noun.startswith("piece of "):
        return noun.replace("piece", "pieces", 1)
    return noun if noun == "fruit" else noun + "s"


def join(items: list[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


FACTS: tuple[tuple[float, Callable[[Writer], Turn]], ...] = (
    (0.08, identity), (0.1, opposite), (0.12, capital), (0.07, colour), (0.13, animal), (0.22, category),
    (0.09, job_or_use), (0.05, why), (0.07, calendar), (0.07, language),
)  # fmt: skip


def fact(writer: Writer) -> Turn:
    """One question with its short reasoning and its answer."""
    _, make = writer.random.choices(FACTS, [weight for weight, _ in FACTS])[0]
    return make(writer)
