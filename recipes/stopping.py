"""Stop strings: found in the answer's text as it grows, across token borders, token by token."""

from __future__ import annotations

from collections.abc import Sequence

from .tokenizer import Tokenizer, new_byte_decoder
from .types import AnswerFormat


class StopChecker:
    """Watches one answer.  The engine feeds it every token that it emits.

    Only the answer part counts: not the reasoning before it, not tool calls.  The stop string that
    is complete first wins; of two that end on the same character, the longer.
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
        """Take the next token; return the stop string that is now complete, else None.

        After a match ``num_cut_chars`` is how many characters the text has from its start on.
        """
        if token_id == self._silent_id:
            self._in_reasoning = False
            self._tail = ""  # as in the official parser, nothing matches across this token
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
    """Start and spelling of the stop string that ends first in ``text``; the longest of equals."""
    matches = [
        (start + len(stop), start, stop) for stop in stops if (start := text.find(stop)) >= 0
    ]
    if not matches:
        return None
    _, start, stop = min(matches)
    return start, stop
