"""Four-line rhymes and three-sentence stories, as (question, reasoning, answer)."""

from __future__ import annotations

from training import words
from training.answers import Turn
from training.grammar import Writer
from training.scenes import OPENINGS
from training.stories import cast

# Pairs of rhyming line endings; the first line of a pair may name the subject {x}.
COUPLETS = (
    ("the {x} is {adj} and free,", "[as happy|as merry] as it can be."),
    (
        "i see the {x} every day,",
        "[it always wants to come and play.|it makes me smile along the way.]",
    ),
    (
        "at night the {x} is out of sight,",
        "[the stars above are shining bright.|the moon is giving silver light.]",
    ),
    (
        "the {x} can hear the river flow,",
        "[and watch the little flowers grow.|where soft and gentle breezes blow.]",
    ),
    (
        "oh {x}, oh {x}, where do you go?",
        "[beneath the rain, beneath the snow.|i walk behind you, calm and slow.]",
    ),
    (
        "the {x} looks up into the sky",
        "[and sees the clouds go sailing by.|where all the birds are flying high.]",
    ),
    (
        "the {x} is never far from me,",
        "[we sit below the apple tree.|we share our bread, we share our tea.]",
    ),
    (
        "when morning comes, the {x} is there,",
        "[with golden sunlight in the air.|as quiet as a sleeping bear.]",
    ),
    (
        "the {x} is small, the world is wide,",
        "[but we are walking side by side.|with hills to climb and boats to ride.]",
    ),
    (
        "a song, a laugh, a happy tune,",
        "[the {x} is dancing with the moon.|the summer will be coming soon.]",
    ),
)


def poem(writer: Writer) -> Turn:
    subject = writer.pick(
        (
            *words.ANIMALS,
            "star",
            "rain",
            "moon",
            "sea",
            "wind",
            "flower",
            "tree",
            "river",
            "snow",
            "sun",
        )
    )
    lines = [line for couplet in writer.random.sample(COUPLETS, 2) for line in couplet]
    slots = {"x": subject, "adj": writer.pick(("happy", "wild", "kind", "bold", "light", "young"))}
    text = "\n".join(writer.write(line, slots) for line in lines)
    shown = f"the {subject}" if subject in ("moon", "sea", "wind", "sun") else subject
    shown = shown if subject in ("rain", "snow") or shown.startswith("the") else f"a {shown}"
    question = writer.write(f"[write|make up|give me] a [short |little |]poem about {shown}[.|]")
    return question, f"Four lines that rhyme about {subject}.", text


MIDDLES = (
    "one day {they} found a {adj} {thing} {inother}.",
    "one day {they} met {F}, a {friend}.",
    "every morning {they} [took {their} {thing} and went for a walk|looked for some {food}].",
    "{they} wanted a {adj} {thing} more than anything.",
)
LASTS = (
    "{their} {elder} was very happy to hear of it.", "{they} and {F} the {friend} became good friends.",
    "in the end {they} went home and slept well.", "since then {they} has never been [sad|alone] again.",
    "{F} the {friend} helped {them}, and they laughed all day.",
)  # fmt: skip


def short_story(writer: Writer) -> Turn:
    """A story of three sentences or so."""
    slots = cast(writer)
    text = writer.write(
        " ".join((writer.pick(OPENINGS), writer.pick(MIDDLES), writer.pick(LASTS))), slots
    )
    question = writer.write(
        "[write a very short story|tell me a story in three sentences|write a three sentence story|tell a tiny story] "
        "about a {kind}[.|]",
        slots,
    )
    return question, writer.write("i keep it very short. {N} is the {kind}.", slots), text
