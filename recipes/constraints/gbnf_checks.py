"""Refuses GBNF grammars with left recursion or with rules that never terminate."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .gbnf import Chars, Choice, Grammar, Node, Reference, Repeat, Terminal, children


def nullable_rules(rules: Mapping[str, Node]) -> frozenset[str]:
    """The names of the rules that match the empty text."""
    return _fixpoint(rules, is_nullable)


def is_nullable(node: Node, nullable: frozenset[str] = frozenset()) -> bool:
    """Whether ``node`` matches the empty text, given the ``nullable`` rules."""
    return _holds(node, nullable, characters=False)


def check_grammar(grammar: Grammar) -> None:
    """Raises: RowError ``invalid_grammar`` at a rule that is left-recursive or never terminates."""
    ending = _fixpoint(grammar.rules, _can_end)
    for name in grammar.rules:
        if name not in ending:
            grammar.fail(name, f"rule {name!r} never ends: every alternative contains itself again")
    nullable = nullable_rules(grammar.rules)
    starts = {name: _leftmost(node, nullable) for name, node in grammar.rules.items()}
    for name in grammar.rules:
        path = _path_back(name, starts)
        if path:
            circle = " -> ".join([name, *path])
            grammar.fail(name, f"left recursion: {circle}; put the repeated part at the end")


def recursive_rules(grammar: Grammar) -> frozenset[str]:
    """The names of the rules that are directly or indirectly recursive."""
    uses = {name: _references(node) for name, node in grammar.rules.items()}
    return frozenset(name for name in grammar.rules if _path_back(name, uses))


def _fixpoint(
    rules: Mapping[str, Node], holds: Callable[[Node, frozenset[str]], bool]
) -> frozenset[str]:
    known: frozenset[str] = frozenset()
    while True:
        found = frozenset(name for name, node in rules.items() if holds(node, known))
        if found == known:
            return known
        known = found


def _can_end(node: Node, ending: frozenset[str]) -> bool:
    """Whether ``node`` matches some finite text, given the rules that do (``ending``)."""
    return _holds(node, ending, characters=True)


def _holds(node: Node, rules: frozenset[str], *, characters: bool) -> bool:
    """Whether a property holds for ``node``, if it holds for the empty text and for ``rules``, and
    for single characters as ``characters`` says."""
    if isinstance(node, Chars | Terminal):
        return characters
    if isinstance(node, Reference):
        return node.name in rules
    if isinstance(node, Repeat):
        return node.minimum == 0 or _holds(node.item, rules, characters=characters)
    combine = any if isinstance(node, Choice) else all
    return combine(_holds(item, rules, characters=characters) for item in children(node))


def _leftmost(node: Node, nullable: frozenset[str]) -> frozenset[str]:
    """Rules that can occur at the very start of ``node``."""
    if isinstance(node, Reference):
        return frozenset({node.name})
    found: frozenset[str] = frozenset()
    for item in children(node):
        found |= _leftmost(item, nullable)
        if not isinstance(node, Choice) and not is_nullable(item, nullable):
            break
    return found


def _references(node: Node) -> frozenset[str]:
    own = frozenset({node.name}) if isinstance(node, Reference) else frozenset[str]()
    return own.union(*(_references(item) for item in children(node)))


def _path_back(name: str, edges: dict[str, frozenset[str]]) -> list[str]:
    """The rules on a cycle from ``name`` to itself; [] if there is none."""
    came_from: dict[str, str] = {}
    queue = [name]
    for rule in queue:
        for following in sorted(edges[rule]):
            if following not in came_from:
                came_from[following] = rule
                queue.append(following)
    if name not in came_from:
        return []
    path = [name]
    while came_from[path[0]] != name:
        path.insert(0, came_from[path[0]])
    return path
