"""Parser for GBNF grammars.

The dialect: ``name ::= alternatives``, quoted literals, character classes, ``.``, groups,
``* + ? {m,n}`` and ``#`` comments; the start rule is ``root``.  Every fault is a RowError with line
and column.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from deepinfer.errors import RowError

from .charset import EVERYTHING, CharSet, complement, union

MAX_RULES = 500
MAX_REPEAT = 10_000
MAX_DEPTH = 60


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    ranges: CharSet


@dataclass(frozen=True, slots=True)
class Sequence:
    """A concatenation; the empty sequence matches the empty text."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several alternatives."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """``minimum`` to ``maximum`` repetitions; None: unbounded."""

    item: Node
    minimum: int
    maximum: int | None


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to another rule."""

    name: str


@dataclass(frozen=True, slots=True)
class Terminal:
    """A regular expression that is matched as one lexeme and never matches the empty text.

    Not produced by the parser, only when a grammar is rewritten.
    """

    expression: Node

    @property
    def is_single(self) -> bool:
        """Whether it always matches exactly one character."""
        return isinstance(self.expression, Chars)


Node = Chars | Sequence | Choice | Repeat | Reference | Terminal


def children(node: Node) -> tuple[Node, ...]:
    """The children of a node; () for a leaf."""
    if isinstance(node, Sequence | Choice):
        return node.items
    return (node.item,) if isinstance(node, Repeat) else ()


@dataclass(frozen=True, slots=True)
class Grammar:
    """Rules by name, and the position of each rule's first occurrence in the text."""

    rules: dict[str, Node]
    text: str
    offset_of: dict[str, int]

    def fail(self, rule: str, reason: str) -> NoReturn:
        """Raise a RowError at the position of a rule."""
        _fail(self.text, self.offset_of[rule], reason)


def parse_gbnf(text: str) -> Grammar:
    """Parse a grammar and check that every name is defined.

    Raises: RowError ``invalid_grammar`` with line, column and reason.
    """
    return _Parser(text).grammar()


def _fail(text: str, offset: int, reason: str) -> NoReturn:
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    raise RowError("invalid_grammar", f"grammar line {line}, column {column}: {reason}")


_NAME = re.compile(r"[A-Za-z0-9_-]+")
_BLANK = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_BLANK_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_RULE_HEAD = re.compile(r"[A-Za-z0-9_-]+[ \t]*::=")
_BRACES = re.compile(r"\{[ \t]*(\d+)[ \t]*(?:(,)[ \t]*(\d*)[ \t]*)?\}")
_HEX_ESCAPE = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})")
_SHORT_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"} | {c: c for c in "\\\"'[]-^/."}


class _Parser:
    """Recursive-descent parser; ``at`` is the offset of the next character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.references: dict[str, int] = {}

    def grammar(self) -> Grammar:
        rules: dict[str, Node] = {}
        offset_of: dict[str, int] = {}
        self.skip(_BLANK_LINES)
        while self.at < len(self.text):
            start, name = self.at, self.name()
            if name in rules:
                _fail(self.text, start, f"rule {name!r} is defined twice")
            self.skip(_BLANK)
            if not self.text.startswith("::=", self.at):
                self.fail(f"expected ::= after the name {name!r}")
            self.at += 3
            offset_of[name] = start
            rules[name] = self.choice(depth=0)
            self.skip(_BLANK_LINES)
            if self.at < len(self.text) and not _RULE_HEAD.match(self.text, self.at):
                self.fail(f"unexpected {self.text[self.at]!r}")
            if len(rules) > MAX_RULES:
                self.fail(f"more than {MAX_RULES} rules")
        for name, offset in self.references.items():
            if name not in rules:
                _fail(self.text, offset, f"rule {name!r} is not defined")
        if "root" not in rules:
            _fail(self.text, 0, "there is no rule 'root' to start from")
        return Grammar(rules, self.text, offset_of)

    def fail(self, reason: str) -> NoReturn:
        _fail(self.text, min(self.at, len(self.text)), reason)

    def skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def name(self) -> str:
        found = _NAME.match(self.text, self.at)
        if not found:
            self.fail(f"expected the name of a rule, found {self.text[self.at : self.at + 1]!r}")
        self.at = found.end()
        return found.group()

    def choice(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            self.fail(f"groups nested more than {MAX_DEPTH} deep")
        items = [self.sequence(depth)]
        while self.text.startswith("|", self.at):
            self.at += 1
            items.append(self.sequence(depth))
        return items[0] if len(items) == 1 else Choice(tuple(items))

    def sequence(self, depth: int) -> Node:
        """Items up to ``|``, ``)`` or the next rule; a line may end anywhere between them."""
        items: list[Node] = []
        while True:
            self.skip(_BLANK_LINES)
            if self.at >= len(self.text) or self.text[self.at] in "|)":
                break
            if _RULE_HEAD.match(self.text, self.at):
                break
            items.append(self.repeated(self.atom(depth)))
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def atom(self, depth: int) -> Node:
        character = self.text[self.at]
        if character == '"':
            return self.literal()
        if character == "[":
            return self.char_class()
        if character == ".":
            self.at += 1
            return Chars(EVERYTHING)
        if character == "(":
            opened = self.at
            self.at += 1
            node = self.choice(depth + 1)
            if not self.text.startswith(")", self.at):
                _fail(self.text, opened, "this ( is never closed")
            self.at += 1
            return node
        if character == "<":
            self.fail("token references <...> are not supported; write the text")
        start, name = self.at, self.name()
        self.references.setdefault(name, start)
        return Reference(name)

    def repeated(self, item: Node) -> Node:
        first = self.at
        while self.at < len(self.text) and self.text[self.at] in "*+?{":
            operator = self.text[self.at]
            if self.at - first > MAX_DEPTH:
                self.fail("too many repetitions of one item")
            if operator == "{":
                item = self.braces(item)
                continue
            self.at += 1
            item = Repeat(item, int(operator == "+"), 1 if operator == "?" else None)
        return item

    def braces(self, item: Node) -> Node:
        found = _BRACES.match(self.text, self.at)
        if not found:
            self.fail("expected {m}, {m,} or {m,n}")
        low, comma, high = found.groups()
        if max(len(low), len(high or "")) > 9 or max(int(low), int(high or 0)) > MAX_REPEAT:
            self.fail(f"more than {MAX_REPEAT} repetitions")
        minimum = int(low)
        maximum = minimum if not comma else int(high) if high else None
        if maximum is not None and maximum < minimum:
            self.fail(f"repetition {{{minimum},{maximum}}} has its bounds in the wrong order")
        self.at = found.end()
        return Repeat(item, minimum, maximum)

    def literal(self) -> Node:
        opened = self.at
        self.at += 1
        items: list[Node] = []
        while not self.text.startswith('"', self.at):
            if self.at >= len(self.text) or self.text[self.at] in "\r\n":
                _fail(self.text, opened, 'this " is never closed')
            code_point = self.character()
            items.append(Chars(((code_point, code_point),)))
        self.at += 1
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def char_class(self) -> Node:
        opened = self.at
        self.at += 1
        is_negated = self.text.startswith("^", self.at)
        self.at += is_negated
        ranges: list[tuple[int, int]] = []
        while not self.text.startswith("]", self.at):
            if self.at >= len(self.text):
                _fail(self.text, opened, "this [ is never closed")
            low = high = self.character()
            if self.text.startswith("-", self.at) and not self.text.startswith("-]", self.at):
                self.at += 1
                if self.at >= len(self.text):
                    _fail(self.text, opened, "this [ is never closed")
                high = self.character()
            if high < low:
                self.fail(f"range {chr(low)!r}-{chr(high)!r} runs backwards")
            ranges.append((low, high))
        self.at += 1
        # The double complement removes surrogates, which are not characters.
        allowed = complement(union(ranges))
        allowed = allowed if is_negated else complement(allowed)
        if not allowed:
            _fail(self.text, opened, "this class matches no character")
        return Chars(allowed)

    def character(self) -> int:
        """The code point of one character or escape."""
        character = self.text[self.at]
        self.at += 1
        if character != "\\":
            return ord(character)
        found = _HEX_ESCAPE.match(self.text, self.at)
        if found:
            code_point = int(next(digits for digits in found.groups() if digits), 16)
            if code_point > 0x10FFFF or 0xD800 <= code_point < 0xE000:
                self.fail(f"U+{code_point:X} is not a character")
            self.at = found.end()
            return code_point
        escaped = _SHORT_ESCAPES.get(self.text[self.at : self.at + 1])
        if escaped is None:
            self.fail(f"unknown escape \\{self.text[self.at : self.at + 1]}")
        self.at += 1
        return ord(escaped)
