"""Prompts from a file: texts for an engine, or how many tokens they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from deepinfer.errors import ConfigError
from deepinfer.recipes.embedded import embedded_model_path

LENGTHS_NOTE = (
    "Lengths of prompts are counted by the embedded model's tokenizer, which needs more tokens for "
    "a text than that of DeepSeek-V4.1."
)


def read_prompts(path: Path, most: int = 1_000) -> list[str]:
    """The ``prompt`` of the first rows of a JSONL file.  Raises: ConfigError, OSError."""
    prompts: list[str] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if len(prompts) == most:
                break
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ConfigError(f"{path}:{number}: not JSON ({error})") from error
            prompt = row.get("prompt") if isinstance(row, dict) else None
            if not isinstance(prompt, str):
                raise ConfigError(f"{path}:{number}: expected a row with a text in prompt")
            prompts.append(prompt)
    if not prompts:
        raise ConfigError(f"{path} has no prompts")
    return prompts


def prompt_lengths(prompts: Sequence[str]) -> tuple[int, ...]:
    """Tokens of each prompt, at least one."""
    from deepinfer.recipes.tokenizer import Tokenizer  # a GPU is measured without the recipes

    tokenizer = Tokenizer.from_file(embedded_model_path() / "tokenizer.json")
    return tuple(max(1, len(tokenizer.encode_plain(prompt))) for prompt in prompts)
