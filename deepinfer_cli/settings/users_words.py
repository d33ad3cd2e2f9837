"""Errors about settings in the words in which they were given: the flag, the variable, the line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from deepinfer.errors import ConfigError

# What the engine calls otherwise.
_NAMES = {"num_speculative_tokens": "speculative", "model_path": "model"}
# A name before "=", or one with "_" in it, which can be nothing else.
_SETTING = re.compile(
    r"(?<![\w./-])[a-z]+(?:_[a-z]+)*(?==)|(?<![\w./-])[a-z]+(?:_[a-z]+)+(?![\w./-])"
)


@contextmanager
def in_users_words(origins: Mapping[str, str]) -> Iterator[None]:
    """Let a ConfigError name each setting as the user did.  origins: of all settings."""
    try:
        yield
    except ConfigError as error:
        text = users_words(str(error), origins)
        if text == str(error):
            raise
        raise type(error)(text) from error


def users_words(message: str, origins: Mapping[str, str]) -> str:
    """``max_model_len=5: ...`` -> ``--max-model-len=5: ...`` where a flag gave the value, likewise
    a variable; a line of a file is put in front.  What has its default keeps its name."""

    def word(match: re.Match[str]) -> str:
        origin = origins.get(_NAMES.get(match[0], match[0]), "default")
        return origin if origin.startswith("--") or origin.isupper() else match[0]

    first = _SETTING.match(message)
    origin = origins.get(_NAMES.get(first[0], first[0]), "") if first else ""
    place = f"{origin}: " if ":" in origin else ""
    return place + _SETTING.sub(word, message)
