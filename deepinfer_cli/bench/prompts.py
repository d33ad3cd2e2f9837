"""Reads prompts from a file, as texts or as numbers of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

from deepinfer.errors import ConfigError
from deepinfer.recipes.embedded import embedded_model_path
from deepinfer_cli.input.reader import open_reader

LENGTHS_NOTE = (
    "Lengths of prompts are counted by the embedded model's tokenizer, which needs more tokens for "
    "a text than that of DeepSeek-V4.1."
)


def read_prompts(path: Path, most: int = 1_000) -> list[str]:
    """The ``prompt`` of the first rows of a JSONL file.  Raises: ConfigError, InputError."""
    prompts: list[str] = []
    with closing(open_reader(str(path))) as reader:
        for row in islice(reader.rows, most):
            prompt = None if row.fields is None else row.fields.get("prompt")
            if not isinstance(prompt, str):
                reason = row.error or "expected a row with a text in prompt"
                raise ConfigError(f"{path}:{row.line}: {reason}")
            prompts.append(prompt)
    if not prompts:
        raise ConfigError(f"{path} has no prompts")
    return prompts


def prompt_lengths(prompts: Sequence[str]) -> tuple[int, ...]:
    """Tokens of each prompt, at least one."""
    from deepinfer.recipes.tokenizer import Tokenizer  # GPU benchmarks work without the recipes

    tokenizer = Tokenizer.from_file(embedded_model_path() / "tokenizer.json")
    return tuple(max(1, len(tokenizer.encode_plain(prompt))) for prompt in prompts)
