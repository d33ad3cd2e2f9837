"""Halves of surrogate pairs, which JSON can spell and no text can hold."""

from __future__ import annotations

from typing import Any

import pytest

from deepinfer.errors import RowError
from deepinfer.recipes.chat import convert


@pytest.mark.parametrize(
    "content",
    ["\ud800", "a\udfffb", [{"type": "text", "text": "\ud83d"}]],
    ids=["one", "in", "part"],
)
def test_half_a_pair_is_named(content: Any) -> None:
    with pytest.raises(RowError, match=r"a lone surrogate \(\\ud[0-9a-f]{3}\)"):
        convert({"messages": [{"role": "user", "content": content}]})


def test_a_whole_pair_and_its_spelling_are_text() -> None:
    for content in ("\U0001f600", "\\ud800"):
        request = convert({"messages": [{"role": "user", "content": content}]})
        assert len(request.conversation.messages) == 1
