"""The compression map: what is merged, what is kept apart, and the counts of known vocabularies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deepinfer.engine.model.config import ModelConfig
from deepinfer.recipes.embedded import embedded_model_path
from deepinfer.recipes.token_compression import token_compression
from deepinfer.recipes.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(embedded_model_path() / "tokenizer.json")


def test_case_spacing_and_accents_are_merged(tokenizer: Tokenizer) -> None:
    compressed = token_compression(tokenizer)

    def of(text: str) -> int:
        (token,) = tokenizer.encode_plain(text)
        return int(compressed[token])

    assert of("The") == of(" the") == of(" The")
    assert of(" the") != of(" then")
    assert of(" ") != of(" a")


def test_ids_count_up_in_order_of_first_appearance(tokenizer: Tokenizer) -> None:
    compressed = token_compression(tokenizer)
    first_seen = np.unique(compressed, return_index=True)[1]
    assert compressed.dtype == np.int32
    assert (np.diff(first_seen) > 0).all()
    assert compressed[2] == 2  # the pad token keeps its id, which the hash relies on


def test_the_config_of_the_embedded_model_states_this_count(tokenizer: Tokenizer) -> None:
    config = ModelConfig.from_file(embedded_model_path())
    assert int(token_compression(tokenizer).max()) + 1 == config.engram_compressed_vocab_size


@pytest.mark.parametrize(("name", "count"), [("tiny-a", 331), ("kdim-a", 263)])
def test_golden_vocabularies(name: str, count: int) -> None:
    path = Path(__file__).parents[1] / "goldens" / name / "checkpoint" / "tokenizer.json"
    assert int(token_compression(Tokenizer.from_file(path)).max()) + 1 == count
