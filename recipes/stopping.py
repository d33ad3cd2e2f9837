"""Detects stop strings in an answer, token by token and across token boundaries."""

from __future__ import annotations

from collections.abc import Sequence

from .tokenizer import Tokenizer, new_byte_decoder
from .types import AnswerFormat


class StopChecker:
    """Checks one answer.  The engine passes it every output token.

    Only the content is searched, not reasoning or tool calls.  The stop string that is complete
    first wins; of two that end at the same character, the longer.
    """

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str], answer_format: AnswerFormat
    ) -> None:
        self._tokenizer = tokenizer
        self._stops = sorted(stops, key=len, reverse=True)
        self._keep = max(map(len, stops), default=1) - 1
        self._decoder = new_byte_decoder()
        self._tail = ""
        self._in_reasoning = answer_format.starts_in_reasoning
        self._in_tool_calls = answer_format.starts_in_tool_calls
        self._silent_id = tokenizer.think_end_id if answer_format.is_chat else None
        self._tool_marker_id = tokenizer.tool_marker_id if answer_format.has_tools else None
        self.num_cut_chars = 0

    def push(self, token_id: int) -> str | None:
        """Add the next token; return the stop string that it completes, or None.

        After a match, ``num_cut_chars`` is the number of characters of the text from the start of
        the stop string on.
        """
        if token_id == self._silent_id:
            self._in_reasoning = False
            self._tail = ""  # as in the official parser, no match extends across this token
            return None
        if token_id == self._tool_marker_id and not self._in_reasoning:
            self._in_tool_calls = True
        if self._in_reasoning or self._in_tool_calls:
            return None
        text = self._tail + self._decoder.decode(self._tokenizer.token_bytes(token_id))
        found = first_to_complete(text, self._stops)
        if found is None:
            self._tail = text[len(text) - self._keep :] if self._keep < len(text) else text
            return None
        start, stop = found
        self.num_cut_chars = len(text) - start
        self._tail = text[start + len(stop) :]
        return stop


def first_to_complete(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Start and text of the stop string that ends first in ``text``; the longest if several do."""
    matches = [
        (start + len(stop), start, stop) for stop in stops if (start := text.find(stop)) >= 0
    ]
    if not matches:
        return None
    _, start, stop = min(matches)
    return start, stop
