"""Compiling: once per spec, within limits, hostile constraints beside honest ones."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import CancelledError, wait
from pathlib import Path

import numpy as np
import pytest

from deepinfer.errors import RowError
from deepinfer.recipes.constraints import spec
from deepinfer.recipes.constraints.compiler import (
    MOST_PROTOTYPES,
    ROWS_OF_A_PROTOTYPE,
    ConstraintCompiler,
)
from deepinfer.recipes.constraints.limits import ConstraintLimits
from deepinfer.recipes.constraints.trial import Trial, compile_error
from deepinfer.recipes.constraints.vocabulary import ConstraintVocabulary
from deepinfer.recipes.tokenizer import Tokenizer

ENDLESS = spec.json_schema(
    {"allOf": [{"type": "string", "pattern": f"a{{{n}}}.*b"} for n in range(1, 30)]}
)
OVERFLOWING = spec.lark(
    "start: r0\n" + "\n".join(f"r{n}: r{n + 1}" for n in range(9_000)) + '\nr9000: "a"'
)
HUGE_ENUM = spec.json_schema({"enum": [f"value number {n}" for n in range(9_000)]})


@pytest.fixture(scope="module")
def vocabulary(golden: Tokenizer) -> ConstraintVocabulary:
    return ConstraintVocabulary(golden, golden.size)


@pytest.mark.parametrize(
    "hostile",
    [
        ENDLESS,
        OVERFLOWING,
        spec.regex("(a{1000}){1000}"),
        spec.gbnf("root ::= ([a-z]{0,100}){0,100}"),
        spec.lark("start: T0\n" + "\n".join(f"T{n}: T{n + 1} T{n + 1}" for n in range(30))
                  + '\nT30: "a"'),
    ],
    ids=["endless", "stack overflow", "huge repetition", "repeated repetition", "doubling"],
)  # fmt: skip
def test_hostile_constraints_are_refused(
    vocabulary: ConstraintVocabulary, hostile: spec.ConstraintSpec
) -> None:
    # Only the endless one is refused for its time; a busy machine starts a worker within it.
    limits = ConstraintLimits(compile_timeout_s=4.0 if hostile is ENDLESS else 120.0)
    with ConstraintCompiler(vocabulary, limits=limits) as compiler:
        with pytest.raises(RowError) as caught:
            compiler.compile(hostile)
        assert caught.value.kind == "constraint_too_complex"
        # The worker goes on.
        assert compiler.compile(spec.regex("a+")).new_matcher().mask().any()


def test_nested_alternation_is_refused_for_its_size() -> None:
    nested: dict = {"type": "integer"}
    for _ in range(16):
        nested = {"anyOf": [nested, {"type": "array", "items": nested}]}
    with pytest.raises(RowError) as caught:
        spec.json_schema(nested)
    assert caught.value.kind == "constraint_too_complex"


def test_large_but_honest_enum_compiles(vocabulary: ConstraintVocabulary) -> None:
    limits = ConstraintLimits(compile_timeout_s=120.0)  # its size counts, not this machine's speed
    with ConstraintCompiler(vocabulary, limits=limits) as compiler:
        assert compiler.compile(HUGE_ENUM).new_matcher().mask().any()


def test_others_go_on_while_one_never_ends(vocabulary: ConstraintVocabulary) -> None:
    limits = ConstraintLimits(compile_timeout_s=600.0)
    with ConstraintCompiler(vocabulary, limits=limits, num_workers=2) as compiler:
        stuck = compiler.submit(ENDLESS)
        honest = [compiler.submit(spec.regex(f"a{{{n}}}")) for n in range(1, 20)]
        done, pending = wait(honest, timeout=120)
        assert not pending
        assert all(future.result() for future in done)
        assert not stuck.done()
    with pytest.raises(CancelledError):  # closing ends the child process, and with it the wait
        stuck.result(timeout=240)


def test_a_spec_compiles_once(vocabulary: ConstraintVocabulary) -> None:
    with ConstraintCompiler(vocabulary) as compiler:
        first = compiler.compile(spec.json_schema('{"type":"integer"}'))
        again = compiler.compile(spec.json_schema('{ "type": "integer" }'))
        assert again is first
        with pytest.raises(RowError) as one:
            compiler.compile(spec.regex("a("))
        with pytest.raises(RowError) as two:
            compiler.compile(spec.regex("a("))
        assert one.value is two.value


def test_many_rows_of_one_constraint_have_several_prototypes(
    vocabulary: ConstraintVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of one prototype wait for each other; what may come does not depend on which it is."""
    monkeypatch.setattr("deepinfer.recipes.constraints.compiler.num_threads", lambda: 8)
    schema = spec.json_schema({"type": "object", "properties": {"a": {"type": "string"}}})
    with ConstraintCompiler(vocabulary) as compiler:
        first = compiler.compile(schema)
        assert first.num_prototypes == 1
        futures = [compiler.submit(schema) for _ in range(MOST_PROTOTYPES * ROWS_OF_A_PROTOTYPE)]
        assert {future.result() for future in futures} == {first}
        assert compiler.compile(schema).num_prototypes == MOST_PROTOTYPES
        burst = [compiler.submit(spec.regex("[ab]+")) for _ in range(40)]
        assert burst[-1].result().num_prototypes >= 1
        rows = [first.new_matcher() for _ in range(2 * MOST_PROTOTYPES)]
        choice = random.Random(0)
        while not rows[0].is_finished and rows[0].num_tokens < 60:
            masks = {row.mask().tobytes() for row in rows}
            assert len(masks) == 1
            bits = np.unpackbits(np.frombuffer(masks.pop(), np.uint8), bitorder="little")
            token_id = int(choice.choice(np.flatnonzero(bits)))
            for row in rows:
                row.push(token_id)
        assert rows[0].num_tokens > 3


def test_a_constraint_of_few_rows_is_compiled_once(
    vocabulary: ConstraintVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepinfer.recipes.constraints.compiler.num_threads", lambda: 8)
    with ConstraintCompiler(vocabulary) as compiler:
        for _ in range(ROWS_OF_A_PROTOTYPE):
            assert compiler.compile(spec.regex("a+b")).num_prototypes == 1
    monkeypatch.setattr("deepinfer.recipes.constraints.compiler.num_threads", lambda: 1)
    with ConstraintCompiler(vocabulary) as compiler:  # threads that are not there need none
        for _ in range(5 * ROWS_OF_A_PROTOTYPE):
            assert compiler.compile(spec.regex("a+b")).num_prototypes == 1


def test_a_large_grammar_is_compiled_once_for_all_rows(
    vocabulary: ConstraintVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepinfer.recipes.constraints.compiler.num_threads", lambda: 8)
    monkeypatch.setattr("deepinfer.recipes.constraints.compiler._LONG_S", 0.0)
    with ConstraintCompiler(vocabulary) as compiler:
        for _ in range(3 * ROWS_OF_A_PROTOTYPE):
            assert compiler.compile(HUGE_ENUM).num_prototypes == 1


def test_cache_is_bounded(vocabulary: ConstraintVocabulary) -> None:
    with ConstraintCompiler(vocabulary, max_cached=2) as compiler:
        specs = [spec.regex(letter) for letter in "abc"]
        a, b, c = (compiler.compile(one) for one in specs)
        assert compiler.compile(specs[2]) is c
        assert compiler.compile(specs[1]) is b
        assert compiler.compile(specs[0]) is not a


def test_closing_is_quick_and_leaves_no_process(vocabulary: ConstraintVocabulary) -> None:
    compiler = ConstraintCompiler(vocabulary, limits=ConstraintLimits(compile_timeout_s=600.0))
    stuck = compiler.submit(ENDLESS)
    while not stuck.running():
        time.sleep(0.01)
    compiler.close()
    assert stuck.done()
    assert all(trial.process_id is None for trial in compiler.trials)


def test_a_child_that_something_else_killed_is_replaced() -> None:
    trial = Trial(ConstraintLimits())
    trial.check("lark", 'start: "a"')
    first = trial.process_id
    assert first is not None
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)  # its threads, too, have ended
    trial.check("lark", 'start: "b"')
    assert trial.process_id not in (None, first)
    trial.release()


def test_a_child_that_dies_before_it_reads_its_question_leaves_no_pipe_open() -> None:
    limits = ConstraintLimits(trial_memory_bytes=1 << 20)  # too little to start at all
    trial = Trial(limits)
    with pytest.raises(RowError) as caught:
        trial.check("lark", 'start: "' + "a" * 1_000_000 + '"')
    assert caught.value.kind == "constraint_too_complex"
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        del caught, trial
        gc.collect()


def test_child_process_ends_with_a_killed_parent() -> None:
    script = """
import sys
from deepinfer.recipes.constraints.limits import ConstraintLimits
from deepinfer.recipes.constraints.trial import Trial
import threading, time
trial = Trial(ConstraintLimits(compile_timeout_s=600.0))
grammar = "start: X\\nX: " + " & ".join(f"/.*a{{{n}}}.*b/" for n in range(1, 40))
threading.Thread(target=trial.check, args=("lark", grammar), daemon=True).start()
while trial.process_id is None:
    time.sleep(0.01)
print(trial.process_id, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-P", "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout
    child = int(parent.stdout.readline())
    assert Path(f"/proc/{child}").exists()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 120
    while _is_running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_running(child)


def _is_running(process_id: int) -> bool:
    try:
        status = Path(f"/proc/{process_id}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    "bad, kind, words",
    [
        (spec.regex("a(b"), "invalid_regex", "unclosed group"),
        (spec.regex("a\\\\\\"), "invalid_regex", "ends in a backslash"),
        (spec.regex(r"\bword\b"), "invalid_regex", "word boundary inside"),
        (spec.regex("a^b"), "invalid_regex", "an anchor"),
        (spec.regex(r"[^\s\S]"), "invalid_regex", "matches no text"),
        (spec.regex("(?=a)b"), "invalid_regex", "look-ahead"),
        (spec.regex(r"(a)\1"), "invalid_regex", "backreferences"),
        (spec.lark('start: "a" b'), "invalid_grammar", "at 1(8)"),
        (spec.lark('begin: "a"'), "invalid_grammar", "start"),
        (spec.lark('start: "a"\n  <[1]> "b"'), "invalid_grammar", "line 2: the token <[1]>"),
        (spec.lark("start: <think>"), "invalid_grammar", "line 1: the token <think>"),
        (spec.gbnf('root ::= "a" | b'), "invalid_grammar", "line 1, column 16"),
        (spec.lark('start: %json {"type": "string", "contentEncoding": "base64"}'),
         "unsupported_keyword", "contentEncoding"),
        (spec.json_schema({"oneOf": [{"type": "integer"}, {"type": "number"}]}),
         "unsupported_keyword", "oneOf"),
        (spec.json_schema({"type": "string", "pattern": "a("}), "invalid_schema", "pattern"),
        (spec.json_schema({"$ref": "#"}), "invalid_schema", "refers back"),
        (spec.json_schema({"type": "string", "pattern": "(?!a)b"}), "unsupported_keyword",
         "pattern: look-around"),
        (spec.json_schema({"type": "string", "pattern": r"a\b"}), "unsupported_keyword",
         "pattern: an anchor or word boundary"),
        (spec.json_schema({"patternProperties": {"^a": {}, "b$": {}}}), "unsupported_keyword",
         "patternProperty regexes"),
        (spec.lark('start: x "y"\nx[max_tokens=2]: /a*/'), "invalid_grammar",
         "line 2: the attribute max_tokens"),
        (spec.lark('start: x "y"\nx[stop="z"]: /a*/'), "invalid_grammar", "attribute stop"),
        (spec.lark('%llguidance {"foo": 1}\nstart: "a"'), "invalid_grammar", "line 1: %llguidance"),
        (spec.lark('start: %json {"x-guidance": {"lenient": true}}'), "unsupported_keyword",
         "lenient"),
    ],
)  # fmt: skip
def test_errors_say_what_and_where(
    golden_compiler: ConstraintCompiler, bad: spec.ConstraintSpec, kind: str, words: str
) -> None:
    with pytest.raises(RowError) as caught:
        golden_compiler.compile(bad)
    assert caught.value.kind == kind
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_the_place_in_a_regular_expression_is_said_in_words() -> None:
    for pattern, place in (("a(b", "after 'a'"), ("[z-a]", "at its beginning")):
        picture = f"regex parse error:\n    {pattern}\n    {' ' * (pattern[0] == 'a')}^\nerror: bad"
        message = f"at 1(8): invalid regex\n{picture}\n   1 | start: /x/\n              ^"
        assert str(compile_error("regex", message)) == f"regex: bad ({place})"


def test_angle_brackets_in_text_are_no_token_references(
    golden_compiler: ConstraintCompiler,
) -> None:
    grammar = 'start: "<a>stop=" /<b>%llguidance/ C // <c>\nC: "\\"<d>" # <e> max_tokens=3'
    assert golden_compiler.compile(spec.lark(grammar)).new_matcher().mask().any()
