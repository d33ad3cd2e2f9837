"""A model's tokenizer.  Plain text never encodes to control tokens.

Control tokens are looked up by their text in the model's ``tokenizer.json``, never by number.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import deepseek_recipe
import tokenizers
from deepseek_recipe import SpecialToken

from deepinfer.errors import CheckpointError

REQUIRED_TOKENS = {
    "begin of text": SpecialToken.Bos.default_str(),
    "end of text": SpecialToken.Eos.default_str(),
    "system": SpecialToken.System.default_str(),
    "user": SpecialToken.User.default_str(),
    "assistant": SpecialToken.Assistant.default_str(),
    "thinking start": SpecialToken.ThinkingStart.default_str(),
    "thinking end": SpecialToken.ThinkingEnd.default_str(),
    "tool call marker": SpecialToken.Dsml.default_str(),
}


class Tokenizer:
    """Encodes text and decodes ids of one model.  Create it with ``from_file`` or ``from_text``."""

    def __init__(self, definition: dict[str, Any], source: str) -> None:
        self._definition = definition
        self._token_bytes = _token_bytes_table(definition)
        added = {token["content"]: int(token["id"]) for token in definition["added_tokens"]}
        missing = [
            f"{spelling} ({use})"
            for use, spelling in REQUIRED_TOKENS.items()
            if spelling not in added
        ]
        if missing:
            raise CheckpointError(
                f"{source}: the added tokens lack {', '.join(missing)}, which the prompt format "
                "of DeepSeek-V4.1 needs; use the tokenizer.json that belongs to the model"
            )
        self.bos_id = added[REQUIRED_TOKENS["begin of text"]]
        self.eos_id = added[REQUIRED_TOKENS["end of text"]]
        self.think_end_id = added[REQUIRED_TOKENS["thinking end"]]
        self.tool_marker_id = added[REQUIRED_TOKENS["tool call marker"]]
        self.control_ids = frozenset(added.values())

    @classmethod
    def from_file(cls, path: str | Path) -> Tokenizer:
        """Load a Hugging Face ``tokenizer.json``.

        Raises: CheckpointError if it is missing, not a byte-level BPE tokenizer, or lacks a control
        token that the prompt format needs.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path}: cannot read the tokenizer: {error}") from error
        return cls.from_text(text, source=str(path))

    @classmethod
    def from_text(cls, text: str, source: str = "tokenizer.json") -> Tokenizer:
        """Load the contents of a ``tokenizer.json``; ``source`` names it in errors."""
        try:
            definition = json.loads(text)
            tokenizer = cls(definition, source)
            tokenizer.wheel  # noqa: B018  loading it validates the definition
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"{source}: not a byte-level BPE tokenizer: {type(error).__name__}: {error}"
            ) from error
        return tokenizer

    @cached_property
    def wheel(self) -> deepseek_recipe.Tokenizer:
        """This tokenizer for the deepseek-recipe wheel."""
        return deepseek_recipe.Tokenizer.from_str(json.dumps(self._definition))

    @cached_property
    def full(self) -> tokenizers.Tokenizer:
        """This tokenizer for the ``tokenizers`` library."""
        return tokenizers.Tokenizer.from_str(json.dumps(self._definition))

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        # Without its added vocabulary a tokenizer cannot produce a control token from text.
        stripped = {
            **self._definition,
            "added_tokens": [],
            "post_processor": None,
            "truncation": None,
            "padding": None,
        }
        return tokenizers.Tokenizer.from_str(json.dumps(stripped))

    def encode_plain(self, text: str) -> list[int]:
        """Ids of ``text``; spellings of control tokens are plain text.  Adds no begin-of-text."""
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def encode_with_control(self, text: str) -> list[int]:
        """Ids of ``text`` in which spellings of control tokens become those tokens."""
        return list(self.wheel.encode(text))

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token: the text of a control token, empty for an unused id."""
        table = self._token_bytes
        return table[token_id] if token_id < len(table) else b""

    @cached_property
    def most_bytes(self) -> int:
        """The bytes of the longest token, for a lower bound of the tokens of a text."""
        return max(map(len, self._token_bytes))

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of ``token_ids``.

        Invalid bytes become U+FFFD; an incomplete character at the end is left out.
        """
        return new_byte_decoder().decode(b"".join(map(self.token_bytes, token_ids)))

    @property
    def size(self) -> int:
        """The highest id in use plus one."""
        return len(self._token_bytes)


def new_byte_decoder() -> codecs.IncrementalDecoder:
    """A streaming UTF-8 decoder, which holds back an incomplete character until it is complete."""
    return codecs.getincrementaldecoder("utf-8")("replace")


def _token_bytes_table(definition: dict[str, Any]) -> list[bytes]:
    byte_of = _byte_of_character()
    vocabulary = definition["model"]["vocab"]
    added = {int(token["id"]): token["content"] for token in definition["added_tokens"]}
    table = [b""] * (max([*vocabulary.values(), *added]) + 1)
    for spelling, token_id in vocabulary.items():
        if byte_of.keys() >= set(spelling):
            table[token_id] = bytes(byte_of[character] for character in spelling)
    for token_id, spelling in added.items():
        table[token_id] = spelling.encode()
    return table


def _byte_of_character() -> dict[str, int]:
    """The alphabet of byte-level BPE: printable Latin-1 is unchanged, other bytes map to U+0100 and
    following."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + place): byte for place, byte in enumerate(others)}
