"""``RowEncoder``: encodes a row as prompt ids, sampling overrides and answer format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deepseek_recipe import DeepseekV41Encoding

from deepinfer.errors import RowError

from . import chat
from .constraints.spec import ConstraintSpec
from .rows import ChatPrompt, ParsedRow, TextPrompt, TokenPrompt, parse_row
from .tokenizer import Tokenizer
from .types import AnswerFormat, EncodedRow, Thinking


class RowEncoder:
    """Encodes rows for one model.

    ``max_model_len``: limit of prompt plus answer, in tokens; ``vocab_size``: limit of token ids.
    """

    def __init__(self, tokenizer: Tokenizer, *, max_model_len: int, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._encoding = DeepseekV41Encoding().with_tokenizer(tokenizer.wheel)
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size

    def encode(
        self,
        number: int,
        row: Mapping[str, Any],
        *,
        raw: bool = False,
        thinking: Thinking | None = None,
        constraint: ConstraintSpec | None = None,
    ) -> EncodedRow:
        """Encode row ``number`` of the input.

        ``raw``, ``thinking`` and ``constraint`` are defaults for rows that do not set them; if
        ``thinking`` is None, a string prompt is answered without thinking and ``messages`` as the
        recipe decides.
        Raises: RowError for any invalid row, and no other error.
        """
        parsed = parse_row(row, number, raw=raw, thinking=thinking)
        if constraint is not None and not parsed.has_form:
            parsed = parsed.held_to(constraint)
        self._check_ids_of(parsed.sampling)
        match parsed.prompt:
            case ChatPrompt(body):
                self._check_size(body.get("messages"))
                return self._chat(parsed, body)
            case TextPrompt(text, parse_special):
                self._check_size(text)
                return self._plain(parsed, self._text_ids(text, parse_special))
            case TokenPrompt(token_ids):
                self.check_token_ids("prompt_token_ids", token_ids)
                return self._plain(parsed, token_ids)

    def check_token_ids(self, name: str, token_ids: Iterable[int]) -> None:
        """Raise RowError if an id is not in the vocabulary; ``name`` is the field."""
        wrong = next((i for i in token_ids if not 0 <= i < self._vocab_size), None)
        if wrong is not None:
            raise RowError(
                "invalid_value",
                f"{name}: token id {str(wrong)[:20]} is outside 0 to {self._vocab_size - 1}",
            )

    def _chat(self, parsed: ParsedRow, body: Mapping[str, Any]) -> EncodedRow:
        request = chat.convert(body)
        token_ids = chat.encode(self._encoding, request)
        self._check_length(token_ids)
        constraint = chat.constraint(request, body)
        if constraint is not None and parsed.constraint is not None:
            raise RowError(
                "invalid_value",
                "regex or grammar cannot be combined with response_format or tools; keep one",
            )
        return EncodedRow(
            row_id=parsed.row_id,
            kind=parsed.kind,
            prompt_token_ids=token_ids,
            answer_format=chat.answer_format(request.parsing_options),
            sampling=parsed.sampling,
            constraint=constraint or parsed.constraint,
            notes=_notes(parsed),
        )

    def _plain(self, parsed: ParsedRow, token_ids: tuple[int, ...]) -> EncodedRow:
        self._check_length(token_ids)
        return EncodedRow(
            row_id=parsed.row_id,
            kind=parsed.kind,
            prompt_token_ids=token_ids,
            answer_format=AnswerFormat(),
            sampling=parsed.sampling,
            constraint=parsed.constraint,
            notes=_notes(parsed),
        )

    def _text_ids(self, text: str, parse_special: bool) -> tuple[int, ...]:
        tokenizer = self._tokenizer
        encode = tokenizer.encode_with_control if parse_special else tokenizer.encode_plain
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RowError(
                "invalid_value", f"prompt: not valid Unicode at character {error.start}"
            ) from error
        token_ids = chat.guarded(lambda: encode(text))
        if token_ids[:1] == [tokenizer.bos_id]:
            return tuple(token_ids)
        return (tokenizer.bos_id, *token_ids)

    def _check_ids_of(self, sampling: Mapping[str, Any]) -> None:
        for name in ("logit_bias", "stop_token_ids"):
            if name in sampling:
                self.check_token_ids(name, sampling[name])

    def _check_size(self, prompt: Any) -> None:
        """Refuse a text whose length alone rules it out, as tokenizing it could take minutes."""
        num_characters = _num_characters(prompt)  # each is at least one byte
        at_least = num_characters // self._tokenizer.most_bytes
        if at_least >= self._max_model_len:
            raise RowError(
                "too_long",
                f"the prompt has {num_characters} characters, which are at least {at_least} "
                f"tokens; prompt and answer together may have {self._max_model_len}",
            )

    def _check_length(self, token_ids: tuple[int, ...]) -> None:
        if len(token_ids) >= self._max_model_len:
            raise RowError(
                "too_long",
                f"the prompt has {len(token_ids)} tokens; prompt and answer together may have "
                f"{self._max_model_len}, so shorten it to at most {self._max_model_len - 1}",
            )


def _notes(parsed: ParsedRow) -> dict[str, str]:
    return {"ignored_fields": ", ".join(parsed.ignored)} if parsed.ignored else {}


def _num_characters(prompt: Any) -> int:
    """Characters of a prompt: of the string, or of the ``content`` of its messages and parts."""
    count, left = 0, [prompt]
    while left:  # not recursive, as a row may be nested arbitrarily deep
        value = left.pop()
        if isinstance(value, str):
            count += len(value)
        elif isinstance(value, Mapping):
            left.append(value.get("content") or value.get("text"))
        elif isinstance(value, list | tuple):
            left += value
    return count
