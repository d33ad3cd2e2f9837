"""The matcher of one answer: roll back, drafts, forced tokens, the start after the reasoning."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from deepinfer.errors import RowError
from deepinfer.recipes.constraints import spec
from deepinfer.recipes.constraints.compiler import ConstraintCompiler
from deepinfer.recipes.constraints.masks import is_allowed
from deepinfer.recipes.constraints.matcher import ConstraintMatcher
from deepinfer.recipes.tokenizer import Tokenizer

SPECS = [
    spec.json_schema(
        {
            "type": "object",
            "properties": {"name": {"type": "string"}, "n": {"type": "integer"}},
            "required": ["name", "n"],
            "additionalProperties": False,
        }
    ),
    spec.regex("(ab|a)*c?"),
    spec.gbnf('root ::= "(" root ")" | [a-z]*'),
]


def _ids(mask: np.ndarray) -> list[int]:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def _state(matcher: ConstraintMatcher) -> tuple:
    facts = (matcher.num_tokens, matcher.is_accepting, matcher.is_finished)
    return (*facts, matcher.forced_tokens(), matcher.mask().tobytes())


@pytest.mark.parametrize("constraint", SPECS, ids=lambda one: one.kind)
@pytest.mark.parametrize("is_thinking", [False, True])
def test_rollback_restores_every_state(
    compiler: ConstraintCompiler,
    tokenizer_of: Callable[[ConstraintCompiler], Tokenizer],
    constraint: spec.ConstraintSpec,
    is_thinking: bool,
) -> None:
    tokenizer = tokenizer_of(compiler)
    compiled = compiler.compile(constraint)
    for seed in range(5):
        choice = random.Random(seed)
        matcher = compiled.new_matcher(start_after=tokenizer.think_end_id if is_thinking else None)
        states, tokens = [_state(matcher)], []
        for step in range(40):
            ids = _ids(matcher.mask())
            ends_reasoning = is_thinking and step == 4
            tokens.append(tokenizer.think_end_id if ends_reasoning else choice.choice(ids))
            matcher.push(tokens[-1])
            states.append(_state(matcher))
            if tokens[-1] == matcher.eos_id:
                break
        for _ in range(10):
            count = choice.randint(0, len(tokens))
            matcher.rollback(count)
            assert _state(matcher) == states[len(tokens) - count]
            for token_id in tokens[len(tokens) - count :]:
                matcher.push(token_id)
            assert _state(matcher) == states[-1]


@pytest.mark.parametrize("constraint", SPECS, ids=lambda one: one.kind)
def test_masks_say_exactly_what_push_takes(
    golden_compiler: ConstraintCompiler, golden: Tokenizer, constraint: spec.ConstraintSpec
) -> None:
    matcher = golden_compiler.compile(constraint).new_matcher()
    choice = random.Random(0)
    for _ in range(15):
        mask, forced = matcher.mask(), matcher.forced_tokens()
        if forced:
            assert _ids(mask) == forced[:1]
        else:
            taken = [token_id for token_id in range(golden.size) if _takes(matcher, token_id)]
            assert taken == _ids(mask)
        matcher.push(choice.choice(_ids(mask)))
        if matcher.is_finished:
            break


def _takes(matcher: ConstraintMatcher, token_id: int) -> bool:
    try:
        matcher.push(token_id)
    except ValueError:
        return False
    matcher.rollback(1)
    return True


def test_mask_is_as_wide_as_the_logits(golden_compiler: ConstraintCompiler) -> None:
    vocab_size = golden_compiler.vocabulary.vocab_size
    tokenizer_size = golden_compiler.vocabulary.ll_tokenizer.vocab_size
    for start_after in (None, 3):
        compiled = golden_compiler.compile(spec.regex("(?s:.*)"))
        mask = compiled.new_matcher(start_after=start_after).mask()
        assert mask.shape == (-(-vocab_size // 32),)
        assert mask.dtype == np.uint32
        assert max(_ids(mask)) < (vocab_size if start_after else tokenizer_size)


def test_end_is_allowed_only_when_complete(v4_compiler: ConstraintCompiler, v4: Tokenizer) -> None:
    matcher = v4_compiler.compile(spec.regex("ab?")).new_matcher()
    assert not is_allowed(matcher.mask(), v4.eos_id)
    with pytest.raises(ValueError, match="before its constraint is met"):
        matcher.push(v4.eos_id)
    matcher.push(v4.encode_plain("a")[0])
    assert matcher.is_accepting
    assert not matcher.is_finished
    assert is_allowed(matcher.mask(), v4.eos_id)
    matcher.push(v4.encode_plain("b")[0])
    assert matcher.is_finished
    assert _ids(matcher.mask()) == [v4.eos_id]
    matcher.push(v4.eos_id)
    assert matcher.num_tokens == 3
    with pytest.raises(ValueError, match="after the end"):
        matcher.push(v4.eos_id)


def test_nothing_rules_before_the_answer(v4_compiler: ConstraintCompiler, v4: Tokenizer) -> None:
    compiled = v4_compiler.compile(spec.regex("yes"))
    matcher = compiled.new_matcher(start_after=v4.think_end_id)
    for token_id in v4.encode_plain("no, no, yes"):
        expected = set(range(v4.size)) - {v4.eos_id}
        assert set(_ids(matcher.mask())) == expected
        assert (matcher.is_accepting, matcher.is_finished) == (False, False)
        assert matcher.forced_tokens() == []
        matcher.push(token_id)
    matcher.push(v4.think_end_id)
    assert matcher.forced_tokens() == v4.encode_plain("yes")


def test_control_tokens_are_no_text(v4_compiler: ConstraintCompiler, v4: Tokenizer) -> None:
    ids = set(_ids(v4_compiler.compile(spec.regex("(?s:.*)")).new_matcher().mask()))
    assert ids & v4.control_ids == {v4.eos_id}


def test_draft_masks_equal_masks_taken_one_by_one(
    v4_compiler: ConstraintCompiler, v4: Tokenizer
) -> None:
    matcher = v4_compiler.compile(SPECS[0]).new_matcher()
    good = v4.encode_plain('{"name": "Ann", "n": 12}')
    for drafts, num_expected in (
        (good[:5], 5),
        ([*good[:3], v4.bos_id, *good[3:]], 3),
        ([*good, v4.eos_id, good[0]], len(good) + 1),
        ([v4.size + 5], 0),
        ([], 0),
    ):
        matcher = v4_compiler.compile(SPECS[0]).new_matcher()
        out = np.zeros((len(drafts) + 1, len(matcher.mask())), np.uint32)
        before = _state(matcher)
        assert matcher.fill_masks([matcher], [drafts], out) == [None]
        num_allowed = matcher.num_allowed(drafts)
        assert _state(matcher) == before
        singles = [matcher.mask()]
        for token_id in drafts[:num_allowed]:
            matcher.push(token_id)
            singles.append(matcher.mask())
        assert np.array_equal(out[: num_allowed + 1], np.stack(singles))
        assert not out[num_allowed + 1 :].any()
        # A draft beside the canonical tokens of forced text is not verified either.
        assert num_allowed <= num_expected


def test_masks_of_many_equal_masks_of_each(v4_compiler: ConstraintCompiler, v4: Tokenizer) -> None:
    """Answers in all kinds of states, drafts that end reasoning or the answer, in one call."""
    schema, text = SPECS[0], '{"name": "Ann", "n": 12}'
    ids = v4.encode_plain(text)
    think_end = v4.think_end_id
    cases = [
        (schema, None, [], ids[:4]),
        (schema, None, ids[:3], [*ids[3:], v4.eos_id]),
        (schema, think_end, ids[:2], []),
        (schema, think_end, [5], [6, think_end, *ids[:2]]),
        (schema, think_end, [think_end], ids[:3]),
        (spec.regex("The quick brown fox\\."), None, [], v4.encode_plain("The quick red")),
        (schema, None, [*ids, v4.eos_id], []),
    ]
    matchers, drafts, expected = [], [], []
    for constraint, start_after, before, following in cases:
        matcher = v4_compiler.compile(constraint).new_matcher(start_after=start_after)
        for token_id in before:
            matcher.push(token_id)
        rows = np.zeros((1 + len(following), matcher.vocabulary.num_mask_words), np.uint32)
        for place, token_id in enumerate([*following, None]):
            rows[place] = matcher.mask()
            if token_id is None or not is_allowed(rows[place], token_id):
                break
            matcher.push(token_id)
        matcher.rollback(place)
        matchers.append(matcher)
        drafts.append(following)
        expected.append(rows)
    out = np.full((sum(map(len, expected)), expected[0].shape[1]), 7, np.uint32)
    states = [_state(matcher) for matcher in matchers]
    assert ConstraintMatcher.fill_masks(matchers, drafts, out) == [None] * len(matchers)
    assert np.array_equal(out, np.concatenate(expected))
    assert [_state(matcher) for matcher in matchers] == states


def test_forced_text_is_canonical_tokens(v4_compiler: ConstraintCompiler, v4: Tokenizer) -> None:
    matcher = v4_compiler.compile(spec.regex("The quick brown fox\\.")).new_matcher()
    forced = matcher.forced_tokens()
    assert v4.decode(forced) == "The quick brown fox."
    assert len(forced) <= 6
    for token_id in forced:
        assert _ids(matcher.mask()) == [token_id]
        matcher.push(token_id)
    assert matcher.is_finished


def test_rejected_token_changes_nothing(v4_compiler: ConstraintCompiler, v4: Tokenizer) -> None:
    matcher = v4_compiler.compile(SPECS[0]).new_matcher()
    before = _state(matcher)
    for token_id in (v4.encode_plain("x")[0], v4.bos_id, v4.size + 3, v4.tool_marker_id):
        with pytest.raises(ValueError, match="not allowed"):
            matcher.push(token_id)
        assert _state(matcher) == before
    with pytest.raises(ValueError, match="cannot roll back"):
        matcher.rollback(1)


def test_matchers_of_one_constraint_do_not_disturb_each_other(
    v4_compiler: ConstraintCompiler, v4: Tokenizer
) -> None:
    compiled = v4_compiler.compile(spec.regex("[ab]{1,9}"))
    one, other = compiled.new_matcher(), compiled.new_matcher()
    before = _state(other)
    one.push(v4.encode_plain("a")[0])
    assert _state(other) == before


def test_grammar_that_grows_too_complex_is_a_row_error(golden: Tokenizer) -> None:
    from deepinfer.recipes.constraints.limits import ConstraintLimits
    from deepinfer.recipes.constraints.vocabulary import ConstraintVocabulary

    limits = ConstraintLimits(lexer_states=300)
    vocabulary = ConstraintVocabulary(golden, golden.size)
    with ConstraintCompiler(vocabulary, limits=limits) as compiler:
        try:
            matcher = compiler.compile(spec.regex("(a|b)*a(a|b){12}c")).new_matcher()
            choice = random.Random(0)
            letters = [golden.encode_plain(letter)[0] for letter in "ab"]
            with pytest.raises(RowError) as caught:
                for _ in range(3000):
                    matcher.mask()
                    matcher.push(choice.choice(letters))
        except RowError as error:
            assert error.kind == "constraint_too_complex"  # already at the trial
        else:
            assert caught.value.kind == "constraint_too_complex"
