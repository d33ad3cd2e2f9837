"""Finds terminals for which greedy lexing could deviate from the grammar.

The ``extensions`` of a terminal are the characters that can continue one of its words.  Greedy
lexing is exact if at every position (1) no extension of a terminal can start what follows it, and
(2) the terminals that may come next start with different characters, unless both are single
characters.  The analysis ignores context, so it is conservative: it may report false conflicts, but
misses none.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from .charset import EMPTY, CharSet, is_disjoint, union
from .gbnf import Chars, Choice, Node, Reference, Repeat, Terminal, children
from .gbnf_checks import is_nullable, nullable_rules


def greedy_conflicts(rules: Mapping[str, Node]) -> set[Node]:
    """The expressions that must be split; empty if greedy lexing is exact.

    ``rules`` are over terminals, with start rule ``root``.
    """
    following_of, at_start = _following(rules)
    terminals = list(following_of)
    number = {terminal: place for place, terminal in enumerate(terminals)}
    following = [{number[t] for t in following_of[terminal]} for terminal in terminals]
    starts = [first(terminal.expression) for terminal in terminals]
    alike = [
        {j for j, other in enumerate(starts) if j != i and not is_disjoint(start, other)}
        for i, start in enumerate(starts)
    ]
    places = [{number[t] for t in at_start}, *following]
    _share_following(following, places, alike)
    conflicts: set[int] = set()
    for i, terminal in enumerate(terminals):
        begins = union(*(starts[j] for j in following[i]))
        if not is_disjoint(extensions(terminal.expression), begins):
            conflicts.add(i)
    for expected in places:
        conflicts |= {i for i in expected if alike[i] & expected}
    return {terminals[i].expression for i in conflicts if not terminals[i].is_single}


def _share_following(
    following: list[set[int]], places: list[set[int]], alike: list[set[int]]
) -> None:
    """Extend ``following``: of terminals that may be confused at a position, each can be followed
    by whatever follows the other.

    ``places``: sets of terminals expected at the same position, including those of ``following``;
    ``alike[i]``: the terminals that can start with the same character as ``i``.
    """
    changed = True
    while changed:
        changed = False
        for expected in places:
            for i in expected.copy():
                for j in alike[i] & expected:
                    if not following[j] <= following[i]:
                        following[i] |= following[j]
                        changed = True


def _following(
    rules: Mapping[str, Node],
) -> tuple[dict[Terminal, set[Terminal]], set[Terminal]]:
    """For each terminal, the terminals that may come next; and those that may come first."""
    nullable = nullable_rules(rules)
    starts: dict[str, set[Terminal]] = {name: set() for name in rules}
    after: dict[str, set[Terminal]] = {name: set() for name in rules}
    following: dict[Terminal, set[Terminal]] = {}

    def walk(node: Node, behind: set[Terminal]) -> set[Terminal]:
        """Record ``behind`` as what follows ``node``; return what may come first here."""
        if isinstance(node, Terminal):
            following.setdefault(node, set()).update(behind)
            return {node}
        if isinstance(node, Reference):
            after[node.name] |= behind
            return starts[node.name] | (behind if node.name in nullable else set())
        if isinstance(node, Choice):
            return set().union(*(walk(item, behind) for item in children(node)))
        if isinstance(node, Repeat):
            inner = walk(node.item, behind)
            if node.maximum != 1:
                inner |= walk(node.item, behind | inner)
            return inner | behind if node.minimum == 0 else inner
        for item in reversed(children(node)):
            behind = walk(item, behind)
        return behind

    while True:
        before = _count(starts, after, following)
        for name, node in rules.items():
            # What follows a rule is not part of its start set, which is taken with nothing behind.
            starts[name] |= walk(node, set())
            walk(node, after[name])
        if before == _count(starts, after, following):
            return following, starts["root"]


def _count(*tables: dict[str, set[Terminal]] | dict[Terminal, set[Terminal]]) -> int:
    return sum(len(entries) for table in tables for entries in table.values())


@cache
def first(node: Node) -> CharSet:
    """The characters that can start a word of a regular expression."""
    if isinstance(node, Chars):
        return node.ranges
    if isinstance(node, Repeat):
        return first(node.item)
    found: list[CharSet] = []
    for item in children(node):
        found.append(first(item))
        if not isinstance(node, Choice) and not is_nullable(item):
            break
    return union(*found)


@cache
def extensions(node: Node) -> CharSet:
    """The characters that can continue a word of a regular expression towards a longer word.

    Exact if the expression is deterministic; otherwise all its characters.
    """
    if isinstance(node, Chars):
        return EMPTY
    if isinstance(node, Repeat):
        inside, begin = extensions(node.item), first(node.item)
        if node.maximum == 1:
            return inside
        if not is_disjoint(inside, begin):
            return alphabet(node)
        has_fixed_count = node.minimum == node.maximum and not is_nullable(node.item)
        return inside if has_fixed_count else union(inside, begin)
    if isinstance(node, Choice):
        return _choice_extensions(node)
    result, is_empty_so_far, begun = EMPTY, True, EMPTY
    for item in children(node):
        begin = first(item)
        if not is_disjoint(result, begin) or (is_empty_so_far and not is_disjoint(begun, begin)):
            return alphabet(node)
        can_skip = is_nullable(item)
        result = union(result, begin, extensions(item)) if can_skip else extensions(item)
        begun = union(begun, begin)
        is_empty_so_far = is_empty_so_far and can_skip
    return result


def _choice_extensions(node: Choice) -> CharSet:
    begun = EMPTY
    for item in children(node):
        if not is_disjoint(begun, first(item)):
            return alphabet(node)
        begun = union(begun, first(item))
    return union(*(extensions(item) for item in children(node)))


@cache
def alphabet(node: Node) -> CharSet:
    """All characters that can occur in a word of a regular expression."""
    if isinstance(node, Chars):
        return node.ranges
    if isinstance(node, Repeat):
        return alphabet(node.item)
    return union(*(alphabet(item) for item in children(node)))
