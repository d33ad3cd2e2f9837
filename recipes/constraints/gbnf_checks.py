"""What makes a well-formed GBNF grammar unusable: left recursion, rules that never end."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .gbnf import Chars, Choice, Grammar, Node, Reference, Repeat, Terminal, children


def nullable_rules(rules: Mapping[str, Node]) -> frozenset[str]:
    """Names of the rules that match the empty text."""
    return _fixpoint(rules, is_nullable)


def is_nullable(node: Node, nullable: frozenset[str] = frozenset()) -> bool:
    """Whether ``node`` matches the empty text, given the names of the rules that do."""
    return _holds(node, nullable, characters=False)


def check_grammar(grammar: Grammar) -> None:
    """Raises: RowError ``invalid_grammar`` at the rule that recurses on the left or never ends."""
    ending = _fixpoint(grammar.rules, _can_end)
    for name in grammar.rules:
        if name not in ending:
            grammar.fail(name, f"rule {name!r} never ends: every alternative needs itself again")
    nullable = nullable_rules(grammar.rules)
    starts = {name: _leftmost(node, nullable) for name, node in grammar.rules.items()}
    for name in grammar.rules:
        path = _path_back(name, starts)
        if path:
            circle = " -> ".join([name, *path])
            grammar.fail(name, f"left recursion: {circle}; put the repeated part at the end")


def recursive_rules(grammar: Grammar) -> frozenset[str]:
    """Names of the rules that can reach themselves."""
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
    """Whether ``node`` matches some finite text, given the names of the rules that do."""
    return _holds(node, ending, characters=True)


def _holds(node: Node, rules: frozenset[str], *, characters: bool) -> bool:
    """Something that holds of the empty text, of the named rules, and of ``characters`` or not."""
    if isinstance(node, Chars | Terminal):
        return characters
    if isinstance(node, Reference):
        return node.name in rules
    if isinstance(node, Repeat):
        return node.minimum == 0 or _holds(node.item, rules, characters=characters)
    combine = any if isinstance(node, Choice) else all
    return combine(_holds(item, rules, characters=characters) for item in children(node))


def _leftmost(node: Node, nullable: frozenset[str]) -> frozenset[str]:
    """Rules that may stand at the very start of ``node``."""
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
    """The rules on a way from ``name`` to itself; empty if there is none."""
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
