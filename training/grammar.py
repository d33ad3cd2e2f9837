"""A small text grammar: ``[a|b|c]`` picks one, ``{slot}`` fills in, ``a?`` inside brackets is optional.

Everything the corpus builder writes goes through ``Writer``; with the same seed it writes the same text.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TypeVar

T = TypeVar("T")
Node = str | tuple["Sequence_", ...]
Sequence_ = tuple[Node, ...]

_ARTICLE = re.compile(r"\b([Aa]) (?=(\w+))")
_SILENT_H = ("hour", "honest", "honor", "heir")
_SPOKEN_CONSONANT = re.compile(r"one|once|uni(?!n|m)|us[eu]|eu|uk", re.IGNORECASE)
_SENTENCE_START = re.compile(
    r'(^|[.!?] |[.]" |\n|^"|\n"|[.!?]"? "|(?:said|asked|shouted|cried|called|branch|roof|rock), ")([a-z])'
)
_LONE_I = re.compile(r"\bi\b")


@cache
def _parse(pattern: str) -> Sequence_:
    """Parse a pattern into nested tuples (cached)."""
    position = 0

    def sequence(stop: str) -> Sequence_:
        nonlocal position
        nodes: list[Node] = []
        text = ""
        while position < len(pattern) and pattern[position] not in stop:
            if pattern[position] == "[":
                position += 1
                choices = [sequence("|]")]
                while pattern[position] == "|":
                    position += 1
                    choices.append(sequence("|]"))
                position += 1
                nodes += [text, tuple(choices)] if text else [tuple(choices)]
                text = ""
            else:
                text += pattern[position]
                position += 1
        return (*nodes, text) if text else tuple(nodes)

    parsed = sequence("")
    if position != len(pattern):
        raise ValueError(f"unbalanced brackets in pattern: {pattern!r}")
    return parsed


class Writer:
    """Expands patterns with its own random number generator."""

    def __init__(self, seed: int | str) -> None:
        self.random = random.Random(seed)

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.random.random() * len(options))]

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def write(self, pattern: str, slots: Mapping[str, object] | None = None) -> str:
        """A random expansion, with correct ``a``/``an`` and capitalized sentences."""
        text = self._expand(_parse(pattern))
        if slots:
            text = text.format_map(slots)
        return tidy(text)

    def _expand(self, nodes: Sequence_) -> str:
        return "".join(
            node if isinstance(node, str) else self._expand(self.pick(node)) for node in nodes
        )


def tidy(text: str) -> str:
    """Correct articles, capitalization and spacing."""
    text = agree(text)
    text = _LONE_I.sub("I", text)
    text = _SENTENCE_START.sub(lambda match: match[1] + match[2].upper(), text)
    return re.sub(r" {2,}", " ", text).strip()


def agree(text: str) -> str:
    """Replace "a" by "an" before a vowel sound."""
    return _ARTICLE.sub(
        lambda match: f"{match[1]}n " if _begins_with_vowel_sound(match[2]) else match[0], text
    )


def _begins_with_vowel_sound(word: str) -> bool:
    if word.lower().startswith(_SILENT_H):
        return True
    return word[0] in "aeiouAEIOU" and not _SPOKEN_CONSONANT.match(word)


def mentions(text: str, word: str) -> bool:
    """Whether the text contains the whole word (or phrase)."""
    return re.search(rf"\b{re.escape(word)}\b", text) is not None
