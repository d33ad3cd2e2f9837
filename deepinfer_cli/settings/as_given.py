"""Errors that name a setting as the user gave it: by its flag, variable or line in a file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from deepinfer.errors import ConfigError

# Settings whose names in the engine differ.
_NAMES = {"num_speculative_tokens": "speculative", "model_path": "model"}
# A name before "=", or one with "_" in it, which can only be a setting.
_SETTING = re.compile(
    r"(?<![\w./-])[a-z]+(?:_[a-z]+)*(?==)|(?<![\w./-])[a-z]+(?:_[a-z]+)+(?![\w./-])"
)


@contextmanager
def errors_as_given(origins: Mapping[str, str]) -> Iterator[None]:
    """Context in which every ConfigError names settings as the user gave them.  origins: of all
    settings."""
    try:
        yield
    except ConfigError as error:
        text = message_as_given(str(error), origins)
        if text == str(error):
            raise
        raise type(error)(text) from error


def message_as_given(message: str, origins: Mapping[str, str]) -> str:
    """``max_model_len=5: ...`` -> ``--max-model-len=5: ...`` if a flag gave the value, likewise for
    a variable; the line of a file is prefixed.  Settings with default values keep their names."""

    def word(match: re.Match[str]) -> str:
        origin = origins.get(_NAMES.get(match[0], match[0]), "default")
        return origin if origin.startswith("--") or origin.isupper() else match[0]

    first = _SETTING.match(message)
    origin = origins.get(_NAMES.get(first[0], first[0]), "") if first else ""
    place = f"{origin}: " if ":" in origin else ""
    return place + _SETTING.sub(word, message)
