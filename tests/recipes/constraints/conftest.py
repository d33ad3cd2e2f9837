"""Compilers over small and real vocabularies, and answers drawn at random through the masks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from deepinfer.recipes.constraints.compiler import ConstraintCompiler
from deepinfer.recipes.constraints.limits import ConstraintLimits
from deepinfer.recipes.constraints.masks import is_allowed
from deepinfer.recipes.constraints.matcher import ConstraintMatcher
from deepinfer.recipes.constraints.vocabulary import ConstraintVocabulary
from deepinfer.recipes.tokenizer import Tokenizer

Walk = Callable[..., list[int] | None]
_LIMITS = ConstraintLimits(compile_timeout_s=120.0)  # however slow or busy this machine is


@pytest.fixture(scope="session")
def v4_vocabulary(v4: Tokenizer) -> ConstraintVocabulary:
    return ConstraintVocabulary(v4, v4.size)


@pytest.fixture(scope="session")
def v4_compiler(v4_vocabulary: ConstraintVocabulary) -> Iterator[ConstraintCompiler]:
    with ConstraintCompiler(v4_vocabulary, limits=_LIMITS) as compiler:
        yield compiler


@pytest.fixture(scope="session")
def golden_compiler(golden: Tokenizer) -> Iterator[ConstraintCompiler]:
    # Logits are often wider than the tokenizer.
    vocabulary = ConstraintVocabulary(golden, golden.size + 45)
    with ConstraintCompiler(vocabulary, limits=_LIMITS) as compiler:
        yield compiler


@pytest.fixture(scope="session", params=["golden", "v4"])
def compiler(request: pytest.FixtureRequest) -> ConstraintCompiler:
    return request.getfixturevalue(f"{request.param}_compiler")


@pytest.fixture(scope="session")
def tokenizer_of(v4: Tokenizer, golden: Tokenizer) -> Callable[[ConstraintCompiler], Tokenizer]:
    def find(compiler: ConstraintCompiler) -> Tokenizer:
        return v4 if compiler.vocabulary.vocab_size == v4.size else golden

    return find


def allowed_ids(mask: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))


@pytest.fixture(scope="session")
def walk(tokenizer_of: Callable[[ConstraintCompiler], Tokenizer]) -> Walk:
    """Choose uniformly among allowed tokens, with a liking for those that bring the end nearer."""

    def run(
        compiler: ConstraintCompiler, matcher: ConstraintMatcher, seed: int, max_tokens: int = 400
    ) -> list[int] | None:
        """The tokens of the answer; None if it did not end."""
        tokenizer = tokenizer_of(compiler)
        closers = [tokenizer.encode_plain(text) for text in ('"', "}", "]", "@")]
        closers.append([*tokenizer.encode_plain("</"), tokenizer.tool_marker_id])
        choice = random.Random(seed)
        tokens: list[int] = []
        while len(tokens) < max_tokens:
            mask = matcher.mask()
            ids = allowed_ids(mask)
            assert len(ids), "a mask that allows nothing"
            if matcher.eos_id in ids and (len(ids) == 1 or choice.random() < 0.2):
                matcher.push(matcher.eos_id)
                return tokens
            if choice.random() < 0.3:
                for token_id in choice.choice(closers):
                    if is_allowed(matcher.mask(), token_id):
                        matcher.push(token_id)
                        tokens.append(token_id)
            else:
                tokens.append(int(choice.choice(ids[ids != matcher.eos_id])))
                matcher.push(tokens[-1])
        return None

    return run
