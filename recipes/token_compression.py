"""Engram's token compression: tokens that differ only in case, accents or spacing share one id.

The engine gets the result as an array.
"""

from __future__ import annotations

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import Regex, normalizers

from .tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_LONE_SPACE = "\ue000"  # placeholder, so that the token " " is not stripped to nothing


def token_compression(tokenizer: Tokenizer) -> NDArray[np.int32]:
    """[size] i32: the compressed id of every token id, numbered by first appearance."""
    full, normalizer = tokenizer.full, _normalizer()
    numbers: dict[str, int] = {}
    keys = (_key(full, normalizer, i) for i in range(tokenizer.size))
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int32)


def _key(tokenizer: tokenizers.Tokenizer, normalizer: normalizers.Normalizer, token: int) -> str:
    text: str = tokenizer.decode([token], skip_special_tokens=False)
    if _REPLACEMENT in text:
        return str(tokenizer.id_to_token(token))
    return normalizer.normalize_str(text) or text


def _normalizer() -> normalizers.Normalizer:
    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), _LONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(_LONE_SPACE, " "),
        ]
    )
