"""GBNF to Lark: the language stays the same, and every fault names its place.

The oracle is a recogniser of a few lines over grammars built here as tuples.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.errors import RowError
from deepinfer.recipes.constraints.gbnf_lark import gbnf_to_lark
from deepinfer.recipes.constraints.spec import gbnf
from deepinfer.recipes.constraints.validate import matches

JSON_GRAMMAR = r"""
# A whole JSON grammar, as people write them.
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (
    string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""
CORPUS: list[tuple[str, list[str], list[str]]] = [
    (JSON_GRAMMAR, ["{}", '{"a": [1, -2.5e3, null], "é\\n": {"b":"]"}}'], ["{", "[1]", '{"a":01}']),
    # The longest first piece is not always the right one.
    ('root ::= "a" "bc" | "ab" "d"', ["abc", "abd"], ["ab", "abcd"]),
    ('root ::= [a-z]+ "x"', ["ax", "xxx"], ["x", "a", ""]),
    ('root ::= [a-z]* [a-c] root | "."', [".", "zzb.", "ab."], ["zz.", "b"]),
    ('root ::= "if" | id root?\nid ::= [a-z] | "(" id ")"', ["if", "iff", "(i)f"], ["", "(if)"]),
    ('root ::= "(" root ")" root | ""', ["", "()", "(())()"], ["(", ")("]),
    (r'root ::= "\x41\u00e9\U0001F600\t\"\\" .', ['Aé😀\t"\\\n'], ['Aé😀\t"\\']),
    ("root ::= [^a-c\\]]{2,3}", ["d-", "zzz"], ["d", "a-", "d]", "zzzz"]),
    ("root ::= [a\\-z]{2}", ["a-", "zz"], ["bb"]),
    ("root ::= [ab-]{2}", ["a-", "-b"], ["cc"]),
    ('root ::= "a"{2} "b"{1,} "c"{0,1}', ["aab", "aabbc"], ["ab", "aabcc"]),
    ('root::="a"|\n  "b" # both\n  "c"\n\n', ["a", "bc"], ["b", "c"]),
    ('root ::= x "."\nx ::= y y\ny ::= "a"?', [".", "a.", "aa."], ["aaa."]),
    ('root ::= ("a" | "ab")* "c"', ["c", "aabc", "abac"], ["abb", "bc"]),
    ('root ::= ""', [""], ["a"]),
    ('root ::= "→" root | [一-龥]', ["一", "→→丁"], ["→", "a"]),
]


@pytest.mark.parametrize("grammar, good, bad", CORPUS)
def test_corpus(grammar: str, good: list[str], bad: list[str]) -> None:
    spec = gbnf(grammar)
    assert [text for text in good if not matches(spec, text)] == []
    assert [text for text in bad if matches(spec, text)] == []


@pytest.mark.parametrize(
    "grammar, line, column, reason",
    [
        ('root ::= root "a" | "b"', 1, 1, "left recursion: root -> root"),
        ('root ::= a\na ::= b? c\nb ::= "x"\nc ::= a | "y"', 2, 1, "left recursion: a -> c -> a"),
        ('root ::= "a" |\n  thing', 2, 3, "'thing' is not defined"),
        ('root ::= "a" root', 1, 1, "never ends"),
        ('root ::= "a"\nroot ::= "b"', 2, 1, "defined twice"),
        ('start ::= "a"', 1, 1, "no rule 'root'"),
        ('root ::= "a', 1, 10, "never closed"),
        ('root ::= ("a"\nx ::= "b"', 1, 10, "never closed"),
        ("root ::= [a", 1, 10, "never closed"),
        ("root ::= [z-a]", 1, 14, "runs backwards"),
        ("root ::= []", 1, 10, "matches no character"),
        ('root ::= "a"{3,2}', 1, 13, "wrong order"),
        ('root ::= "a"{99999}', 1, 13, "more than 10000"),
        ('root ::= "a"{x}', 1, 13, "expected {m}"),
        ('root ::= "\\q"', 1, 12, "unknown escape"),
        ('root ::= "\\uD800"', 1, 12, "not a character"),
        ("root ::= <think>", 1, 10, "token references"),
        ('root ::= "a" )', 1, 14, "unexpected ')'"),
        ('root ::= "a" }', 1, 14, "expected the name of a rule"),
        ("root = x", 1, 6, "expected ::="),
        ("root ::= " + "(" * 100 + '"a"' + ")" * 100, 1, 71, "nested more than 60"),
        ('root ::= "a"' + "*" * 100, 1, 74, "too many repetitions"),
    ],
)
def test_faults_name_place_and_reason(grammar: str, line: int, column: int, reason: str) -> None:
    with pytest.raises(RowError) as caught:
        gbnf_to_lark(grammar)
    assert caught.value.kind == "invalid_grammar"
    assert f"line {line}, column {column}:" in str(caught.value)
    assert reason in str(caught.value)


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet='root:=|()[]{}*+?"\\^-,09abx<> \n#.', max_size=60))
def test_any_text_is_a_grammar_or_a_row_error(text: str) -> None:
    try:
        gbnf_to_lark("root ::= " + text)
    except RowError as error:
        assert error.kind in ("invalid_grammar", "constraint_too_complex")


def test_strings_of_a_json_grammar_are_one_piece() -> None:
    """One terminal per character would make masks a hundred times slower."""
    lark = gbnf_to_lark(JSON_GRAMMAR)
    terminals = [line for line in lark.splitlines() if line.startswith("T")]
    assert len(terminals) < 15
    assert any(line.count("\\x{22}") > 2 and ")*" in line for line in terminals)


def test_long_chains_of_rules_are_refused_not_overflown() -> None:
    nested = "(" * 50 + '"a" {}' + ")" * 50
    rules = "\n".join(f"r{i} ::= " + nested.format(f"r{i + 1}") for i in range(400))
    try:
        gbnf_to_lark(f'root ::= r0\n{rules}\nr400 ::= "b"')
    except RowError as error:
        assert error.kind == "constraint_too_complex"


# Grammars as tuples: ("lit", text), ("set", characters), ("seq" | "alt", parts),
# ("rep", part, low, high), ("ref", rule).  Few letters, so that alternatives often collide.
Part = tuple[Any, ...]
_LETTERS = "abc"
_leaf = st.one_of(
    st.text(_LETTERS, min_size=1, max_size=3).map(lambda text: ("lit", text)),
    st.sets(st.sampled_from(_LETTERS), min_size=1).map(lambda s: ("set", "".join(sorted(s)))),
)


def _parts(rule: int, num_rules: int) -> st.SearchStrategy[Part]:
    """Rules refer to later rules anywhere, to any rule behind a letter: never left-recursive."""
    leaves = [_leaf]
    if rule + 1 < num_rules:
        leaves.append(st.integers(rule + 1, num_rules - 1).map(lambda n: ("ref", n)))
    behind = st.integers(0, num_rules - 1).map(lambda n: ("ref", n))
    leaves.append(
        st.tuples(_leaf, behind, _leaf).map(lambda t: ("alt", (t[2], ("seq", (t[0], t[1])))))
    )
    counts = st.sampled_from([(0, 1), (0, None), (1, None), (2, 2), (1, 3)])
    return st.recursive(
        st.one_of(leaves),
        lambda inner: st.one_of(
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: ("seq", tuple(parts))),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: ("alt", tuple(parts))),
            st.tuples(inner, counts).map(lambda t: ("rep", t[0], *t[1])),
        ),
        max_leaves=6,
    )


_grammars = st.integers(1, 3).flatmap(
    lambda num: st.tuples(*(_parts(rule, num) for rule in range(num)))
)


def _write(part: Part) -> str:
    kind = part[0]
    if kind == "lit":
        return f'"{part[1]}"'
    if kind == "set":
        return f"[{part[1]}]"
    if kind == "ref":
        return f"r{part[1]}"
    if kind == "rep":
        return f"({_write(part[1])}){{{part[2]},{'' if part[3] is None else part[3]}}}"
    return "(" + {"seq": " ", "alt": " | "}[kind].join(map(_write, part[1])) + ")"


def _text(rules: tuple[Part, ...]) -> str:
    lines = [f"r{number} ::= {_write(rule)}" for number, rule in enumerate(rules)]
    return "root ::= r0\n" + "\n".join(lines)


def _recognises(rules: tuple[Part, ...], text: str) -> bool:
    """Whether ``text`` is in the language: sets of end positions, straight from the definition."""

    @cache
    def ends(part: Part, start: int) -> frozenset[int]:
        kind = part[0]
        if kind == "lit":
            return frozenset({start + len(part[1])} if text.startswith(part[1], start) else ())
        if kind == "set":
            return frozenset({start + 1} if text[start : start + 1] in tuple(part[1]) else ())
        if kind == "ref":
            return ends(rules[part[1]], start)
        if kind == "alt":
            return frozenset().union(*(ends(inner, start) for inner in part[1]))
        if kind == "seq":
            reached = frozenset({start})
            for inner in part[1]:
                reached = frozenset().union(*(ends(inner, at) for at in reached))
            return reached
        _, inner, low, high = part
        reached, found = frozenset({start}), frozenset({start} if low == 0 else ())
        for count in range(1, len(text) + low + 2 if high is None else high + 1):
            reached = frozenset().union(*(ends(inner, at) for at in reached))
            found |= reached if count >= low else frozenset()
        return found

    return len(text) in ends(rules[0], 0)


def _sample(rules: tuple[Part, ...], choice: random.Random, budget: list[int], part: Part) -> str:
    budget[0] -= 1
    kind = part[0]
    if kind == "lit" or budget[0] < 0:
        return part[1] if kind == "lit" else ""
    if kind == "set":
        return choice.choice(part[1])
    if kind == "ref":
        return _sample(rules, choice, budget, rules[part[1]])
    if kind == "alt":
        return _sample(rules, choice, budget, choice.choice(part[1]))
    if kind == "seq":
        return "".join(_sample(rules, choice, budget, inner) for inner in part[1])
    _, inner, low, high = part
    count = choice.randint(low, low + 2 if high is None else high)
    return "".join(_sample(rules, choice, budget, inner) for _ in range(count))


def _mutated(text: str, choice: random.Random) -> str:
    at = choice.randint(0, len(text))
    kept_from = at + choice.randint(0, 1)
    return text[:at] + choice.choice(["", *_LETTERS]) + text[kept_from:]


@settings(max_examples=100, deadline=None)
@given(rules=_grammars, seed=st.integers(0, 2**32))
def test_language_is_unchanged(rules: tuple[Part, ...], seed: int) -> None:
    choice = random.Random(seed)
    spec = gbnf(_text(rules))
    samples = [_sample(rules, choice, [40], rules[0])[:30] for _ in range(4)]
    texts = {*samples, *(_mutated(text, choice) for text in samples * 2)}
    try:
        gbnf_to_lark(spec.text)
    except RowError as error:
        assert "never ends" in str(error)
        return
    wrong = [text for text in texts if matches(spec, text) != _recognises(rules, text)]
    assert wrong == []
