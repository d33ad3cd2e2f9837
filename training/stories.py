"""Generates simple stories: a cast and a plot of several beats, each beat with many wordings."""

from __future__ import annotations

from dataclasses import dataclass

from training import words
from training.grammar import Writer
from training.plots import PLOTS
from training.scenes import ENDINGS, MORALS, OPENINGS, SCENES

PRONOUNS = {"girl": ("she", "her", "her"), "boy": ("he", "him", "his"), "it": ("it", "it", "its")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """``request``: what a reader could have asked for; ``summary``: one sentence."""

    title: str
    request: str
    text: str
    summary: str
    slots: dict[str, str]


def story(writer: Writer, num_scenes: int | None = None) -> Story:
    """One story of about 100 to 250 words; ``num_scenes`` extra scenes make it longer."""
    plot = writer.pick(PLOTS)
    slots = cast(writer, hero_is_thing=plot.hero_is_thing)
    for special in ("craft", "fragile"):
        if any(f"{{{special}}}" in beat for beat in plot.beats):
            slots["thing"] = slots[special]
    scenes = [writer.pick(SCENES) for _ in range(num_scenes or int(writer.chance(0.35)))]
    opening, *beats, last = plot.beats
    paragraphs = [writer.pick(OPENINGS) + " " + opening]
    paragraphs += [*scenes, *beats]
    closing = writer.pick(MORALS).replace("{lesson}", plot.lesson)
    closing = closing if writer.chance(0.3) else writer.pick(ENDINGS)
    paragraphs.append(last + " " + closing)
    break_between = "\n\n" if writer.chance(0.7) else " "
    text = break_between.join(writer.write(paragraph, slots) for paragraph in paragraphs)
    return Story(
        title=title_case(writer.write(plot.title, slots)),
        request=writer.write(plot.request, slots),
        text=text,
        summary=writer.write(plot.summary, slots),
        slots=slots,
    )


def cast(writer: Writer, hero_is_thing: bool = False) -> dict[str, str]:
    """Names, things and places of one story, as slots for the patterns."""
    hero_sex = writer.pick(("girl", "boy"))
    animal_hero = writer.chance(0.5)
    names = writer.random.sample(words.GIRLS if hero_sex == "girl" else words.BOYS, 2)
    if animal_hero:
        kind = writer.pick(words.ANIMALS)
        name = writer.pick(words.PET_NAMES) if writer.chance(0.6) else names[0]
    else:
        fitting = ("king prince sailor wizard shepherd postman fisherman" if hero_sex == "girl"
                   else "queen princess dancer").split()  # fmt: skip
        other = {"girl": "boy", "boy": "girl"}[hero_sex]
        kind = writer.pick([person for person in words.PEOPLE if person not in (*fitting, other)])
        kind = hero_sex if writer.chance(0.35) else kind
        name = names[0]
    they, them, their = PRONOUNS[hero_sex]
    if hero_is_thing:
        kind, name = writer.pick(words.LIVELY_THINGS), writer.pick(words.PET_NAMES)
        they, them, their = PRONOUNS["it"]
    place, other_place = writer.random.sample(sorted(words.PLACES), 2)
    thing, other_thing, third_thing = writer.random.sample(
        [t for t in words.THINGS if t != kind], 3
    )
    friend_kind = writer.pick([animal for animal in words.ANIMALS if animal != kind])
    friend_sex = writer.pick(("girl", "boy"))
    friend = writer.pick([n for n in words.PET_NAMES + words.GIRLS + words.BOYS if n != name])
    if friend in words.GIRLS or friend in words.BOYS:
        friend_sex = "girl" if friend in words.GIRLS else "boy"
    friend_they, friend_them, friend_their = PRONOUNS[friend_sex]
    return {
        "N": name, "kind": kind, "they": they, "them": them, "their": their,
        "F": friend, "friend": friend_kind, "fthey": friend_they, "fthem": friend_them,
        "ftheir": friend_their, "trait": writer.pick(words.TRAITS),
        "inplace": f"{words.PLACES[place]} the {place}", "place": place,
        "inother": f"{words.PLACES[other_place]} the {other_place}", "other": other_place,
        "thing": thing, "thing2": other_thing, "thing3": third_thing,
        "adj": writer.pick(words.ADJECTIVES), "adj2": writer.pick(words.ADJECTIVES),
        "food": writer.pick(words.FOODS), "feeling": writer.pick(words.FEELINGS),
        "craft": writer.pick(words.CRAFTS), "fragile": writer.pick(words.FRAGILE),
        "weather": writer.pick(("rain", "snow", "wind", "sun", "sea", "night")),
        "elder": writer.pick(("mother", "father", "grandmother", "grandfather", "aunt", "uncle")),
        "number": writer.pick(words.NUMBER_WORDS[2:11]),
    }  # fmt: skip


def title_case(title: str) -> str:
    """Capitalize all but small words."""
    small = {"a", "an", "the", "and", "of", "in", "on", "by", "at", "near", "who", "to"}
    parts = title.split()
    return " ".join(
        part if i and part in small else part[0].upper() + part[1:] for i, part in enumerate(parts)
    )
