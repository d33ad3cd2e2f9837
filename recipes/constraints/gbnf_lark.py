"""Translates GBNF to the Lark dialect of llguidance, preserving the language.

A GBNF grammar is defined over characters.  llguidance has a greedy lexer, so a terminal must never
consume a character that the grammar needs for what follows.  One terminal per character is always
correct but slow; therefore whole regular expressions become terminals where ``gbnf_lexemes`` shows
that greedy lexing is exact, and are split where it might not be.
"""

from __future__ import annotations

from deepinfer.errors import RowError

from .charset import to_regex
from .gbnf import (
    Chars,
    Choice,
    Grammar,
    Node,
    Reference,
    Repeat,
    Sequence,
    Terminal,
    children,
    parse_gbnf,
)
from .gbnf_checks import check_grammar, is_nullable, recursive_rules
from .gbnf_lexemes import greedy_conflicts

# Larger rules are not inlined.
_MAX_INLINED_NODES = 2_000
# With more terminals the analysis costs more than it saves.
_MAX_TERMINALS = 200


def gbnf_to_lark(text: str) -> str:
    """A Lark grammar (start rule ``start``) that accepts what the GBNF grammar ``text`` accepts.

    Raises: RowError ``invalid_grammar`` with line, column and reason, or
    ``constraint_too_complex``.
    """
    try:
        grammar = parse_gbnf(text)
        check_grammar(grammar)
        return _write_lark(_Reducer(grammar).rules())
    except RecursionError as error:
        raise RowError("constraint_too_complex", "grammar: rules nested too deeply") from error


class _Reducer:
    """Rules over terminals instead of characters."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.recursive = recursive_rules(grammar)
        self.flat: dict[str, Node | None] = {}
        self.taken_apart: set[Node] = set()
        self.is_by_character = False

    def rules(self) -> dict[str, Node]:
        """Split terminals until greedy lexing cannot change the language."""
        while True:
            rules = self.reachable({n: self.reduce(node) for n, node in self.grammar.rules.items()})
            terminals = {t for node in rules.values() for t in _terminals_of(node)}
            self.is_by_character = len(terminals) > _MAX_TERMINALS
            if self.is_by_character:
                return self.reachable({n: self.reduce(r) for n, r in self.grammar.rules.items()})
            conflicts = greedy_conflicts(rules)
            if not conflicts:
                return rules
            self.taken_apart |= conflicts

    def reachable(self, rules: dict[str, Node]) -> dict[str, Node]:
        names = ["root"]
        for name in names:
            names += [found for found in _names(rules[name]) if found not in names]
        return {name: rules[name] for name in names}

    def reduce(self, node: Node) -> Node:
        if isinstance(node, Chars):
            return Terminal(node)
        flat = None if self.is_by_character else self.inline(node)
        if flat and flat not in self.taken_apart and not is_nullable(flat):
            return Terminal(flat)
        if isinstance(node, Reference):
            return node
        if isinstance(node, Repeat):
            if node.minimum == 0 and flat and node.maximum != 1:
                return Repeat(self.reduce(Repeat(node.item, 1, node.maximum)), 0, 1)
            return Repeat(self.reduce(node.item), node.minimum, node.maximum)
        return _rebuilt(node, [self.reduce(item) for item in children(node)])

    def inline(self, node: Node) -> Node | None:
        """``node`` with references inlined; None if it is recursive or becomes too large."""
        if isinstance(node, Chars):
            return node
        if isinstance(node, Reference):
            if node.name in self.recursive:
                return None
            if node.name not in self.flat:
                self.flat[node.name] = self.inline(self.grammar.rules[node.name])
            return self.flat[node.name]
        if isinstance(node, Repeat):
            item = self.inline(node.item)
            return item and Repeat(item, node.minimum, node.maximum)
        items = [self.inline(item) for item in children(node)]
        if None in items:
            return None
        whole = _rebuilt(node, [item for item in items if item])
        return whole if _size(whole) <= _MAX_INLINED_NODES else None


def _rebuilt(node: Node, items: list[Node]) -> Node:
    return Choice(tuple(items)) if isinstance(node, Choice) else Sequence(tuple(items))


def _size(node: Node) -> int:
    return 1 + sum(map(_size, children(node)))


def _terminals_of(node: Node) -> list[Terminal]:
    own = [node] if isinstance(node, Terminal) else []
    return own + [found for item in children(node) for found in _terminals_of(item)]


def _names(node: Node) -> list[str]:
    own = [node.name] if isinstance(node, Reference) else []
    return own + [name for item in children(node) for name in _names(item)]


def _write_lark(rules: dict[str, Node]) -> str:
    name_of = {name: f"r{place}" for place, name in enumerate(rules)} | {"root": "start"}
    terminals = dict.fromkeys(t for node in rules.values() for t in _terminals_of(node))
    terminal_names = {terminal: f"T{place}" for place, terminal in enumerate(terminals)}

    def write(node: Node) -> str:
        if isinstance(node, Terminal):
            return terminal_names[node]
        if isinstance(node, Reference):
            return name_of[node.name]
        if isinstance(node, Repeat):
            return f"({write(node.item)}){_quantifier(node)}"
        if isinstance(node, Choice):
            return "(" + " | ".join(map(write, node.items)) + ")"
        parts = children(node)
        return "(" + " ".join(map(write, parts)) + ")" if parts else '""'

    lines = [f"{name_of[name]}: {write(node)}" for name, node in rules.items()]
    lines += [f"{name}: /{_regex(t.expression)}/" for t, name in terminal_names.items()]
    return "\n".join(lines) + "\n"


def _quantifier(node: Repeat) -> str:
    bounds = (node.minimum, node.maximum)
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get(bounds)
    upper = "" if node.maximum is None else node.maximum
    return short or f"{{{node.minimum},{upper}}}"


def _regex(node: Node) -> str:
    if isinstance(node, Chars):
        return to_regex(node.ranges)
    if isinstance(node, Repeat):
        return f"(?:{_regex(node.item)}){_quantifier(node)}"
    separator = "|" if isinstance(node, Choice) else ""
    return "(?:" + separator.join(map(_regex, children(node))) + ")"
